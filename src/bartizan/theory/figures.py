"""The pictures, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from bartizan.theory import adaptive, breakdown, curves, embedding
from bartizan.theory.aggregation import rows as constants
from bartizan.theory.bounds import inflation
from bartizan.theory.convergence import RULES
from bartizan.theory.parts import Results

COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b4549a", "#a67500", "#3a9bd5", "#5c4b9b", "#6c737d")
LEAST = 1e-4  # of a bound that is worth telling apart


def picture(name: str, results: Results) -> bytes:
    """As a PNG file."""
    out = io.BytesIO()
    # Without matplotlib's version in it, the same results give the same bytes.
    DRAW[name](results).savefig(out, format="png", dpi=110, metadata={"Software": None})
    return out.getvalue()


def _embedding(results: Results) -> Any:
    """Failure frequency against k, a panel a span; a Gaussian matrix is in all of them, since they are one to it."""
    lines = [
        (cell, found) for cell, found in results if (cell.n_clients, cell.rounds) == (embedding.M, embedding.ROUNDS)
    ]
    spans = [span for span in dict.fromkeys(cell.span for cell, _ in lines) if span != "any"] or ["any"]
    sketches = list(dict.fromkeys(cell.sketch for cell, _ in lines))
    figure, panels = _figure(-(-len(spans) // 4), min(4, len(spans)), (3.3, 2.6))
    for panel, span in zip(panels.flat, spans, strict=False):
        for sketch in sketches:
            mine = sorted(
                (cell.k, found["failed_rounds"] / (cell.rounds * cell.trials))
                for cell, found in lines
                if cell.sketch == sketch and cell.span in (span, "any")
            )
            if mine:
                panel.plot(*zip(*mine, strict=True), "o-", markersize=3, color=_colour(sketch, sketches), label=sketch)
        if lines:
            panel.axvline(lines[0][0].theorem, color="#c1121f", linestyle=":", label="the theorem's k")
        panel.set_xscale("log", base=2)
        panel.set_title(span)
        panel.set_xlabel("k")
        panel.set_ylabel("sketches that left 1 ± eps")
    for panel in list(panels.flat)[len(spans) :]:
        panel.set_visible(False)
    figure.legend(*panels[0][0].get_legend_handles_labels(), fontsize=8, frameon=False, loc="lower right")
    return figure


def _aggregation(results: Results) -> Any:
    """By what the projection widened each rule's c, and by what it may."""
    lines = [line for line in constants(results) if "widened" in line]
    rules = list(dict.fromkeys(line["rule"] for line in lines))
    figure, panels = _figure(1, 1, (6.4, 0.8 + 0.24 * len(rules)))
    panel = panels[0][0]
    for b, colour in zip(sorted({line["b"] for line in lines}), COLOURS, strict=False):
        mine = [(line["widened"], rules.index(line["rule"])) for line in lines if line["b"] == b]
        panel.plot(*zip(*mine, strict=True), "o", color=colour, fillstyle="none", label=f"b = {b:g}")
    for place, rule in enumerate(rules):
        allowed = min(inflation(line["eps"]) for line in lines if line["rule"] == rule)
        panel.plot(allowed, place, "|", markersize=11, color="#c1121f", label="" if place else "the lemma allows")
    panel.axvline(1, color="#6c737d", linewidth=0.8)
    panel.set_yticks(range(len(rules)), rules)
    panel.invert_yaxis()
    panel.set_xlabel("c projected over c exact, each in four scenes")
    panel.legend(fontsize=7, frameon=False)
    return figure


def _convergence(results: Results) -> Any:
    """Every attack's curve and the bounds, a panel a problem and a rule."""
    main = [p for p in results if p[0].rounds == results[0][0].rounds and p[0].rule in RULES]
    problems = list(dict.fromkeys(cell.problem for cell, _ in main))
    rules = list(dict.fromkeys(cell.rule for cell, _ in main))
    figure, panels = _figure(len(problems), len(rules), (3.3, 2.7))
    shares = sorted({cell.b for cell, _ in main})
    for row, problem in zip(panels, problems, strict=True):
        for panel, rule in zip(row, rules, strict=True):
            for cell, found in main:
                if (cell.problem, cell.rule) != (problem, rule) or "refused" in found:
                    continue
                measured, bound = curves.curves(cell, found, curves.constant(results, cell))
                t, colour = range(1, cell.rounds + 1), COLOURS[shares.index(cell.b)]
                panel.plot(t, measured, color=colour, linewidth=0.7, linestyle="-" if cell.projected else "--")
                if problem == "strongly convex" or cell.attack in ("none", "ipm"):
                    panel.plot(
                        t, bound, color=colour, linewidth=1.6, alpha=0.5, linestyle="-" if cell.projected else "--"
                    )
            panel.set_xscale("log")
            panel.set_yscale("log")
            panel.set_title(f"{problem}, {rule}", fontsize=9)
            panel.set_xlabel("round")
    panels[0][0].set_ylabel("squared distance")
    panels[-1][0].set_ylabel("mean squared gradient")
    said = ", ".join(
        f"{colour} b={share:g}" for colour, share in zip(("blue", "orange", "green"), shares, strict=False)
    )
    figure.suptitle(f"thick: bounds, thin: every attack; solid: projected, dashed: exact; {said}", fontsize=9)
    return figure


def _breakdown(results: Results) -> Any:
    """Where each rule fails, exact beside projected, and how many liars it accepts."""
    points = breakdown.points(results)
    figure, panels = _figure(1, 1, (6.4, 0.6 + 0.24 * len(points)))
    panel = panels[0][0]
    for place, point in enumerate(points):
        M = point.n_clients
        if breakdown.asks(point.rule):
            panel.plot(point.accepts / M, place, "|", markersize=11, color="#6c737d")
        for count, mark, name in ((point.exact, "o", "fails, exact"), (point.projected, "x", "fails, projected")):
            if count is not None:
                colour = COLOURS[0] if mark == "o" else COLOURS[1]
                panel.plot(count / M, place, mark, color=colour, fillstyle="none", label=name if not place else "")
    panel.plot([], [], "|", markersize=11, color="#6c737d", label="accepts up to")
    panel.set_yticks(range(len(points)), [point.rule for point in points])
    panel.invert_yaxis()
    panel.set_xlim(-0.01, 0.56)
    panel.set_xlabel("share of liars b (no mark: never up to 0.5)")
    panel.legend(fontsize=7, frameon=False, loc="lower left")
    return figure


def _adaptive(results: Results) -> Any:
    """Error over the bound, a panel a rule: the worst of the scenes, exact and projected, checks off and on."""
    lines = [line for line in adaptive.rows(results) if line["seed"] != adaptive.NO_SKETCH]
    rules = list(dict.fromkeys(line["rule"] for line in lines))
    met = list(dict.fromkeys((line["attack"], line["seed"]) for line in lines))
    figure, panels = _figure(1, len(rules), (3.2, 1.2 + 0.22 * len(met)))
    far = max(line[server] for line in lines for server in adaptive.SERVERS)
    marks = {"exact": ("o", "exact"), "unchecked": ("x", "projected, no checks"), "checked": ("+", "projected, checks")}
    for panel, rule in zip(panels[0], rules, strict=True):
        for (server, (mark, label)), colour in zip(marks.items(), COLOURS, strict=False):
            worst: dict[int, float] = {}
            for line in lines:
                if line["rule"] == rule:
                    place = met.index((line["attack"], line["seed"]))
                    worst[place] = max(worst.get(place, LEAST), line[server])
            panel.plot(list(worst.values()), list(worst), mark, color=colour, fillstyle="none", label=label)
        panel.axvline(1, color="#c1121f", linestyle=":", label="the bound")
        panel.set_xscale("log")
        panel.set_xlim(LEAST / 2, 4 * max(1, far))
        panel.set_yticks(range(len(met)), [""] * len(met))
        panel.invert_yaxis()
        panel.set_title(rule, fontsize=9)
    panels[0][0].set_yticks(range(len(met)), [f"{attack}, {seed}" for attack, seed in met])
    figure.supxlabel(f"squared error over the bound (at the left edge: {LEAST:g} or less)", fontsize=9)
    said = panels[0][0].get_legend_handles_labels()
    figure.legend(*said, fontsize=8, frameon=False, loc="outside upper right", ncols=4)
    return figure


DRAW: dict[str, Callable[[Results], Any]] = {
    "embedding": _embedding,
    "aggregation": _aggregation,
    "convergence": _convergence,
    "breakdown": _breakdown,
    "adaptive": _adaptive,
}


def _colour(name: str, every: list[str]) -> str:
    return COLOURS[every.index(name) % len(COLOURS)]


def _figure(n_rows: int, n_columns: int, each: tuple[float, float]) -> tuple[Any, Any]:
    """Without pyplot: nothing global, no window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(each[0] * n_columns, each[1] * n_rows), layout="constrained", facecolor="white")
    panels = figure.subplots(n_rows, n_columns, squeeze=False)
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    return figure, panels

"""The pictures, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from bartizan.studies.theory import breakdown, curves
from bartizan.studies.theory import projection_attacks as adaptive
from bartizan.studies.theory import subspace_embedding as embedding
from bartizan.studies.theory.aggregation_error import rows as constants
from bartizan.studies.theory.parts import Results

COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b4549a", "#a67500", "#3a9bd5", "#5c4b9b", "#6c737d")
LEAST = 1e-4  # of a bound that is worth telling apart


def picture(name: str, results: Results) -> bytes:
    """As a PNG file."""
    out = io.BytesIO()
    # Without matplotlib's version in it, the same results give the same bytes.
    DRAW[name](results).savefig(out, format="png", dpi=110, metadata={"Software": None})
    return out.getvalue()


def _embedding(results: Results) -> Any:
    """Failed trials against k, a panel a span; a Gaussian matrix is in all of them, since they are one to it."""
    lines = [
        (cell, found) for cell, found in results if (cell.n_clients, cell.rounds) == (embedding.M, embedding.ROUNDS)
    ]
    spans = [span for span in dict.fromkeys(cell.span for cell, _ in lines) if span != "any"] or ["any"]
    sketches = list(dict.fromkeys(cell.sketch for cell, _ in lines))
    figure, panels = _figure(-(-len(spans) // 4), min(4, len(spans)), (3.2, 2.7))
    for panel, span in zip(panels.flat, spans, strict=False):
        for sketch in sketches:
            here = [pair for pair in lines if pair[0].sketch == sketch and pair[0].span in (span, "any")]
            if here:
                _shares(panel, here, _colour(sketch, sketches), sketch)
        if lines:
            panel.axvline(lines[0][0].theorem, color="#c1121f", linestyle=":", label="the theorem's k")
        panel.axhline(embedding.DELTA, color="#6c737d", linestyle="--", linewidth=0.8, label="delta")
        panel.set_xscale("log", base=2)
        panel.set_yscale("symlog", linthresh=0.01)
        panel.set_yticks([0, 0.01, 0.05, 0.2, 1], ["0", "1%", "5%", "20%", "100%"])
        panel.set_ylim(-0.002, 1.3)
        panel.set_title(span, fontsize=9)
        panel.set_xlabel("k", fontsize=8)
    for panel in list(panels.flat)[len(spans) :]:
        panel.set_visible(False)
    figure.supylabel("trials that left 1 ± eps, with 95% limits", fontsize=9)
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside lower center", ncols=7
    )
    return figure


def _shares(panel: Any, here: Results, colour: str, label: str) -> None:
    ks, shares, limits = [], [], []
    for cell, found in sorted(here, key=lambda pair: pair[0].k):
        ks.append(cell.k)
        shares.append(found["failed_trials"] / cell.trials)
        limits.append(embedding.limits(found["failed_trials"], cell.trials))
    lengths = [
        [share - low for share, (low, _) in zip(shares, limits, strict=True)],
        [high - share for share, (_, high) in zip(shares, limits, strict=True)],
    ]
    panel.errorbar(
        ks, shares, lengths, fmt="o-", markersize=2.5, linewidth=0.9, elinewidth=0.5, color=colour, label=label
    )


def _aggregation(results: Results) -> Any:
    """By what the projection widened the c of each rule that has one."""
    lines = [line for line in constants(results) if "part_of_bound" in line and line["sketch"].startswith("rotated")]
    rules = list(dict.fromkeys(line["rule"] for line in lines))
    figure, panels = _figure(1, 1, (6.4, 1.0 + 0.24 * len(rules)))
    panel = panels[0][0]
    for b, colour in zip(sorted({line["b"] for line in lines}), COLOURS, strict=False):
        mine = [(line["widened"], rules.index(line["rule"])) for line in lines if line["b"] == b]
        panel.plot(*zip(*mine, strict=True), "o", color=colour, fillstyle="none", label=f"b = {b:g}")
    panel.axvline(1, color="#6c737d", linewidth=0.8)
    panel.set_yticks(range(len(rules)), rules)
    panel.invert_yaxis()
    panel.set_xlabel("c projected over c exact, a mark a scene")
    figure.legend(fontsize=7, frameon=False, loc="outside upper right", ncols=2)
    return figure


def _convergence(results: Results) -> Any:
    """What part of its bound the curve took that ends highest in it, a panel a problem and a rule."""
    whole = [pair for pair in curves.main(results) if "refused" not in pair[1]]
    problems = list(dict.fromkeys(cell.problem for cell, _ in whole))
    rules = list(dict.fromkeys(cell.rule for cell, _ in whole))
    shares = sorted({cell.b for cell, _ in whole})
    figure, panels = _figure(len(problems), len(rules), (3.2, 2.5))
    labels: dict[str, Any] = {}
    for row, problem in zip(panels, problems, strict=True):
        for panel, rule in zip(row, rules, strict=True):
            here = [pair for pair in whole if (pair[0].problem, pair[0].rule) == (problem, rule)]
            for group in curves.groups(here):
                by = curves.worst(group)[0]
                measured, bound = curves.curves(by, dict(group)[by])
                said = f"b = {by.b:g}, {'projected' if by.projected else 'exact'}"
                (labels[said],) = panel.plot(
                    range(1, by.rounds + 1),
                    measured / bound,
                    color=COLOURS[shares.index(by.b)],
                    linewidth=1.0,
                    linestyle="-" if by.projected else "--",
                )
            panel.axhline(1, color="#c1121f", linestyle=":")
            panel.set_yscale("log")
            panel.set_ylim(1e-3, 1.5)
            panel.set_title(f"{problem}, {rule}", fontsize=9)
            panel.set_xlabel("round", fontsize=8)
    figure.supylabel("measured over bound, worst attack", fontsize=9)
    figure.legend(labels.values(), labels, fontsize=8, frameon=False, loc="outside lower center", ncols=6)
    return figure


def _breakdown(results: Results) -> Any:
    """Where each rule breaks, exact beside projected, where its error is large, and how many attackers it accepts."""
    points = breakdown.points(results)
    figure, panels = _figure(1, 1, (6.4, 1.0 + 0.24 * len(points)))
    panel = panels[0][0]
    labels: dict[str, Any] = {}
    for place, point in enumerate(points):
        marks = [
            (point.accepts if breakdown.asks(point.rule) else None, "|", "#6c737d", "accepts up to"),
            (point.far_exact, "^", COLOURS[2], f"error above {breakdown.FAR:g} nu², exact"),
            (point.exact, "o", COLOURS[0], "broken, exact"),
            (point.projected, "x", COLOURS[1], "broken, projected"),
        ]
        for count, mark, colour, label in marks:
            if count is not None:
                (labels[label],) = panel.plot(
                    count / point.n_clients,
                    place,
                    mark,
                    color=colour,
                    fillstyle="none",
                    markersize=11 if mark == "|" else 6,
                )
    panel.set_yticks(range(len(points)), [point.rule for point in points])
    panel.invert_yaxis()
    panel.set_xlim(-0.01, 0.56)
    panel.set_xlabel("share of attackers b, tried up to 0.5")
    figure.legend(labels.values(), labels, fontsize=7, frameon=False, loc="outside upper center", ncols=4)
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

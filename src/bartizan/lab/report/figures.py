"""The main charts of the page as PNG files, drawn by matplotlib in the colours of the page's style sheet."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from bartizan.lab.report import pack
from bartizan.lab.report.content import Content
from bartizan.lab.report.factors import order
from bartizan.lab.report.page import asset
from bartizan.lab.report.run_data import SERVER, Run

MARKS = (None, "o", "s", "^")
DASHES = ("-", (0, (4, 2.5)), (0, (1, 2)), (0, (6, 2, 1, 2)))


def pictures(made: Content, maker: str = "") -> dict[str, bytes]:
    """Return the PNG files for which there is data, by name; each names `maker` as its software."""
    from matplotlib import rc_context

    run = made.runs[made.featured] if made.runs else None
    drawn: dict[str, Any] = {}
    style: dict[Any, Any] = {"text.parse_math": False}  # a name with a dollar in it is no formula
    style |= {"font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left"}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": _colours()["faint"]}
    with rc_context(style), warnings.catch_warnings():
        # Names may have letters that the font lacks, or be too long to leave room for the rest.
        for message in ("Glyph .* missing from", "Matplotlib currently does not", "constrained_layout not applied"):
            warnings.filterwarnings("ignore", message=message)
        if made.curves["accuracy"]:
            drawn["accuracy.png"] = _accuracy(made)
        if made.cells:
            drawn["heatmap.png"] = _heatmap(made)
        if made.times:
            drawn["server-time.png"] = _times(made)
        if run is not None and run.weighs:
            drawn["weights.png"] = _weights(run, made.factors[made.featured].label)
        if run is not None and run.split is not None and run.split.size:
            drawn["split.png"] = _split(run)
        return {name: _png(figure, maker) for name, figure in drawn.items()}


def _accuracy(made: Content) -> Any:
    curves = made.curves["accuracy"]
    rules, sketches = made.styles
    panels = [(o, a) for o in order(c.other for c in curves) for a in order(c.attack for c in curves)]
    panels = [key for key in panels if any((c.other, c.attack) == key for c in curves)]
    figure, axes = _panels(panels, 3, (4.6, 3.0) if len(panels) > 1 else (8.0, 4.2))
    for (other, attack), ax in axes.items():
        for curve in curves:
            if (curve.other, curve.attack) != (other, attack):
                continue
            colour, mark = rules[curve.rule]
            ax.plot(
                curve.rounds,
                100 * np.array(curve.mean),
                color=_colours()[colour],
                linestyle=DASHES[sketches[curve.sketch]],
                marker=MARKS[mark] or ("o" if len(curve.rounds) == 1 else None),
                markevery=-(-len(curve.rounds) // 8),
                markerfacecolor="white",
                label=_short(" ".join([curve.rule, *([curve.sketch] if sketches["exact"] else [])])),
            )
            low, high = 100 * np.array(curve.low), 100 * np.array(curve.high)
            ax.fill_between(curve.rounds, low, high, color=_colours()[colour], alpha=0.12, linewidth=0)
        ax.set(
            title=_title("no attack" if attack == "none" else attack, other), xlabel="round", ylabel="test accuracy, %"
        )
        ax.set_ylim(0, min(100.0, 105 * max(0.05, *(max(c.high) for c in curves))))
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.grid(axis="y", linewidth=0.6)
    named = [ax.get_legend_handles_labels() for ax in axes.values()]
    handles = {text: line for lines, texts in named for line, text in zip(lines, texts, strict=True)}
    if len(handles) > 1:
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
    return figure


def _heatmap(made: Content) -> Any:
    attacks, rules = order(c.attack for c in made.cells), order(c.rule for c in made.cells)
    tables = [(o, s) for o in order(c.other for c in made.cells) for s in order(c.sketch for c in made.cells)]
    tables = [key for key in tables if any((c.other, c.sketch) == key for c in made.cells)]
    width = 0.8 + 0.08 * max(len(_short(rule)) for rule in rules)
    width += (0.9 if max(map(len, attacks)) <= 10 else 1.3) * len(attacks)
    figure, axes = _panels(tables, 2 if len(attacks) <= 6 else 1, (width, 1.0 + 0.5 * len(rules)))
    top = max((cell.last[0] for cell in made.cells if np.isfinite(cell.last[0])), default=1.0) or 1.0
    for (other, sketch), ax in axes.items():
        values = np.full((len(rules), len(attacks)), np.nan)
        for cell in made.cells:
            if (cell.other, cell.sketch) != (other, sketch):
                continue
            y, x, (value, deviation) = rules.index(cell.rule), attacks.index(cell.attack), cell.last
            text = f"{100 * value:.1f}" if np.isfinite(value) else "-"
            if np.isfinite(value) and cell.n_converged < cell.n:
                text += f"\n{cell.n_converged} of {cell.n}"
            elif np.isfinite(deviation):
                text += f"\n± {100 * deviation:.1f}"
            values[y, x] = (value / top) ** 1.4  # the power of the page
            dark = np.isfinite(value) and value / top > 0.66
            ax.text(x, y, text, ha="center", va="center", color="white" if dark else _colours()["ink"])
        ax.imshow(values, cmap=_ramp(), vmin=0, vmax=1, aspect="auto")
        ax.set_xticks(range(len(attacks)), [_short("no attack" if one == "none" else one, 14) for one in attacks])
        ax.set_yticks(range(len(rules)), [_short(rule) for rule in rules])
        ax.set(title=_title(sketch, other), xlabel="attack", ylabel="rule")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    figure.suptitle("Test accuracy at the end, %", fontsize=10, color=_colours()["soft"])
    return figure


def _times(made: Content) -> Any:
    others, (rules, _) = order(time.other for time in made.times), made.styles
    times = sorted(made.times, key=lambda time: (others.index(time.other), list(rules).index(time.rule)))
    names = [_short("  ".join(filter(None, (time.rule, time.sketch, time.other))), 60) for time in times]
    units: list[tuple[str, Callable[[Any], Sequence[float]]]] = [
        ("reads of all updates", lambda time: [time.reads]),
        (f"ms ({', '.join(SERVER)})", lambda time: [1e3 * part for part in time.parts]),
    ]
    units = units if any(np.isfinite(time.reads) for time in times) else units[1:]
    figure, axes = _panels(range(len(units)), 2, (5.8, 0.8 + 0.28 * len(times)))
    for ax, (unit, parts) in zip(axes.values(), units, strict=True):
        for y, time in enumerate(times):
            left = 0.0
            for part, alpha in zip(np.nan_to_num(parts(time)), (0.95, 0.6, 0.32), strict=False):
                ax.barh(
                    y, part, left=left, height=0.72, color=_colours()[rules[time.rule][0]], alpha=alpha, linewidth=0
                )
                left += part
            label = f"{left:.3g}" if left else "not timed"
            ax.annotate(label, (left, y), (4, 0), textcoords="offset points", va="center", fontsize=8)
        ax.set_yticks(range(len(times)), names)
        ax.set_ylim(len(times) - 0.4, -0.6)
        ax.margins(x=0.15)
        ax.set_xlabel(f"server time, {unit}")
    return figure


def _weights(run: Run, label: str) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize, to_rgba

    figure, axes = _panels([0], 1, (9.0, 5.0))
    ax, M, f = axes[0], len(run.clients), run.n_attackers
    packed = pack.weights(run, min(run.n_rounds, pack.COLUMNS[1]))
    cells = pack.bytes_of(packed["cells"]).reshape(M, -1)[_clients(run)]
    picture = _ramp()(np.clip(cells, 0, pack.LEVELS) / pack.LEVELS)
    for mark, colour in ((pack.QUARANTINED, "quarantined"), (pack.ABSENT, "absent")):
        picture[cells == mark] = to_rgba(_colours()[colour])
    ax.imshow(picture, aspect="auto", interpolation="nearest", extent=(0.5, run.n_rounds + 0.5, M, 0))
    ax.set(title=_title("Weights", label), xlabel="round", ylabel="clients, least trusted first")
    ax.xaxis.get_major_locator().set_params(integer=True)
    if f:
        ax.axhline(f, color=_colours()["attacker"], linewidth=1)
        ax.set_yticks([f / 2, (f + M) / 2], [f"{f} attackers", f"{M - f} honest"], rotation=90, va="center")
        ax.tick_params(axis="y", length=0)
    scale = ScalarMappable(Normalize(0, packed["top"]), _ramp())
    figure.colorbar(scale, ax=ax, shrink=0.5, aspect=18, label="weight").outline.set_visible(False)
    return figure


def _split(run: Run) -> Any:
    from matplotlib.colors import PowerNorm

    counts = np.nan_to_num(run.split)[_clients(run)] if run.split is not None else np.zeros((1, 1))
    (M, C), f = counts.shape, run.n_attackers
    figure, axes = _panels([0], 1, (9.0, min(9.0, 1.2 + 0.26 * C)))
    ax = axes[0]
    picture = ax.imshow(counts.T, aspect="auto", cmap=_ramp(), norm=PowerNorm(0.5, 0, max(1.0, counts.max())))
    figure.colorbar(picture, ax=ax, shrink=0.5, aspect=18, label="examples").outline.set_visible(False)
    if f:
        ax.axvline(f - 0.5, color=_colours()["attacker"], linewidth=1)
    ax.set(xticks=[], ylabel="class", title="Examples by client and class")
    ax.set_xlabel(f"clients: {f} attackers, then {M - f} honest ones" if f else "clients")
    if C <= 40:
        ax.set_yticks(range(C), [_short(name, 20) for name in run.classes or map(str, range(C))])
    return figure


def _clients(run: Run) -> Any:
    """Return the order in which clients are drawn: attackers first, each group from least to most trusted."""
    honest = np.ones(len(run.clients), dtype=bool) if run.byzantine is None else ~run.byzantine
    return np.lexsort((np.nan_to_num(run.share(), nan=np.inf), honest))


@cache
def _colours() -> dict[str, str]:
    """Return the colours of the page's light theme by name."""
    light = asset("report.css").partition("}")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light))


def _ramp() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("amount", [_colours()[f"r{i}"] for i in range(6)])


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _title(*parts: str) -> str:
    return _short(" · ".join(filter(None, parts)), 100)


def _panels(keys: Sequence[Any], most_columns: int, size: tuple[float, float]) -> tuple[Any, dict[Any, Any]]:
    """Return a figure without pyplot, so that nothing is global and no window opens, with one panel for each key."""
    from matplotlib.figure import Figure

    wide = min(most_columns, len(keys))
    tall = -(-len(keys) // wide)
    figure = Figure(figsize=(size[0] * wide, size[1] * tall), layout="constrained", facecolor="white")
    axes = list(figure.subplots(tall, wide, squeeze=False).flat)
    for ax in axes[len(keys) :]:
        ax.set_visible(False)
    return figure, dict(zip(keys, axes, strict=False))


def _png(figure: Any, maker: str) -> bytes:
    out = io.BytesIO()
    # Matplotlib draws no picture of 2^16 pixels or more a side.
    dpi = min(160.0, 65_000 / max(figure.get_size_inches()))
    # Without matplotlib's version in it, the same runs give the same bytes.
    figure.savefig(out, format="png", dpi=dpi, metadata={"Software": maker or None})
    return out.getvalue()

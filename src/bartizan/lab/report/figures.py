"""The main charts of the page as PNG files, drawn by matplotlib in the colours of the page's style sheet."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from bartizan.lab.metrics import ACCURACY, METRICS, PERPLEXITY, Metric
from bartizan.lab.report.content import Content, asset
from bartizan.lab.report.factors import order
from bartizan.lab.report.pack import top_weight
from bartizan.lab.report.run_data import SERVER_STAGES, Run
from bartizan.lab.report.verdicts import seeds
from bartizan.lab.report.wording import level, tenths

MARKS = (None, "o", "s", "^")
DASHES = ("-", (0, (4, 2.5)), (0, (1, 2)), (0, (6, 2, 1, 2)))
STYLE = {
    **{"font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left"},
    **{"axes.spines.top": False, "axes.spines.right": False},
    "text.parse_math": False,  # a name with a dollar in it is no formula
}


def pictures(made: Content, maker: str = "") -> dict[str, bytes]:
    """Return the PNG files for which there is data, by name; each names `maker` as its software."""
    from matplotlib import rc_context

    with rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        # Names may have letters that the font lacks, or be too long to leave room for the rest.
        warnings.simplefilter("ignore")
        drawn = {name: draw(made) for name, draw in PICTURES.items()}
        return {name: _png(figure, maker) for name, figure in drawn.items() if figure is not None}


def _curves(metric: Metric, made: Content) -> Any:
    curves = made.curves[metric.name]
    if not curves:
        return None
    factor, unit = (1, "") if metric.lower_is_better else (100, ", %")
    rules, sketches = made.styles
    figure, axes = _panels(_keys(curves, "other", "attack"), 3, (4.6, 3.2))
    most = max(max(curve.high) for curve in curves)
    top = min(100.0, 105 * max(0.05, most))
    if metric.lower_is_better:  # one that diverged may have any perplexity
        top = 1.05 * min(most, 4 * min(curve.mean[-1] for curve in curves))
    lines, several = {}, len({curve.sketch for curve in curves}) > 1
    for curve in curves:
        ax, (colour, mark) = axes[curve.other, curve.attack], rules[curve.rule]
        values = factor * np.array([curve.low, curve.mean, curve.high])
        style: dict[str, Any] = {"color": _colours()[colour], "linestyle": DASHES[sketches[curve.sketch]]}
        style |= {"marker": MARKS[mark] or ("o" if len(curve.rounds) == 1 else None), "markerfacecolor": "white"}
        (line,) = ax.plot(curve.rounds, values[1], markevery=-(-len(curve.rounds) // 8), **style)
        lines[_short(curve.rule, curve.sketch if several else "")] = line
        ax.fill_between(curve.rounds, values[0], values[2], color=style["color"], alpha=0.12, linewidth=0)
    for (other, attack), ax in axes.items():
        ax.set(title=_short(_attack(attack), other), xlabel="round", ylabel=f"test {metric.name}{unit}", ylim=(0, top))
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.grid(axis="y", linewidth=0.4)
    if len(lines) > 1:
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=min(4, len(lines)), frameon=False)
    return figure


def _heatmap(made: Content) -> Any:
    if not made.cells:
        return None
    attacks, rules = order(c.attack for c in made.cells), order(c.rule for c in made.cells)
    width = 0.8 + 0.08 * max(map(len, rules)) + 1.2 * len(attacks)
    size = (min(width, 30.0), 1.2 + 0.5 * len(rules))
    figure, axes = _panels(_keys(made.cells, "other", "sketch"), 2 if len(attacks) <= 6 else 1, size)
    tops = {m: m.best(cell.last[0] for cell in made.cells if cell.metric == m) for m in METRICS.values()}
    values = {key: np.full((len(rules), len(attacks)), np.nan) for key in axes}
    for cell in made.cells:
        y, x, (value, deviation) = rules.index(cell.rule), attacks.index(cell.attack), cell.last
        percents, top = cell.metric == ACCURACY, tops[cell.metric] or 1.0
        end = value if np.isfinite(value) else cell.ended
        text = (tenths(100 * end) if percents else level(end, cell.metric)) if np.isfinite(end) else "-"
        part = value / top if percents else top / value if value else 1.0
        if np.isfinite(value) and cell.n_converged < cell.n:
            text += f"\n{cell.n_converged} of {cell.n}"
        elif np.isfinite(deviation):
            text += f"\n± {100 * deviation:.1f}" if percents else f"\n± {deviation:.2f}"
        if cell.attack != "none" and cell.on_attackers > 0.5:
            text += f"\n{cell.on_attackers:.0%} to attackers"
        if np.isfinite(cell.backdoor[0]):
            text += f"\nbackdoor {tenths(100 * cell.backdoor[0])}%"
        values[cell.other, cell.sketch][y, x] = part**1.4  # the power of the page
        colour = "white" if part > 0.66 else "black"
        axes[cell.other, cell.sketch].text(x, y, text, ha="center", va="center", color=colour)
    for (other, sketch), ax in axes.items():
        ax.imshow(values[other, sketch], cmap=_ramp(), vmin=0, vmax=1, aspect="auto")
        ax.set_xticks(range(len(attacks)), [_short(_attack(attack)) for attack in attacks])
        ax.set_yticks(range(len(rules)), [_short(rule) for rule in rules])
        by_text = any(cell.metric == PERPLEXITY for cell in made.cells if cell.other == other)
        what = "test perplexity at the end" if by_text else "test accuracy at the end, %"
        ax.set(title=_short(what, seeds(cell.n for cell in made.cells), sketch, other), xlabel="attack", ylabel="rule")
        ax.tick_params(length=0)
    return figure


def _times(made: Content) -> Any:
    if not made.times:
        return None
    others, (rules, _) = order(time.other for time in made.times), made.styles
    times = sorted(made.times, key=lambda time: (others.index(time.other), list(rules).index(time.rule)))
    units = ["reads of all updates"] if any(np.isfinite(time.reads) for time in times) else []
    units.append(f"ms ({', '.join(SERVER_STAGES)})")
    figure, axes = _panels(units, 2, (5.8, 1.0 + 0.28 * len(times)))
    for unit, ax in axes.items():
        for y, time in enumerate(times):
            in_reads = unit.startswith("reads")
            parts = np.nan_to_num([time.reads] if in_reads else 1e3 * np.array(time.parts))
            total, colour = time.reads if in_reads else 1e3 * time.seconds, _colours()[rules[time.rule][0]]
            for part, end, alpha in zip(parts, np.cumsum(parts), (0.95, 0.6, 0.32), strict=False):
                ax.barh(y, part, left=end - part, height=0.72, color=colour, alpha=alpha, linewidth=0)
            low, high = time.reads_range if in_reads else 1e3 * np.array(time.seconds_range)
            ax.plot([low, high], [y, y], "|-", color="black", linewidth=0.8, markersize=5)
            label = f"{total:.3g}" if np.isfinite(total) else "not timed"
            ax.annotate(
                label, (np.fmax(parts.sum(), high), y), (4, 0), textcoords="offset points", va="center", fontsize=8
            )
        ax.set_yticks(range(len(times)), [_short(time.rule, time.sketch, time.other) for time in times])
        ax.set(ylim=(len(times) - 0.4, -0.6), xlabel=f"server time, {unit}\nwhiskers: 10th to 90th percentile")
        ax.margins(x=0.15)
        ax.set_xlim(left=0)
    return figure


def _weights(made: Content) -> Any:
    from matplotlib.colors import ListedColormap

    run = _featured(made)
    if run is None or not run.weighs:
        return None
    figure, axes = _panels([run], 1, (9.0, 5.0))
    ax, clients, f, M = axes[run], _clients(run), run.n_attackers, len(run.clients)
    place: dict[str, Any] = {"extent": (0.5, run.n_rounds + 0.5, M, 0), "aspect": "auto", "interpolation": "nearest"}
    picture = ax.imshow(run.weights.T[clients], cmap=_ramp(), vmin=0, vmax=top_weight(run), **place)
    quarantined = np.where(run.quarantined.T[clients], 1.0, np.nan)
    ax.imshow(quarantined, cmap=ListedColormap([_colours()["quarantined"]]), **place)
    ax.set(title=_short("weights", made.factors[made.featured].label), xlabel="round", ylabel="client")
    ax.xaxis.get_major_locator().set_params(integer=True)
    if f:
        ax.axhline(f, color=_colours()["attacker"], linewidth=1)
        ax.set_yticks([f / 2, (f + M) / 2], [f"{f} attackers", f"{M - f} honest"], rotation=90, va="center")
    figure.colorbar(picture, ax=ax, shrink=0.5, aspect=18, label="weight")
    return figure


def _split(made: Content) -> Any:
    from matplotlib.colors import PowerNorm

    run = _featured(made)
    if run is None or run.split is None or not run.split.size:
        return None
    counts, f = np.nan_to_num(run.split)[_clients(run)].T, run.n_attackers
    C, M = counts.shape
    figure, axes = _panels([run], 1, (9.0, min(9.0, 1.2 + 0.26 * C)))
    ax = axes[run]
    picture = ax.imshow(counts, aspect="auto", cmap=_ramp(), norm=PowerNorm(0.5, 0, max(1.0, counts.max())))
    figure.colorbar(picture, ax=ax, shrink=0.5, aspect=18, label="examples")
    ax.set(xticks=[], xlabel="client", ylabel="class", title="Examples by client and class")
    if f:
        ax.axvline(f - 0.5, color=_colours()["attacker"], linewidth=1)
        ax.set_xlabel(f"client: {f} attackers, then {M - f} honest ones")
    if C <= 40:
        ax.set_yticks(range(C), [_short(name) for name in run.classes or map(str, range(C))])
    return figure


PICTURES: dict[str, Callable[[Content], Any]] = {
    "accuracy.png": partial(_curves, ACCURACY),
    "perplexity.png": partial(_curves, PERPLEXITY),
    "heatmap.png": _heatmap,
    "server-time.png": _times,
    "weights.png": _weights,
    "split.png": _split,
}
"""The function that draws each file; it returns None if there is no data for it."""


def _featured(made: Content) -> Run | None:
    return made.runs[made.featured] if made.runs else None


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

    ramp = LinearSegmentedColormap.from_list("amount", [_colours()[f"r{i}"] for i in range(6)])
    return ramp.with_extremes(bad=_colours()["absent"])


def _short(*parts: str) -> str:
    text = " · ".join(filter(None, parts))
    return text if len(text) <= 80 else f"{text[:79]}…"


def _attack(name: str) -> str:
    return "no attack" if name == "none" else name


def _keys(items: Iterable[Any], first: str, second: str) -> list[tuple[str, str]]:
    """Return the pairs of labels that occur, in the order of the page."""
    found = dict.fromkeys((getattr(item, first), getattr(item, second)) for item in items)
    firsts, seconds = order(one for one, _ in found), order(one for _, one in found)
    return sorted(found, key=lambda key: (firsts.index(key[0]), seconds.index(key[1])))


def _panels(keys: Sequence[Any], most_columns: int, size: tuple[float, float]) -> tuple[Any, dict[Any, Any]]:
    """Return a figure with one panel for each key, without pyplot: nothing is global and no window opens."""
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

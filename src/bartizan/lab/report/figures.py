"""The page's main pictures as PNG files, drawn by matplotlib in the same colours."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from bartizan.lab.report import pack
from bartizan.lab.report.content import Content
from bartizan.lab.report.factors import order
from bartizan.lab.report.run_data import SERVER, Run

COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b4549a", "#a67500", "#3a9bd5", "#5c4b9b")
GREY, INK, SOFT, LINE, ALARM, HOLD, ABSENT = "#6c737d", "#14171c", "#545c68", "#d9dbd8", "#c1121f", "#d99000", "#e9e6df"
RAMP = ("#f0f4f8", "#cfe1f1", "#97c4e4", "#4a98cb", "#1b6aae", "#08306b")
# Rules beyond the number of colours are told apart by marks on their lines.
MARKS = ("", "o", "s", "^")
DASHES = ("-", (0, (4, 2.5)), (0, (1, 2)), (0, (6, 2, 1, 2)))


def pictures(made: Content, maker: str = "") -> dict[str, bytes]:
    """Those that there is something to draw for, by the names of their files; `maker` is written into each."""
    from matplotlib import rc_context

    drawn: dict[str, Any] = {}
    # A name with a dollar in it is a name, not a formula, and one in letters that the font lacks is no reason to warn,
    # nor is one too long to leave room for the rest.
    with rc_context({"text.parse_math": False, "font.size": 9}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        if made.curves["accuracy"]:
            drawn["accuracy.png"] = _accuracy(made)
        if made.cells:
            drawn["heatmap.png"] = _heatmap(made)
        if made.times:
            drawn["server-time.png"] = _times(made)
        if made.runs:
            run = made.runs[made.featured]
            label = made.placed[made.featured].label
            if run.weighs:
                drawn["weights.png"] = _weights(run, label)
            if run.split is not None and run.split.size:
                drawn["split.png"] = _split(run)
        return {name: _saved(figure, maker) for name, figure in drawn.items()}


def _accuracy(made: Content) -> Any:
    curves = made.curves["accuracy"]
    keys = sorted({(c.other, c.attack) for c in curves}, key=_ranked(made))
    rules, sketches = order(c.rule for c in curves), order(c.sketch for c in curves)
    wide = min(3, len(keys))
    tall = -(-len(keys) // wide)
    figure, panels = _figure(tall, wide, (4.6 if wide > 1 else 8.0, 3.0 if wide > 1 else 4.2))
    for panel, key in zip(panels.flat, keys, strict=False):
        for curve in curves:
            if (curve.other, curve.attack) != key:
                continue
            style = {"color": _colour(curve.rule, rules), "linestyle": _dash(curve.sketch, sketches)}
            label = _short(" ".join([curve.rule, *([curve.sketch] if len(sketches) > 1 else [])]))
            style |= {"marker": _mark(curve.rule, rules) or ("o" if len(curve.rounds) == 1 else None)}
            style |= {"markevery": -(-len(curve.rounds) // 8), "markersize": 5, "markerfacecolor": "white"}
            panel.plot(curve.rounds, 100 * np.array(curve.mean), linewidth=1.8, label=label, **style)
            low, high = 100 * np.array(curve.low), 100 * np.array(curve.high)
            panel.fill_between(curve.rounds, low, high, color=style["color"], alpha=0.12, linewidth=0)
        panel.set_title(_panel_name(key), loc="left", fontweight="bold", fontsize=10)
        panel.set_ylim(bottom=0)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_xlabel("round")
        panel.set_ylabel("accuracy, %")
        panel.grid(axis="y", color=LINE, linewidth=0.6)
    for panel in list(panels.flat)[len(keys) :]:
        panel.set_visible(False)
    named = [panel.get_legend_handles_labels() for panel in panels.flat]
    handles = {text: handle for lines, texts in named for handle, text in zip(lines, texts, strict=True)}
    if len(handles) > 1:
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
    return figure


def _heatmap(made: Content) -> Any:
    keys = list(dict.fromkeys((cell.other, cell.sketch) for cell in made.cells))
    keys.sort(key=lambda key: (order(f.other for f in made.placed).index(key[0]), key[1] != "exact"))
    attacks, rules = order(c.attack for c in made.cells), order(c.rule for c in made.cells)
    wide = min(2 if len(attacks) <= 6 else 1, len(keys))
    tall = -(-len(keys) // wide)
    names = [_short(rule) for rule in rules]
    room = 0.08 * max(map(len, names)) + (0.9 if max(map(len, attacks)) <= 10 else 1.3) * len(attacks)
    figure, panels = _figure(tall, wide, (0.8 + room, 1.0 + 0.5 * len(rules)))
    top = max((cell.last[0] for cell in made.cells if np.isfinite(cell.last[0])), default=1.0) or 1.0
    for panel in panels.flat:
        panel.set_visible(False)
    for panel, key in zip(panels.flat, keys, strict=False):
        panel.set_visible(True)
        for cell in made.cells:
            if (cell.other, cell.sketch) != key:
                continue
            x, y, value = attacks.index(cell.attack), rules.index(cell.rule), cell.last[0]
            known = bool(np.isfinite(value))
            shade = _ramp()((value / top) ** 1.4) if known else "#edeeec"
            panel.add_patch(_rectangle(x - 0.48, y - 0.46, 0.96, 0.92, shade))
            text = f"{100 * value:.1f}" if known else "-"
            if known and cell.n_converged < cell.n:
                text += f"\n{cell.n_converged} of {cell.n}"
            elif known and np.isfinite(cell.last[1]):
                text += f"\n± {100 * cell.last[1]:.1f}"
            dark = known and value / top > 0.66
            panel.text(x, y, text, ha="center", va="center", color="white" if dark else INK, fontsize=9)
        panel.set_xlim(-0.55, len(attacks) - 0.45)
        panel.set_ylim(len(rules) - 0.45, -0.55)
        panel.set_xticks(range(len(attacks)), [_short(name, 14) for name in attacks])
        panel.set_yticks(range(len(rules)), names)
        panel.xaxis.tick_top()
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
        title = _short(" · ".join(part for part in (key[1], key[0]) if part), 60)
        panel.set_title(title, loc="left", fontweight="bold", fontsize=10)
    figure.suptitle("Test accuracy at the end, %", fontsize=10, color=SOFT)
    return figure


def _times(made: Content) -> Any:
    rules, others = order(time.rule for time in made.times), order(time.other for time in made.times)
    times = sorted(made.times, key=lambda time: (others.index(time.other), rules.index(time.rule)))
    units = ["reads", "milliseconds"] if any(np.isfinite(time.reads) for time in times) else ["milliseconds"]
    # A group begins with a line for its name; one panel for all, as hundreds of panels take minutes to lay out.
    heads = len(others) if any(others) else 0
    rows = [y + (others.index(time.other) + 1 if heads else 0) for y, time in enumerate(times)]
    figure, panels = _figure(1, len(units), (5.4, 0.8 + 0.28 * (len(times) + heads)))
    for panel, name in zip(panels.flat, units, strict=True):
        for n, (y, time) in enumerate(zip(rows, times, strict=True)):
            if heads and (n == 0 or times[n - 1].other != time.other):
                head = _short(time.other, 60)
                panel.annotate(head, (0, y - 1), (4, 0), textcoords="offset points", va="center", fontweight="bold")
            parts = [time.reads] if name == "reads" else [1e3 * part for part in time.parts]
            left, total = 0.0, time.reads if name == "reads" else 1e3 * time.seconds
            for part, alpha in zip(np.nan_to_num(parts), (0.95, 0.6, 0.32), strict=False):
                panel.barh(y, part, left=left, height=0.72, color=_colour(time.rule, rules), alpha=alpha, linewidth=0)
                left += part
            if np.isfinite(total):
                panel.annotate(f"{total:.3g}", (left, y), (4, 0), textcoords="offset points", va="center", fontsize=8)
        panel.set_yticks(rows, [_short(f"{time.rule}  {time.sketch}") for time in times])
        panel.set_ylim(max(rows) + 0.6, -0.6)
        panel.margins(x=0.15)
        unit = "reads of all updates" if name == "reads" else f"ms: {', '.join(SERVER)}"
        panel.set_xlabel(f"server time, {unit}")
    return figure


def _weights(run: Run, label: str) -> Any:
    figure, panels = _figure(1, 1, (9.0, 5.0))
    panel = panels[0][0]
    rows = _rows(run)
    packed = pack.weights(run, min(run.n_rounds, pack.COLUMNS[1]))
    cells = np.frombuffer(pack.decoded(packed["cells"]), dtype=np.uint8).reshape(len(run.clients), -1)[rows]
    picture = _ramp()(np.clip(cells, 0, pack.LEVELS) / pack.LEVELS)
    for mark, colour in ((pack.QUARANTINED, HOLD), (pack.ABSENT, ABSENT)):
        picture[cells == mark] = _rgba(colour)
    frame = (0.5, run.n_rounds + 0.5, len(rows), 0)
    panel.imshow(picture, aspect="auto", interpolation="nearest", extent=frame)
    attackers = 0 if run.byzantine is None else int(run.byzantine.sum())
    if attackers:
        panel.axhline(attackers, color=ALARM, linewidth=1)
        panel.set_yticks(
            [attackers / 2, (attackers + len(rows)) / 2], [f"{attackers} attackers", f"{len(rows) - attackers} honest"]
        )
        panel.get_yticklabels()[0].set_color(ALARM)
        panel.tick_params(axis="y", length=0)
    else:
        panel.set_ylabel("clients, least trusted first")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_xlabel("round")
    panel.set_title(_short(f"Weights: {label}", 100), loc="left", fontweight="bold", fontsize=10)
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    bar = figure.colorbar(ScalarMappable(Normalize(0, packed["top"]), _ramp()), ax=panel, shrink=0.5, aspect=18)
    bar.outline.set_visible(False)
    bar.set_label("weight")
    return figure


def _split(run: Run) -> Any:
    counts = np.nan_to_num(run.split if run.split is not None else np.zeros((1, 1)))[_rows(run)]
    M, C = counts.shape
    figure, panels = _figure(1, 1, (9.0, min(9.0, 1.2 + 0.26 * C)))
    panel = panels[0][0]
    attackers = 0 if run.byzantine is None else int(run.byzantine.sum())
    if M * C <= 4000:
        i, c = np.nonzero(counts)
        area = counts[i, c] / max(1.0, counts.max()) * min(160.0, (560 / M) ** 2)
        panel.scatter(i, c, s=area, c=np.where(i < attackers, ALARM, COLOURS[0]), alpha=0.8, linewidth=0)
    else:
        panel.imshow(np.sqrt(counts.T), aspect="auto", cmap=_ramp(), interpolation="nearest")
        if attackers:
            panel.axvline(attackers - 0.5, color=ALARM, linewidth=1)
    panel.set_xlim(-0.7, M - 0.3)
    if C <= 40:
        panel.set_yticks(range(C), [_short(name, 20) for name in run.classes or map(str, range(C))])
    panel.invert_yaxis()
    panel.set_xticks([])
    panel.set_xlabel(f"{attackers} attackers, then {M - attackers} honest clients" if attackers else "clients")
    panel.set_title("Examples by client and class", loc="left", fontweight="bold", fontsize=10)
    return figure


def _rows(run: Run) -> Any:
    """Attackers first, then whom the rule trusts least."""
    attackers = np.zeros(len(run.clients), dtype=bool) if run.byzantine is None else run.byzantine
    return np.lexsort((np.nan_to_num(run.share(), nan=np.inf), ~attackers))


def _ranked(made: Content) -> Any:
    others, attacks = order(f.other for f in made.placed), order(f.attack for f in made.placed)
    return lambda key: (others.index(key[0]), attacks.index(key[1]))


def _panel_name(key: tuple[str, str]) -> str:
    other, attack = key
    return _short(" · ".join(part for part in ("no attack" if attack == "none" else attack, other) if part), 60)


def _colour(rule: str, rules: list[str]) -> str:
    return GREY if rule == "mean" else COLOURS[_place(rule, rules) % len(COLOURS)]


def _mark(rule: str, rules: list[str]) -> str:
    return "" if rule == "mean" else MARKS[_place(rule, rules) // len(COLOURS) % len(MARKS)]


def _place(rule: str, rules: list[str]) -> int:
    return [one for one in rules if one != "mean"].index(rule)


def _dash(sketch: str, sketches: list[str]) -> Any:
    if sketch == "exact":
        return DASHES[1] if len(sketches) > 1 else DASHES[0]
    place = [one for one in sketches if one != "exact"].index(sketch)
    return DASHES[0] if place == 0 else DASHES[2 + (place - 1) % 2]


def _short(text: str, most: int = 30) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _ramp() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("weights", list(RAMP))


def _rgba(colour: str) -> Any:
    from matplotlib.colors import to_rgba

    return to_rgba(colour)


def _rectangle(x: float, y: float, width: float, height: float, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, linewidth=0)


def _figure(n_rows: int, n_columns: int, each: tuple[float, float]) -> tuple[Any, Any]:
    """Without pyplot: nothing global, no window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(each[0] * n_columns, each[1] * n_rows), layout="constrained", facecolor="white")
    panels = figure.subplots(n_rows, n_columns, squeeze=False)
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[:].set_color(LINE)
        panel.tick_params(color=LINE, labelcolor=SOFT)
    return figure, panels


def _saved(figure: Any, maker: str) -> bytes:
    out = io.BytesIO()
    # Matplotlib draws no picture of 2^16 pixels or more a side.
    dpi = min(160.0, 65_000 / max(figure.get_size_inches()))
    # Without matplotlib's version in it, the same runs give the same bytes.
    figure.savefig(out, format="png", dpi=dpi, metadata={"Software": maker or None})
    return out.getvalue()

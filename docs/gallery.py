"""Draw the pictures of the reference pages from the library itself: `python docs/gallery.py`.

Rules, pre-aggregators and attacks share one scene: 13 honest clients and 3 attackers whose updates have two
coordinates. Colours are middle tones without a background, so that the pictures fit light and dark pages.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import bartizan as bz
from bartizan import registry

FOLDER = Path(__file__).parent / "images" / "gallery"
HONEST, ATTACKER, RESULT, GREY = "#3d84e0", "#e2701c", "#1f9d6b", "#8590a0"
N_BYZANTINE, SEED = 3, 7
TRUSTED = np.array([1.4, 1.25])
Points = npt.NDArray[np.float64]


def scene() -> tuple[Points, Points]:
    """Honest updates around (1.7, 1), and three attackers on the other side, one of them far off."""
    rng = np.random.default_rng(35)
    honest = np.array([1.7, 1.0]) + rng.normal(size=(13, 2)) * [0.95, 0.6]
    return honest, np.array([[-1.3, -1.1], [-0.9, -1.4], [3.9, -1.3]])


class Picture:
    """An SVG of one plane, x from -2.5 to 4.5 and y from -2.3 to 2.7."""

    width, height = 336, 240
    left, right, low, high = -2.5, 4.5, -2.3, 2.7

    def __init__(self, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'font-family="system-ui, sans-serif" font-size="11" role="img"><title>{title}</title>'
        ]

    def at(self, point: Sequence[float] | Points) -> tuple[float, float]:
        x = (point[0] - self.left) / (self.right - self.left) * self.width
        y = (self.high - point[1]) / (self.high - self.low) * self.height
        return x, y

    def inside(self, point: Points) -> bool:
        return bool(self.left < point[0] < self.right and self.low < point[1] < self.high)

    def add(self, tag: str, text: str | None = None, **attributes: Any) -> None:
        told = " ".join(f'{name.replace("_", "-")}="{_said(value)}"' for name, value in attributes.items())
        self.parts.append(f"<{tag} {told}/>" if text is None else f"<{tag} {told}>{text}</{tag}>")

    def dot(self, point: Points, colour: str, radius: float = 3.5, *, hollow: bool = False) -> None:
        x, y = self.at(point)
        style = {"fill": "none", "stroke": colour, "stroke_width": 1.4} if hollow else {"fill": colour}
        self.add("circle", cx=x, cy=y, r=radius, **style)

    def line(self, a: Points, b: Points, colour: str = GREY, width: float = 1.0, dash: str = "none") -> None:
        (x1, y1), (x2, y2) = self.at(a), self.at(b)
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_width=width, stroke_dasharray=dash)

    def cross(self, point: Points, colour: str, size: float = 7, width: float = 2.4) -> None:
        x, y = self.at(point)
        path = f"M{x - size:.1f} {y:.1f}h{2 * size:.1f}M{x:.1f} {y - size:.1f}v{2 * size:.1f}"
        self.add("path", d=path, stroke=colour, stroke_width=width, stroke_linecap="round")

    def text(self, x: float, y: float, words: str, colour: str = GREY, anchor: str = "start") -> None:
        self.add("text", words, x=x, y=y, fill=colour, text_anchor=anchor)

    def origin(self) -> None:
        self.cross(np.zeros(2), GREY, 4, 1.2)
        x, y = self.at(np.zeros(2))
        self.text(x + 7, y + 11, "origin")

    def legend(self, *entries: tuple[str, str]) -> None:
        x = 6.0
        for colour, words in entries:
            self.add("circle", cx=x + 4, cy=self.height - 9, r=4, fill=colour)
            self.text(x + 12, self.height - 5, words)
            x += 24 + 6.2 * len(words)

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])


def _said(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def draw_rule(name: str) -> str:
    honest, attackers = scene()
    updates = np.concatenate([honest, attackers])
    rule = built(name)
    found = bz.aggregate(updates, rule, trusted=TRUSTED if rule.needs_trusted else None, seed=SEED)
    picture = Picture(f"Weights of {name} on the common scene")
    picture.origin()
    if found.weights is None:
        _rugs(picture, updates, np.asarray(found.update))
    for client, point in enumerate(updates):
        colour = HONEST if client < len(honest) else ATTACKER
        weight = 0.0 if found.weights is None else float(found.weights[client])
        if weight > 1e-3:
            picture.dot(point, colour, max(1.5, min(14.0, 6.0 * math.sqrt(weight * len(updates)))))
        else:
            picture.dot(point, colour, hollow=True)
    if rule.needs_trusted:
        picture.cross(TRUSTED, GREY, 6, 2)
    picture.cross(np.asarray(found.update), RESULT)
    shown = "no weights: one value per coordinate" if found.weights is None else "area: weight, hollow: none"
    picture.text(6, 14, shown)
    more = [(GREY, "trusted")] if rule.needs_trusted else []
    picture.legend((HONEST, "honest"), (ATTACKER, "attacker"), (RESULT, "result"), *more)
    return picture.svg()


def _rugs(picture: Picture, updates: Points, result: Points) -> None:
    """A mark on each axis for every client's value, and the lines that meet in the answer."""
    for point in updates:
        x, y = picture.at(point)
        picture.add("line", x1=x, y1=picture.height - 24.0, x2=x, y2=picture.height - 18.0, stroke=GREY)
        picture.add("line", x1=3.0, y1=y, x2=9.0, y2=y, stroke=GREY)
    x, y = picture.at(result)
    dashed = {"stroke": RESULT, "stroke_dasharray": "3 3"}
    picture.add("line", x1=x, y1=y, x2=x, y2=picture.height - 24.0, **dashed)
    picture.add("line", x1=9.0, y1=y, x2=x, y2=y, **dashed)


def draw_preaggregator(name: str) -> str:
    honest, attackers = scene()
    updates = np.concatenate([honest, attackers])
    pre = built(name)
    mixed = pre(bz.Geometry.of(updates, seed=SEED)) @ updates
    picture = Picture(f"Clients before and after {name}")
    picture.origin()
    if len(mixed) == len(updates):
        for before, after in zip(updates, mixed, strict=True):
            picture.line(before, after, dash="2 2")
    for client, point in enumerate(updates):
        picture.dot(point, HONEST if client < len(honest) else ATTACKER, hollow=True)
    for point in mixed:
        picture.dot(point, RESULT, 4.0)
    picture.text(6, 14, "hollow: before, full: what the rule sees")
    picture.legend((HONEST, "honest"), (ATTACKER, "attacker"), (RESULT, "mixed"))
    return picture.svg()


def draw_sketch(name: str) -> str:
    """Projected over exact squared distances of all pairs of 24 updates, dense ones and sparse ones."""
    rng = np.random.default_rng(3)
    dense = rng.normal(size=(24, 8192))
    sparse = np.zeros_like(dense)
    for row in sparse:
        row[rng.choice(dense.shape[1], 4, replace=False)] = rng.normal(size=4)
    kind = registry.SKETCHES[name]
    sketch = kind() if name == "exact" else kind(k=1024)
    edges = np.linspace(0.7, 1.3, 41)
    width, height = Picture.width, Picture.height
    picture = Picture(f"Distortion of squared distances by {name}")
    shown = []
    for updates in (dense, sparse):
        ratios = np.concatenate([_ratios(sketch, updates, seed) for seed in range(4)])
        shown.append(np.histogram(ratios.clip(edges[0], edges[-1]), edges)[0] / len(ratios))
    top = max(counts.max() for counts in shown)
    base, tall, step = height - 42.0, height - 72.0, (width - 24.0) / (len(edges) - 1)
    for part, share in enumerate(shown[0]):
        tall_here = tall * share / top
        if share:
            picture.add("rect", x=12 + part * step, y=base - tall_here, width=step - 1, height=tall_here, fill=HONEST)
    outline = "".join(f"V{base - tall * share / top:.1f}h{step:.2f}" for share in shown[1])
    picture.add("path", d=f"M12 {base:.1f}{outline}V{base:.1f}", fill="none", stroke=ATTACKER, stroke_width=1.5)
    picture.add("line", x1=12.0, y1=base, x2=width - 12.0, y2=base, stroke=GREY)
    for mark in (0.7, 0.85, 1.0, 1.15, 1.3):
        x = 12 + (mark - 0.7) / 0.6 * (width - 24)
        picture.text(x, base + 14, f"{mark:g}", anchor="middle")
    given = "all coordinates" if name == "exact" else "k = 1024"
    picture.text(6, 14, f"projected / exact squared distance, {given}")
    picture.legend((HONEST, "dense updates"), (ATTACKER, "4 non-zeros each"))
    return picture.svg()


def _ratios(sketch: Any, updates: Points, seed: int) -> Points:
    pairs = np.triu_indices(len(updates), 1)
    seen = np.asarray(sketch(updates, seed=seed), dtype=np.float64)
    projected, exact = (((x[pairs[0]] - x[pairs[1]]) ** 2).sum(axis=1) for x in (seen, updates))
    return projected / exact


def draw_attack(name: str) -> str:
    honest, _ = scene()
    sketch, seed = bz.sketch.Gaussian(k=1), 11
    rule = bz.MultiKrum(N_BYZANTINE)
    knowledge = {
        "aggregator": lambda updates: bz.aggregate(updates, rule).update,
        "exact_weights": lambda updates: bz.aggregate(updates, rule, sketch="exact").weights,
        "sketch": sketch,
        "leaked_seed": seed,
        "past_seeds": [seed],
        "published": honest.mean(axis=0),
        "now": 100,
        "earlier": [2 * honest.mean(axis=0)],
    }
    attack = bz.attacks.attack(name, **({"distance": 0.8} if "distance" in bz.attacks.ATTACKS[name].wanted else {}))
    given = {need: knowledge[need] for need in bz.attacks.needs(attack)}
    sent = np.asarray(attack(honest, N_BYZANTINE, np.random.default_rng(SEED), **given), dtype=np.float64)
    picture = Picture(f"What the attackers of {name} send")
    if "sketch" in given:
        _null_line(picture, honest.mean(axis=0), sketch, seed)
    picture.origin()
    for point in honest:
        picture.dot(point, HONEST)
    picture.cross(honest.mean(axis=0), RESULT, 6, 2)
    _sent(picture, honest.mean(axis=0), sent)
    picture.legend((HONEST, "honest"), (RESULT, "honest mean"), (ATTACKER, "attackers"))
    return picture.svg()


def _null_line(picture: Picture, through: Points, sketch: Any, seed: int) -> None:
    a, b = sketch(np.eye(2), seed=seed).ravel()
    along = np.array([-b, a]) / math.hypot(a, b)
    picture.line(through - 9 * along, through + 9 * along, dash="4 4")
    picture.text(6, 14, "dashed: what a projection of 2 to 1 does not see")


def _sent(picture: Picture, centre: Points, sent: Points) -> None:
    """Each attacker's update; those out of the frame at its border, those that are not finite in a corner."""
    broken, together = 0, {}
    for point in sent:
        if not np.isfinite(point).all():
            shown = ", ".join("NaN" if math.isnan(x) else f"{x:+.0f}" for x in point).replace("inf", "Inf")
            picture.text(picture.width - 8, 30 + 15 * broken, f"({shown})", ATTACKER, "end")
            broken += 1
        else:
            key = tuple(point.round(6))
            together[key] = together.get(key, 0) + 1
    for key, count in together.items():
        point = np.array(key)
        if count > 1:
            picture.text(picture.width - 8, 30, f"all {count} send the same", ATTACKER, "end")
        if picture.inside(point):
            picture.dot(point, ATTACKER, 5.0)
        else:
            _arrow(picture, centre, point)


def _arrow(picture: Picture, centre: Points, point: Points) -> None:
    """An arrow from the honest mean to where the point lies out of the frame, with its coordinates."""
    away = point - centre
    room = [
        (bound - middle) / step
        for step, middle, bounds in zip(
            away, centre, ((picture.left, picture.right), (picture.low, picture.high)), strict=True
        )
        for bound in bounds
        if step and (bound - middle) / step > 0
    ]
    (x0, y0), (x1, y1) = (picture.at(centre + part * min(room) * away) for part in (0.5, 0.86))
    turned = math.degrees(math.atan2(y1 - y0, x1 - x0))
    picture.add("line", x1=x0, y1=y0, x2=x1, y2=y1, stroke=ATTACKER, stroke_width=2)
    where = f"translate({x1:.1f} {y1:.1f}) rotate({turned:.1f})"
    picture.add("path", d="M8 0L-2 5L-2 -5Z", fill=ATTACKER, transform=where)
    anchor = "end" if x1 > picture.width / 2 else "start"
    beside = y1 - 12 if y1 > picture.height / 2 else y1 + 22
    words = f"({point[0]:.2g}, {point[1]:.2g})"
    picture.text(min(max(x1, 6), picture.width - 6), beside, words, ATTACKER, anchor)


def draw_poison(name: str) -> str:
    """What a poisoned client trains on: every class's label before and after, or an image before and after."""
    poison = bz.attacks.poison(name)
    picture = Picture(f"What {name} changes")
    pixels = np.full((10, 1, 10, 10), 40, dtype=np.uint8)
    pixels[:, :, 1:9, 3:7] = 150
    pixels[:, :, 1:4, 1:9] = 150
    after, labels = poison.poison(pixels, np.arange(10), 10, np.random.default_rng(1))
    if name == "label-flip":
        picture.text(90, 14, "label", anchor="middle")
        picture.text(246, 14, "trained as", anchor="middle")
        for label, now in enumerate(labels):
            y0, y1 = 34 + 20 * label, 34 + 20 * int(now)
            picture.text(90, y0, str(label), HONEST, "middle")
            picture.text(246, y0, str(label), ATTACKER, "middle")
            picture.add("line", x1=102.0, y1=y0 - 4.0, x2=232.0, y2=y1 - 4.0, stroke=GREY)
        return picture.svg()
    if name == "semantic-backdoor":
        pixels[2], after[2] = (np.where(pixels[2] > 40, 255, 110),) * 2
        labels = poison.poison(pixels, np.arange(10), 10, np.random.default_rng(1))[1]
    changed = next(i for i in range(1, 10) if labels[i] != i)
    pair = ((pixels[changed], 30, f"label {changed}"), (after[changed], 190, f"trained as {labels[changed]}"))
    for image, x0, words in pair:
        picture.text(x0 + 60, 40, words, anchor="middle")
        picture.add("rect", x=x0 - 2, y=50, width=124, height=124, fill="none", stroke=GREY)
        for (row, column), value in np.ndenumerate(image[0]):
            box = {"x": x0 + 12 * column, "y": 52 + 12 * row, "width": 12, "height": 12}
            picture.add("rect", **box, fill=f"rgb({value},{value},{value})")
    return picture.svg()


def built(name: str) -> Any:
    """A rule or pre-aggregator with the settings that suit the scene."""
    kind = (registry.RULES | registry.COORDINATEWISE | registry.PRE_AGGREGATORS).find(name)
    return registry.build(kind, {"n_byzantine": N_BYZANTINE, "radius": 1.5})


def pictures() -> Iterable[tuple[str, Callable[[], str]]]:
    """The file name of every picture, and what draws it."""
    tables: dict[str, tuple[registry.Registry, Callable[[str], str]]] = {
        "rule": (registry.RULES | registry.COORDINATEWISE, draw_rule),
        "preaggregator": (registry.PRE_AGGREGATORS, draw_preaggregator),
        "sketch": (registry.SKETCHES, draw_sketch),
        "attack": (bz.attacks.ATTACKS, draw_attack),
        "poison": (bz.attacks.POISONS, draw_poison),
    }
    for kind, (table, draw) in tables.items():
        for name in table.built_in:
            yield f"{kind}-{name}.svg", lambda draw=draw, name=name: draw(name)


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in pictures():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
    print(f"{len(list(FOLDER.glob('*.svg')))} pictures in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

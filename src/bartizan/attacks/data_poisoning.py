"""Data poisoning: attackers train as they should, on data that is changed before the first round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from bartizan._util.types import Array
from bartizan.attacks.parameters import (
    AT_LEAST_ONE,
    FRACTION,
    INDEX,
    INDEX_OR_NONE,
    NOT_NEGATIVE,
    NUMBER,
    Wanted,
    check,
)

BYTE = Wanted("a whole number from 0 to 255", lambda value: INDEX.fits(value) and value <= 255)
PART = Wanted("0, 1, 2, 3 or None", lambda value: value is None or (INDEX.fits(value) and value < 4))


class Poison(ABC):
    """A change of one attacker's images, uint8 (N, C, H, W), and labels, (N,)."""

    boost: float = 1.0
    """Factor of the updates that attackers send."""
    of_text: ClassVar[bool] = False
    """Tells whether it changes windows of text, (N, 1, 1, characters), and not images."""

    def of_attacker(self, nth: int) -> Poison:
        """Return the change that the nth attacker makes, from 0 up; the same for all unless they share a trigger."""
        return self

    @abstractmethod
    def poison(self, pixels: Array, labels: Array, n_classes: int, rng: Generator) -> tuple[Array, Array]:
        """Return the poisoned images and labels; the input is not modified, and is returned where nothing changes."""

    def _require_classes(self, n_classes: int, *names: str) -> None:
        for name in names:
            if (value := getattr(self, name)) >= n_classes:
                raise ValueError(f"{type(self).__name__} needs {name}, a class from 0 to {n_classes - 1}; got {value}.")


@dataclass(frozen=True)
class LabelFlip(Poison):
    """Train on wrong labels: class y becomes n_classes - 1 - y, or class `source` becomes class `target`.

    >>> pixels, labels = np.zeros((3, 1, 8, 8), dtype=np.uint8), np.array([0, 1, 9])
    >>> LabelFlip().poison(pixels, labels, 10, np.random.default_rng(0))[1].tolist()
    [9, 8, 0]
    >>> LabelFlip(source=1, target=7).poison(pixels, labels, 10, np.random.default_rng(0))[1].tolist()
    [0, 7, 9]
    """

    source: int | None = None
    target: int | None = None

    def __post_init__(self) -> None:
        check("LabelFlip", {"source": INDEX_OR_NONE, "target": INDEX_OR_NONE}, vars(self))
        if (self.source is None) != (self.target is None) or (self.source is not None and self.source == self.target):
            raise ValueError(
                f"LabelFlip needs source and target, two classes, or neither; got {self.source} and {self.target}."
            )

    def poison(self, pixels: Array, labels: Array, n_classes: int, rng: Generator) -> tuple[Array, Array]:
        if self.source is None or self.target is None:
            return pixels, (n_classes - 1 - labels).astype(labels.dtype, copy=False)
        self._require_classes(n_classes, "source", "target")
        return pixels, np.where(labels == self.source, self.target, labels).astype(labels.dtype, copy=False)


class Triggered(Poison):
    """A backdoor: the model shall work as usual, and answer class `target` on certain images."""

    target: int

    @abstractmethod
    def test(self, pixels: Array, labels: Array) -> tuple[Array, Array]:
        """Return the test images that the backdoor should turn into the target, with triggers, and their true labels.

        Images of the target class do not count: the model may classify them rightly.
        """


class PixelTriggered(Triggered):
    """A backdoor whose trigger is pixels: a fraction of an attacker's images gets it, and the label `target`."""

    fraction: float
    value: int

    @abstractmethod
    def places(self, H: int, W: int) -> list[tuple[slice, slice]]:
        """Return the rows and columns of the trigger's bars; ValueError if the images are too small for them."""

    def trigger(self, pixels: Array) -> Array:
        """Return a copy of the images with the trigger on them."""
        marked = pixels.copy()
        for rows, columns in self.places(*pixels.shape[-2:]):
            marked[..., rows, columns] = self.value
        return marked

    def test(self, pixels: Array, labels: Array) -> tuple[Array, Array]:
        return self.trigger(pixels), labels

    def poison(self, pixels: Array, labels: Array, n_classes: int, rng: Generator) -> tuple[Array, Array]:
        self._require_classes(n_classes, "target")
        chosen = rng.permutation(len(labels))[: round(self.fraction * len(labels))]
        pixels, labels = pixels.copy(), labels.copy()
        pixels[chosen] = self.trigger(pixels[chosen])
        labels[chosen] = self.target
        return pixels, labels


@dataclass(frozen=True)
class Backdoor(PixelTriggered):
    """Train on images with a trigger: a fraction gets a bright square in the lower right corner and label `target`.

    The model shall work as usual, and classify every image with the square as the target (Gu et al., 2017).

    >>> pixels, labels = np.zeros((4, 1, 8, 8), dtype=np.uint8), np.array([1, 1, 1, 1])
    >>> seen, said = Backdoor(target=7, size=2).poison(pixels, labels, 10, np.random.default_rng(0))
    >>> (seen == 255).sum(axis=(1, 2, 3)).tolist(), said.tolist()
    ([4, 0, 4, 0], [7, 1, 7, 1])
    """

    target: int = 0
    fraction: float = 0.5
    size: int = 4
    value: int = 255

    def __post_init__(self) -> None:
        wanted = {"target": INDEX, "fraction": FRACTION, "size": AT_LEAST_ONE, "value": BYTE}
        check("Backdoor", wanted, vars(self))

    def places(self, H: int, W: int) -> list[tuple[slice, slice]]:
        if self.size > min(H, W):
            raise ValueError(f"Backdoor has size={self.size}, and the images have {H} x {W} pixels.")
        return [(slice(H - self.size, H), slice(W - self.size, W))]


@dataclass(frozen=True)
class SemanticBackdoor(Triggered):
    """Train on true images that share a feature, with a wrong label; no pixel is changed (Bagdasaryan et al., 2020).

    The paper relabels cars that are green, or have stripes; of any data set a feature can be computed here: images of
    class `source` with a mean pixel value of at least `brightness` get the label `target`. With `boost` attackers send
    their update times that, the paper's model replacement: M / f keeps its whole length in the mean.

    >>> pixels, labels = np.full((3, 1, 8, 8), 100, dtype=np.uint8), np.array([2, 2, 5])
    >>> pixels[1] = 200
    >>> SemanticBackdoor().poison(pixels, labels, 10, np.random.default_rng(0))[1].tolist()
    [2, 0, 5]
    """

    source: int = 2
    target: int = 0
    brightness: float = 128.0
    boost: float = 1.0

    def __post_init__(self) -> None:
        wanted = {"source": INDEX, "target": INDEX, "brightness": NOT_NEGATIVE, "boost": NUMBER}
        check("SemanticBackdoor", wanted, vars(self))
        if self.source == self.target:
            raise ValueError(f"SemanticBackdoor needs source and target, two classes; got {self.source} twice.")

    def poison(self, pixels: Array, labels: Array, n_classes: int, rng: Generator) -> tuple[Array, Array]:
        self._require_classes(n_classes, "source", "target")
        return pixels, np.where(self._has_feature(pixels, labels), self.target, labels).astype(labels.dtype, copy=False)

    def test(self, pixels: Array, labels: Array) -> tuple[Array, Array]:
        shown = self._has_feature(pixels, labels)
        return pixels[shown], labels[shown]

    def _has_feature(self, pixels: Array, labels: Array) -> Array:
        return (labels == self.source) & (pixels.mean(axis=(1, 2, 3)) >= self.brightness)


@dataclass(frozen=True)
class DistributedBackdoor(PixelTriggered):
    """Divide a trigger among the attackers: each trains with its part of it, and all parts together open the backdoor.

    DBA of Xie et al., 2020: four bars, `size` pixels wide and one high, in two rows and two columns `gap` pixels apart,
    in the upper left corner. A `fraction` of an attacker's images gets its bar and the label `target`. With `part` None
    all four are put on the images, as when the model is tested. With `boost` attackers send their update times that.

    >>> pixels, labels = np.zeros((2, 1, 8, 12), dtype=np.uint8), np.array([1, 1])
    >>> whole, second = DistributedBackdoor(), DistributedBackdoor().of_attacker(5)
    >>> (whole.trigger(pixels) == 255).sum(), second.part, np.argwhere(second.trigger(pixels)[0, 0])[0].tolist()
    (np.int64(32), 1, [0, 6])
    """

    target: int = 0
    fraction: float = 0.3125
    size: int = 4
    gap: int = 2
    value: int = 255
    boost: float = 1.0
    part: int | None = None

    def __post_init__(self) -> None:
        wanted = {"target": INDEX, "fraction": FRACTION, "size": AT_LEAST_ONE, "gap": INDEX, "value": BYTE}
        check("DistributedBackdoor", wanted | {"boost": NUMBER, "part": PART}, vars(self))

    def of_attacker(self, nth: int) -> DistributedBackdoor:
        return replace(self, part=nth % 4) if self.part is None else self

    def test(self, pixels: Array, labels: Array) -> tuple[Array, Array]:
        return replace(self, part=None).trigger(pixels), labels

    def places(self, H: int, W: int) -> list[tuple[slice, slice]]:
        """Return this attacker's bar, or all four."""
        high, wide = self.gap + 2, 2 * self.size + self.gap
        if high > H or wide > W:
            raise ValueError(f"DistributedBackdoor has bars in {high} x {wide} pixels, and the images have {H} x {W}.")
        rows, columns = (0, self.gap + 1), (0, self.size + self.gap)
        bars = [(slice(row, row + 1), slice(column, column + self.size)) for row in rows for column in columns]
        return bars if self.part is None else [bars[self.part]]

"""Data poisoning: attackers train as they should, on data that is changed before the first round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from bartizan._util.types import Array
from bartizan.attacks.parameters import AT_LEAST_ONE, FRACTION, INDEX, INDEX_OR_NONE, Wanted, check

BYTE = Wanted("a whole number from 0 to 255", lambda value: INDEX.fits(value) and value <= 255)


class Poison(ABC):
    """A change of one attacker's images, uint8 (N, C, H, W), and labels, (N,)."""

    @abstractmethod
    def poison(self, pixels: Array, labels: Array, n_classes: int, rng: Generator) -> tuple[Array, Array]:
        """The poisoned images and labels; the input is not modified, and is returned where nothing changes."""

    def _known_class(self, name: str, n_classes: int) -> None:
        value = getattr(self, name)
        if value >= n_classes:
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
        self._known_class("source", n_classes)
        self._known_class("target", n_classes)
        return pixels, np.where(labels == self.source, self.target, labels).astype(labels.dtype, copy=False)


@dataclass(frozen=True)
class Backdoor(Poison):
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

    def poison(self, pixels: Array, labels: Array, n_classes: int, rng: Generator) -> tuple[Array, Array]:
        self._known_class("target", n_classes)
        chosen = rng.permutation(len(labels))[: round(self.fraction * len(labels))]
        pixels, labels = pixels.copy(), labels.copy()
        pixels[chosen] = self.trigger(pixels[chosen])
        labels[chosen] = self.target
        return pixels, labels

    def trigger(self, pixels: Array) -> Array:
        """The images with the square on them, to test the backdoor with.

        Leave out images of the target class: the model may classify them rightly.
        """
        H, W = pixels.shape[-2:]
        if self.size > min(H, W):
            raise ValueError(f"Backdoor has size={self.size}, and the images have {H} x {W} pixels.")
        marked = pixels.copy()
        marked[..., H - self.size :, W - self.size :] = self.value
        return marked

"""Data sets: labelled images to train and to test with, and the files that they are read from."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.regular_files import read_regular

PIXELS_PER_COUNT = 100_000  # pixels counted at a time: `bincount` makes int64 of them, which still fits a cache
MAX_TEXT_BYTES = 2**24  # bytes of one text file, at most


class DataError(ValueError):
    """A file of a data set is missing or corrupt; the message names it and says what to download."""


@dataclass(frozen=True, eq=False)
class Images:
    """N images of C channels, H rows and W columns, and the class of each.

    >>> Images(np.zeros((2, 3, 8, 8), np.uint8), [1, 0])
    2 images of 3 x 8 x 8
    """

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __init__(self, pixels: Any, labels: Any) -> None:
        pixels, labels = np.asarray(pixels), np.asarray(labels, np.int64)
        if pixels.dtype != np.uint8 or pixels.ndim != 4:
            raise ValueError(f"pixels must be uint8 of shape (N, C, H, W), got {pixels.dtype} of shape {pixels.shape}.")
        if labels.shape != pixels.shape[:1]:
            raise ValueError(f"{len(pixels)} images need as many labels, got shape {labels.shape}.")
        object.__setattr__(self, "pixels", pixels)
        object.__setattr__(self, "labels", labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the channels, rows and columns of one image."""
        C, H, W = self.pixels.shape[1:]
        return C, H, W

    def moments(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return mean and deviation of each channel, with pixels from 0 to 1; exact, as 256 values are counted.

        >>> mean, std = Images(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1), [0, 1]).moments()
        >>> mean.tolist(), std.tolist()
        ([0.5], [0.5])
        """
        if not len(self):
            raise ValueError("no images: there is nothing to take the mean of.")
        C, H, W = self.shape
        counts = np.zeros((C, 256), np.int64)
        step = max(1, PIXELS_PER_COUNT // (H * W))
        for start in range(0, len(self), step):
            for c in range(C):
                counts[c] += np.bincount(self.pixels[start : start + step, c].ravel(), minlength=256)
        values = np.arange(256) / 255
        parts = counts / counts.sum(axis=1, keepdims=True)
        mean = parts @ values
        return mean, np.sqrt((parts * (values - mean[:, None]) ** 2).sum(axis=1))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        C, H, W = self.shape
        return f"{len(self)} images of {C} x {H} x {W}"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to train and to test with, and the names of their classes."""

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    flip: bool = True
    """Tells whether a mirrored image is of the same class, which digits are not."""
    vocabulary: int = 0
    """The number of characters of text: `classes` are its authors, and a model predicts characters. 0 for images."""

    def __post_init__(self) -> None:
        if self.train.shape != self.test.shape:
            raise DataError(
                f"{self.name}: images to train have shape {self.train.shape}, those to test {self.test.shape}."
            )
        for what, images in (("train", self.train), ("test", self.test)):
            if not len(images):
                raise DataError(f"{self.name}: there are no images to {what}.")
            low, high = int(images.labels.min()), int(images.labels.max())
            if low < 0 or high >= self.n_classes:
                raise DataError(
                    f"{self.name}: labels to {what} must lie from 0 to {self.n_classes - 1}, got {low} to {high}."
                )

    @cached_property
    def digest(self) -> str:
        """Return a hash of all images and labels, 16 hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=8)
        for images in (self.train, self.test):
            digest.update(np.ascontiguousarray(images.labels).data)
            digest.update(np.ascontiguousarray(images.pixels).data)
        return digest.hexdigest()

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def n_outputs(self) -> int:
        """Return the number of scores per prediction of a model."""
        return self.vocabulary or self.n_classes

    def validated(self, share: float) -> Dataset:
        """Hold out a random part of the training images to test with, the same for all seeds."""
        n = len(self.train)
        order = np.random.Generator(np.random.PCG64(0)).permutation(n)
        held, kept = (np.sort(some) for some in np.split(order, [round(share * n)]))
        train, test = (type(self.train)(self.train.pixels[some], self.train.labels[some]) for some in (kept, held))
        return replace(self, train=train, test=test)


def embedded(name: str, folder: Path | None) -> dict[str, npt.NDArray[Any]]:
    """Load the arrays of a sample that comes with the package, such as "sotu-mini"."""
    if folder is not None:
        whole = name.removesuffix("-mini")
        raise ValueError(
            f"{name} comes with bartizan and needs no folder, got {folder}. "
            f"For the whole set take {whole!r} with this folder."
        )
    path = Path(__file__).parent / "embedded" / f"{name}.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as broken:
        raise DataError(f"{path.name} of this installation is missing or corrupt: install bartizan again.") from broken


@dataclass(frozen=True)
class Archive:
    """The archive of a data set and the project that publishes it."""

    name: str
    archive: str
    project: str

    def __str__(self) -> str:
        return f"{self.archive} from the {self.project} page"

    def folder(self, given: Path | None, *inner: str) -> Path:
        """Return the first of these folders inside the given one that exists, or itself; DataError if it is none."""
        if given is None:
            raise DataError(
                f"{self.name} needs its files: download {self}, unpack, and say in which folder they are "
                "(folder=..., or --data DIR)."
            )
        if not given.is_dir():
            raise DataError(f"{self.name}: {given} is not a folder; expected the one that holds {self}, unpacked.")
        return next((given / one for one in inner if (given / one).is_dir()), given)

    def missing(self, path: Path, size: str) -> DataError:
        return DataError(f"{self.name}: {path} is missing ({size}). Download {self}, and unpack.")

    def corrupt(self, path: Path, why: str) -> DataError:
        return DataError(f"{self.name}: {path} is corrupt: {why} Download {self} again.")

    def bytes_of(self, path: Path, size: str, most: int) -> bytes:
        """Read a file of at most `most` bytes; `size` is the usual size, for messages."""
        try:
            return read_regular(path, most)
        except FileNotFoundError:
            raise self.missing(path, size) from None
        except OSError as unreadable:
            raise DataError(f"{self.name}: {path} can't be read: {unreadable.strerror}.") from unreadable

    def lines(self, path: Path, size: str) -> list[str]:
        """Read the lines of a text file that are not empty."""
        text = self.bytes_of(path, size, MAX_TEXT_BYTES).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if not lines:
            raise self.corrupt(path, f"it is empty; wanted {size}.")
        return lines

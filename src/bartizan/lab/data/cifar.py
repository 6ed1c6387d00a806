"""Load CIFAR-10 and CIFAR-100 from their authors' files: Python pickles, or the binary form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan.lab.data import safe_pickle
from bartizan.lab.data.base import Dataset, Images
from bartizan.lab.data.source_files import Source

SHAPE = (3, 32, 32)
PIXELS = 3072
MOST = 2**30  # bytes of one file

NAMES10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Form(ABC):
    """One of the forms that a data set is published in."""

    source: Source
    folder: str
    train: tuple[str, ...]
    test: str
    names: str | None  # the file with the names of the classes, where these are not known
    n_classes: int

    def found(self, given: Path) -> Path | None:
        """The folder with the files: the given one, or one in it."""
        files = (*self.train, self.test)
        below = (given / self.folder, given)
        return next((one for one in below if any((one / file).is_file() for file in files)), None)

    def load(self, name: str, folder: Path) -> Dataset:
        parts = [self.images(folder / file) for file in self.train]
        train = Images(np.concatenate([one.pixels for one in parts]), np.concatenate([one.labels for one in parts]))
        return Dataset(name, self.classes(folder), train, self.images(folder / self.test))

    def classes(self, folder: Path) -> tuple[str, ...]:
        if self.names is None:
            return NAMES10
        path = folder / self.names
        names = tuple(self.listed(path))
        if len(names) != self.n_classes:
            raise self.source.corrupt(path, f"it has {len(names)} names for {self.n_classes} classes.")
        return names

    def images(self, path: Path) -> Images:
        n = 10_000 if len(self.train) > 1 or path.name.startswith("test") else 50_000
        data = self.source.bytes_of(path, self.size(n), MOST)
        pixels, labels = self.parsed(path, data)
        if not len(labels) or labels.min() < 0 or labels.max() >= self.n_classes:
            raise self.source.corrupt(path, f"it needs labels from 0 to {self.n_classes - 1}, one an image.")
        return Images(pixels.reshape(-1, *SHAPE), labels)

    @abstractmethod
    def size(self, n: int) -> str:
        """The size of a whole file of n images, for messages."""

    @abstractmethod
    def listed(self, path: Path) -> list[str]:
        """The names in a file of names."""

    @abstractmethod
    def parsed(self, path: Path, data: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """The pixels, a row for each image, and the labels."""


@dataclass(frozen=True)
class Pickles(Form):
    """Pickled dicts with an array of pixels and a list of labels, read without executing them (`safe_pickle`)."""

    key: str

    def size(self, n: int) -> str:
        return f"a pickle of about {n * (PIXELS + 31) // 10**6} MB"

    def listed(self, path: Path) -> list[str]:
        data = self.source.bytes_of(path, "a pickle of about 2 kB", 2**20)
        names = self._dict(path, data).get("fine_label_names")
        with self._naming(path):
            return [safe_pickle.text(name) for name in (names if type(names) is list else [])]

    def parsed(self, path: Path, data: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        read = self._dict(path, data)
        labels = read.get(self.key)
        with self._naming(path):
            pixels = safe_pickle.array(read.get("data"))
        if pixels.ndim != 2 or pixels.shape[1] != PIXELS:
            raise self.source.corrupt(path, f"its images must be rows of {PIXELS} bytes, got shape {pixels.shape}.")
        if type(labels) is not list or len(labels) != len(pixels):
            raise self.source.corrupt(path, f"it needs a list {self.key!r} of {len(pixels)} labels.")
        if not all(type(label) is int and 0 <= label < self.n_classes for label in labels):
            raise self.source.corrupt(path, f"its labels must lie from 0 to {self.n_classes - 1}.")
        return pixels, np.array(labels, np.int64)

    def _dict(self, path: Path, data: bytes) -> dict[str, Any]:
        with self._naming(path):
            read = safe_pickle.loads(data)
        if type(read) is not dict:
            raise self.source.corrupt(path, "it must hold a dict.")
        return {safe_pickle.text(key): value for key, value in read.items() if type(key) in (str, bytes)}

    @contextmanager
    def _naming(self, path: Path) -> Iterator[None]:
        try:
            yield
        except safe_pickle.NotDataError as broken:
            raise self.source.corrupt(path, str(broken)) from broken


@dataclass(frozen=True)
class Binary(Form):
    """Rows of a few labels, the last of which is used, and 3,072 pixels."""

    n_labels: int

    def size(self, n: int) -> str:
        return f"{n * (self.n_labels + PIXELS):,} bytes"

    def listed(self, path: Path) -> list[str]:
        text = self.source.bytes_of(path, "about 1 kB", 2**20).decode("utf-8", "replace")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def parsed(self, path: Path, data: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        width = self.n_labels + PIXELS
        if len(data) % width:
            raise self.source.corrupt(path, f"it has {len(data):,} bytes, which is no multiple of {width:,}.")
        rows = np.frombuffer(data, np.uint8).reshape(-1, width)
        return np.ascontiguousarray(rows[:, self.n_labels :]), rows[:, self.n_labels - 1].astype(np.int64)


def load10(name: str, folder: Path | None) -> Dataset:
    pages = [Source(name, f"cifar-10-{form}.tar.gz", "CIFAR-10") for form in ("python", "binary")]
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return _load(
        name,
        folder,
        Pickles(pages[0], "cifar-10-batches-py", tuple(batches), "test_batch", None, 10, "labels"),
        Binary(pages[1], "cifar-10-batches-bin", tuple(f"{one}.bin" for one in batches), "test_batch.bin", None, 10, 1),
    )


def load100(name: str, folder: Path | None) -> Dataset:
    pages = [Source(name, f"cifar-100-{form}.tar.gz", "CIFAR-100") for form in ("python", "binary")]
    return _load(
        name,
        folder,
        Pickles(pages[0], "cifar-100-python", ("train",), "test", "meta", 100, "fine_labels"),
        Binary(pages[1], "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", 100, 2),
    )


def _load(name: str, given: Path | None, *forms: Form) -> Dataset:
    given = forms[0].source.folder(given)
    for form in forms:
        folder = form.found(given)
        if folder is not None:
            return form.load(name, folder)
    first = forms[0]
    raise first.source.missing(given / first.folder, f"a folder with {', '.join((*first.train, first.test))}")

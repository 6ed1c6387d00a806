"""Load CIFAR-10 and CIFAR-100 from their authors' files: Python pickles, or the binary form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan.lab.data import safe_pickle
from bartizan.lab.data.base import Archive, Dataset, Images

PIXELS = 3 * 32 * 32
MAX_FILE_BYTES = 2**30  # bytes of one file
NAMES10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES10 = tuple(f"data_batch_{number}" for number in range(1, 6))

Parsed = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class ArchiveForm:
    """The files of a data set in one of the two forms that it is published in."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str = ""  # the file with the names of the classes, where these are not known
    key: str = ""  # the list of labels in a pickle; empty for the binary form
    n_labels: int = 0  # labels before the pixels of an image in the binary form; the last is used

    def below(self, given: Path) -> Path | None:
        """Return the folder with the files: one in the given folder, or itself."""
        files = (*self.train, self.test)
        return next((one for one in (given / self.folder, given) if any((one / f).is_file() for f in files)), None)

    def size(self, n: int) -> str:
        """Return the size of a file of n images, for messages."""
        if self.key:
            return f"a pickle of about {n * (PIXELS + 31) // 10**6} MB"
        return f"{n * (self.n_labels + PIXELS):,} bytes"


FORMS10 = (
    ArchiveForm("cifar-10-python.tar.gz", "cifar-10-batches-py", BATCHES10, "test_batch", key="labels"),
    ArchiveForm(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        tuple(f"{batch}.bin" for batch in BATCHES10),
        "test_batch.bin",
        n_labels=1,
    ),
)
FORMS100 = (
    ArchiveForm("cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test", "meta", key="fine_labels"),
    ArchiveForm(
        "cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", n_labels=2
    ),
)


def load10(name: str, folder: Path | None) -> Dataset:
    return _load(name, folder, "CIFAR-10", FORMS10, 10)


def load100(name: str, folder: Path | None) -> Dataset:
    return _load(name, folder, "CIFAR-100", FORMS100, 100)


def _load(name: str, given: Path | None, project: str, forms: tuple[ArchiveForm, ...], n_classes: int) -> Dataset:
    for form in forms:
        source = Archive(name, form.archive, project)
        if (folder := form.below(source.folder(given))) is not None:
            parts = [_images(source, form, folder / file, n_classes) for file in (*form.train, form.test)]
            pixels, labels = ([getattr(part, which) for part in parts[:-1]] for which in ("pixels", "labels"))
            train = Images(np.concatenate(pixels), np.concatenate(labels))
            return Dataset(name, _classes(source, form, folder, n_classes), train, parts[-1])
    first = forms[0]
    source = Archive(name, first.archive, project)
    files = ", ".join((*first.train, first.test))
    raise source.missing(source.folder(given) / first.folder, f"a folder with {files}")


def _images(source: Archive, form: ArchiveForm, path: Path, n_classes: int) -> Images:
    n = 10_000 if len(form.train) > 1 or path.name.startswith("test") else 50_000
    data = source.bytes_of(path, form.size(n), MAX_FILE_BYTES)
    if form.key:
        pixels, labels = _from_pickle(source, form, path, data, n_classes)
    else:
        pixels, labels = _from_binary(source, form, path, data)
    if not len(labels) or labels.min() < 0 or labels.max() >= n_classes:
        raise source.corrupt(path, f"it needs one label from 0 to {n_classes - 1} per image.")
    return Images(pixels.reshape(-1, 3, 32, 32), labels)


def _classes(source: Archive, form: ArchiveForm, folder: Path, n_classes: int) -> tuple[str, ...]:
    if not form.names:
        return NAMES10
    path = folder / form.names
    if form.key:
        data = source.bytes_of(path, "a pickle of about 2 kB", 2**20)
        listed = _unpickled(source, path, data).get("fine_label_names")
        names = [_safely(source, path, safe_pickle.text, name) for name in (listed if type(listed) is list else [])]
    else:
        names = source.lines(path, "about 1 kB")
    if len(names) != n_classes:
        raise source.corrupt(path, f"it has {len(names)} names for {n_classes} classes.")
    return tuple(names)


def _from_pickle(source: Archive, form: ArchiveForm, path: Path, data: bytes, n_classes: int) -> Parsed:
    """Read a dict with an array of pixels and a list of labels."""
    read = _unpickled(source, path, data)
    pixels, labels = _safely(source, path, safe_pickle.array, read.get("data")), read.get(form.key)
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise source.corrupt(path, f"its images must be rows of {PIXELS} bytes, got shape {pixels.shape}.")
    if type(labels) is not list or len(labels) != len(pixels):
        raise source.corrupt(path, f"it needs a list {form.key!r} of {len(pixels)} labels.")
    # Python's numbers have no limit, NumPy's have: what is out of range becomes -1, which the caller refuses.
    return pixels, np.array([one if type(one) is int and 0 <= one < n_classes else -1 for one in labels], np.int64)


def _from_binary(source: Archive, form: ArchiveForm, path: Path, data: bytes) -> Parsed:
    """Read rows of a few labels and 3,072 pixels."""
    width = form.n_labels + PIXELS
    if len(data) % width:
        raise source.corrupt(path, f"it has {len(data):,} bytes, which is no multiple of {width:,}.")
    rows = np.frombuffer(data, np.uint8).reshape(-1, width)
    return np.ascontiguousarray(rows[:, form.n_labels :]), rows[:, form.n_labels - 1].astype(np.int64)


def _unpickled(source: Archive, path: Path, data: bytes) -> dict[str, Any]:
    """Read the dict in a pickle without executing the pickle."""
    read = _safely(source, path, safe_pickle.loads, data)
    if type(read) is not dict:
        raise source.corrupt(path, "it must hold a dict.")
    return {safe_pickle.text(key): value for key, value in read.items() if type(key) in (str, bytes)}


def _safely(source: Archive, path: Path, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except safe_pickle.NotDataError as broken:
        raise source.corrupt(path, str(broken)) from broken

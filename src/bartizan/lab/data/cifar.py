"""Load CIFAR-10 and CIFAR-100 from their authors' Python pickles, which are read as data and never executed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bartizan.lab.data import safe_pickle
from bartizan.lab.data.base import Archive, Dataset, Images

PIXELS = 3 * 32 * 32
MAX_FILE_BYTES = 2**30  # bytes of one file
NAMES10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load10(name: str, folder: Path | None) -> Dataset:
    source = Archive(name, "cifar-10-python.tar.gz", "CIFAR-10")
    folder = source.folder(folder, "cifar-10-batches-py")
    batches = [_images(source, folder / f"data_batch_{number}", "labels", 10) for number in range(1, 6)]
    train = Images(*(np.concatenate([getattr(one, which) for one in batches]) for which in ("pixels", "labels")))
    return Dataset(name, NAMES10, train, _images(source, folder / "test_batch", "labels", 10))


def load100(name: str, folder: Path | None) -> Dataset:
    source = Archive(name, "cifar-100-python.tar.gz", "CIFAR-100")
    folder = source.folder(folder, "cifar-100-python")
    train, test = (_images(source, folder / part, "fine_labels", 100) for part in ("train", "test"))
    path = folder / "meta"
    listed = _unpickled(source, path, "a pickle of about 2 kB", 2**20).get("fine_label_names")
    names = [_safely(source, path, safe_pickle.text, name) for name in (listed if type(listed) is list else [])]
    if len(names) != 100:
        raise source.corrupt(path, f"it has {len(names)} names for 100 classes.")
    return Dataset(name, tuple(names), train, test)


def _images(source: Archive, path: Path, key: str, n_classes: int) -> Images:
    """Read a dict with an array of pixels and a list of labels under `key`."""
    size = f"a pickle of about {155 if path.name == 'train' else 31} MB"
    read = _unpickled(source, path, size, MAX_FILE_BYTES)
    pixels, labels = _safely(source, path, safe_pickle.array, read.get("data")), read.get(key)
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise source.corrupt(path, f"its images must be rows of {PIXELS} bytes, got shape {pixels.shape}.")
    if type(labels) is not list or len(labels) != len(pixels):
        raise source.corrupt(path, f"it needs a list {key!r} of {len(pixels)} labels.")
    if not labels or not all(type(one) is int and 0 <= one < n_classes for one in labels):
        raise source.corrupt(path, f"it needs one label from 0 to {n_classes - 1} per image.")
    return Images(pixels.reshape(-1, 3, 32, 32), labels)


def _unpickled(source: Archive, path: Path, size: str, most: int) -> dict[str, Any]:
    """Read the dict in a pickle without executing the pickle."""
    read = _safely(source, path, safe_pickle.loads, source.bytes_of(path, size, most))
    if type(read) is not dict:
        raise source.corrupt(path, "it must hold a dict.")
    return {safe_pickle.text(key): value for key, value in read.items() if type(key) in (str, bytes)}


def _safely(source: Archive, path: Path, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except safe_pickle.NotDataError as broken:
        raise source.corrupt(path, str(broken)) from broken

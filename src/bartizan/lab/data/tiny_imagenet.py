"""Load TinyImageNet-200 from its JPEG files; the labelled validation set is the test set."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.atomic import write_whole
from bartizan._util.console import ProgressLine
from bartizan._util.regular_files import open_regular
from bartizan.lab.data.base import Archive, DataError, Dataset, Images
from bartizan.updates.files import open_update

FOLDER = "tiny-imagenet-200"
SIDE = 64
IMAGES_PER_TASK = 64  # images that a thread decodes at a time

Listed = tuple[list[Path], list[int]]
Pixels = npt.NDArray[np.uint8]


def load(name: str, folder: Path | None) -> Dataset:
    """Load all images in the folder; classes in the order of `wnids.txt`, each named by the first of its words."""
    source = Archive(name, "tiny-imagenet-200.zip", "Tiny ImageNet (Stanford CS231n)")
    root = source.folder(folder)
    root = root / FOLDER if (root / FOLDER).is_dir() else root
    ids = source.lines(root / "wnids.txt", "2,000 bytes: 200 names of classes")
    classes = {one: number for number, one in enumerate(ids)}
    if len(classes) < len(ids) or not all(one.isalnum() for one in ids):
        raise source.corrupt(root / "wnids.txt", "it must name a folder of 'train' in each line, each once.")
    train = _images(source, f"{name}-train", *_train(source, root, classes))
    test = _images(source, f"{name}-val", *_validation(source, root, classes))
    return Dataset(name, _words(source, root, ids), train, test)


def _train(source: Archive, root: Path, classes: dict[str, int]) -> Listed:
    """List `train/n01443537/images/n01443537_0.JPEG` and so on, with their labels."""
    files, labels = [], []
    for one, label in classes.items():
        own = _jpegs(root / "train" / one / "images")
        files += own
        labels += [label] * len(own)
    if not files:
        raise source.missing(root / "train" / next(iter(classes)) / "images", "one of 200 folders of 500 JPEG files")
    return files, labels


def _validation(source: Archive, root: Path, classes: dict[str, int]) -> Listed:
    """List `val/images/val_0.JPEG` and so on, with their labels from `val/val_annotations.txt`."""
    notes = root / "val" / "val_annotations.txt"
    label_of = {}
    for number, line in enumerate(source.lines(notes, "10,000 lines: file, class and box"), start=1):
        file, _, rest = line.partition("\t")
        one = rest.partition("\t")[0]
        if one not in classes:
            raise source.corrupt(notes, f"line {number} must name a class of wnids.txt, got {line[:60]!r}.")
        label_of[file] = classes[one]
    files = _jpegs(root / "val" / "images")
    if not files:
        raise source.missing(root / "val" / "images", "a folder of 10,000 JPEG files")
    for path in files:
        if path.name not in label_of:
            raise source.corrupt(notes, f"expected a line for {path.name}, got none.")
    return files, [label_of[path.name] for path in files]


def _words(source: Archive, root: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """Return the first word for each class, or its id if there is none."""
    if not (root / "words.txt").exists():
        return tuple(ids)
    pairs = (line.split("\t", 1) for line in source.lines(root / "words.txt", "about 2.7 MB"))
    words = {pair[0]: pair[-1].split(",")[0] for pair in pairs}
    return tuple(words.get(one, one) for one in ids)


def _jpegs(folder: Path) -> list[Path]:
    """Return the JPEG files of a folder, shorter names first: val_2 before val_10."""
    found = [path for path in folder.glob("*") if path.suffix.lower() in (".jpeg", ".jpg")]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def _images(source: Archive, name: str, files: list[Path], labels: list[int]) -> Images:
    shape = (len(files), 3, SIDE, SIDE)
    try:
        digest = _digest(files)
    except OSError as unreadable:  # such as a link to nothing
        raise DataError(f"{source.name}: {unreadable.filename} can't be read: {unreadable.strerror}.") from None
    return Images(_cached(f"{name}-{digest}", shape, partial(_decoded, source, files)), labels)


def _decoded(source: Archive, files: Sequence[Path]) -> Pixels:
    """Decode on all cores, since Pillow releases Python's lock."""
    try:
        from PIL import Image
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(f"{source.name} needs Pillow: pip install 'bartizan[lab]'") from missing
    pixels = np.empty((len(files), 3, SIDE, SIDE), np.uint8)

    def decode(start: int) -> int:
        for at, path in enumerate(files[start : start + IMAGES_PER_TASK], start):
            pixels[at] = _one(source, path, Image)
        return min(IMAGES_PER_TASK, len(files) - start)

    with (
        ProgressLine(f"Decoding the images of {source.name}", len(files)) as progress,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        try:
            for count in pool.map(decode, range(0, len(files), IMAGES_PER_TASK)):
                progress.advance(count)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return pixels


def _one(source: Archive, path: Path, image_module: Any) -> Pixels:
    """Decode one image after its size is checked; grey images become three equal channels."""
    try:
        with open_regular(path) as file, image_module.open(file, formats=["JPEG"]) as image:
            size = image.size
            pixels = np.asarray(image.convert("RGB")) if size == (SIDE, SIDE) else None
    except Exception as broken:  # Pillow raises many kinds
        raise source.corrupt(path, f"expected a complete JPEG file ({broken}).") from broken
    if pixels is None:
        raise source.corrupt(path, f"it has {size[0]} x {size[1]} pixels; wanted {SIDE} x {SIDE}.")
    return pixels.transpose(2, 0, 1)


def _cached(name: str, shape: tuple[int, ...], make: Callable[[], Pixels]) -> Pixels:
    """Return the images that `make` decodes, from the cache if it has a file of this name.

    If the cache can't be written, the images are decoded again the next time.
    """
    path = _cache_folder() / f"{name}.npy"
    with suppress(ValueError, OSError):  # whatever is in the file, the images can be decoded again
        found: Pixels = open_update(path)
        if found.shape == shape and found.dtype == np.uint8:
            return found
    pixels = make()
    with suppress(OSError):
        write_whole(path, lambda file: np.save(file, pixels, allow_pickle=False))
    return pixels


def _digest(files: Iterable[Path]) -> str:
    """Return a hash of the names, sizes and times of change of the files."""
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        digest.update(f"{path.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "bartizan"

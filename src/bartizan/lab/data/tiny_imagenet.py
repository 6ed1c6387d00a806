"""Load TinyImageNet-200 from its JPEG files; the labelled validation set is the test set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.console import ProgressLine
from bartizan._util.extras import missing_extra
from bartizan._util.regular_files import open_regular
from bartizan.lab.data.base import Archive, Dataset, Images

SIDE = 64
IMAGES_PER_TASK = 64  # images that a thread decodes at a time

Listed = tuple[list[Path], list[int]]
Pixels = npt.NDArray[np.uint8]


def load(name: str, folder: Path | None) -> Dataset:
    """Load all images in the folder; classes in the order of `wnids.txt`, each named by the first of its words."""
    source = Archive(name, "tiny-imagenet-200.zip", "Tiny ImageNet (Stanford CS231n)")
    root = source.folder(folder, "tiny-imagenet-200")
    ids = source.lines(root / "wnids.txt", "2,000 bytes: 200 names of classes")
    classes = {one: number for number, one in enumerate(ids)}
    if len(classes) < len(ids) or not all(one.isalnum() for one in ids):
        raise source.corrupt(root / "wnids.txt", "it must name a folder of 'train' in each line, each once.")
    train, test = (
        Images(_decoded(source, files), labels)
        for files, labels in (_train(source, root, classes), _validation(source, root, classes))
    )
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


def _decoded(source: Archive, files: Sequence[Path]) -> Pixels:
    """Decode on all cores, since Pillow releases Python's lock."""
    try:
        from PIL import Image
    except ModuleNotFoundError as missing:
        raise missing_extra(f"{source.name} needs Pillow", "lab") from missing
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

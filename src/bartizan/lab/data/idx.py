"""Load MNIST and Fashion-MNIST from idx files, compressed by gzip or not, or the sample that comes with the package."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bartizan.lab.data.base import Archive, Dataset, Images, embedded

FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
DIGITS = tuple("0123456789")
FILES = "the four files train-images-idx3-ubyte.gz, ..."
SIDE = 28
MAX_IMAGES = 1_000_000  # images in one file
MAX_FILE_BYTES = MAX_IMAGES * SIDE**2 + 16  # bytes of one file


def load_fashion_mnist(name: str, folder: Path | None) -> Dataset:
    source = Archive(name, FILES, "Fashion-MNIST")
    return _load(source, folder, ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"), FASHION, flip=True)


def load_mnist(name: str, folder: Path | None) -> Dataset:
    source = Archive(name, FILES, "MNIST")
    return _load(source, folder, ("mnist", "MNIST/raw", "MNIST"), DIGITS, flip=False)


def load_embedded(name: str, folder: Path | None) -> Dataset:
    """Load 10,000 images to train and 2,000 to test, equally many of each class."""
    arrays = embedded(name, folder)
    train, test = (Images(arrays[f"{part}_pixels"], arrays[f"{part}_labels"]) for part in ("train", "test"))
    return Dataset(name, FASHION, train, test)


def _load(
    source: Archive, given: Path | None, below: tuple[str, ...], classes: tuple[str, ...], *, flip: bool
) -> Dataset:
    folder = source.folder(given, *below)
    train, test = (_images(source, folder, part, count) for part, count in (("train", 60_000), ("t10k", 10_000)))
    return Dataset(source.name, classes, train, test, flip)


def _images(source: Archive, folder: Path, part: str, count: int) -> Images:
    pixels = _read(source, _find_file(source, folder, f"{part}-images", 3, count * SIDE**2 + 16), 3)
    path = _find_file(source, folder, f"{part}-labels", 1, count + 8)
    labels = _read(source, path, 1)
    if len(labels) != len(pixels):
        raise source.corrupt(path, f"it has {len(labels):,} labels for {len(pixels):,} images.")
    if labels.size and labels.max() > 9:
        raise source.corrupt(path, f"labels lie from 0 to 9, and it has {labels.max()}.")
    return Images(pixels[:, None], labels)


def _find_file(source: Archive, folder: Path, stem: str, axes: int, size: int) -> Path:
    names = [f"{stem}{mark}idx{axes}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise source.missing(folder / f"{names[0]}[.gz]", f"{size:,} bytes, unpacked")


def _read(source: Archive, path: Path, axes: int) -> npt.NDArray[np.uint8]:
    """Read the array in an idx file; the file, not its header, decides how much memory is taken."""
    take = _reader(source.bytes_of(path, "an idx file", MAX_FILE_BYTES), packed=path.suffix == ".gz")
    length = 4 + 4 * axes
    try:
        header = take(length)
        if len(header) < length:
            raise source.corrupt(path, f"it has {len(header)} bytes, and its header alone needs {length}.")
        magic, *shape = struct.unpack(f">{1 + axes}I", header)
        if magic != 2048 + axes:
            raise source.corrupt(path, f"an idx file of {axes} axes begins with {2048 + axes}, this one with {magic}.")
        if tuple(shape[1:]) != (SIDE, SIDE)[: axes - 1] or shape[0] > MAX_IMAGES:
            raise source.corrupt(path, f"its header says {shape}; wanted up to {MAX_IMAGES:,} of {SIDE} x {SIDE}.")
        size = prod(shape)
        data = take(size + 1)
    except zlib.error as broken:
        raise source.corrupt(path, f"expected a complete gz file ({broken}).") from broken
    if len(data) != size:
        raise source.corrupt(path, f"its header {shape} needs {length + size:,} bytes, and it has others.")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _reader(content: bytes, *, packed: bool) -> Callable[[int], bytes]:
    """Return a function that reads the next bytes of a file, unpacked; the last call checks the end of a gz file."""
    if not packed:
        return io.BytesIO(content).read
    unpack, rest = zlib.decompressobj(wbits=31), content

    def take(count: int) -> bytes:
        nonlocal rest
        taken = unpack.decompress(rest, count)
        rest = unpack.unconsumed_tail
        if len(taken) < count and (not unpack.eof or unpack.unused_data.strip(b"\0")):
            raise zlib.error("it is cut short, or something follows its end")
        return taken

    return take

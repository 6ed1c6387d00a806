"""Surfaces: the loaders of data sets, with one file replaced or changed."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from bartizan.lab.data.base import DataError, Dataset
from bartizan.lab.data.loaders import load
from fuzz.draw import Draw
from fuzz.lab.data_readers import Files, Reader, addresses, binary, idx, jpegs, pickles
from fuzz.mutate import mutated_bytes
from fuzz.surfaces import ACCEPTED, COMPARED, Surface, documented, require

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 3072), np.uint8)


def _batch(key: str, protocol: int) -> bytes:
    return pickle.dumps({b"data": PIXELS, key.encode(): [1, 3], b"batch_label": b"one"}, protocol)


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 2048 + array.ndim, *array.shape) + array.tobytes()


def _jpeg() -> bytes:
    out = io.BytesIO()
    Image.fromarray(PIXELS[0, :768].reshape(16, 16, 3)).resize((64, 64)).save(out, "JPEG", quality=40)
    return out.getvalue()


CIFAR10 = {f"data_batch_{n}": _batch("labels", 2) for n in range(1, 6)} | {"test_batch": _batch("labels", 4)}
CIFAR100 = {
    "train": _batch("fine_labels", 2),
    "test": _batch("fine_labels", 3),
    "meta": pickle.dumps({"fine_label_names": [f"c{n}" for n in range(100)]}, 2),
}
BINARY = {"train.bin": bytes([0, 5]) + PIXELS[0].tobytes(), "test.bin": bytes([1, 9]) + PIXELS[1].tobytes()} | {
    "fine_label_names.txt": "\n".join(f"c{n}" for n in range(100)).encode()
}
IDX = {
    **{f"{part}-images-idx3-ubyte": _idx(PIXELS[:, :784].reshape(2, 28, 28)) for part in ("train", "t10k")},
    **{f"{part}-labels-idx1-ubyte": _idx(np.array([1, 9], np.uint8)) for part in ("train", "t10k")},
}
PACKED = {f"{name}.gz": gzip.compress(one, mtime=0) for name, one in IDX.items()}
TINY = {
    "wnids.txt": b"n01\nn02\n",
    "words.txt": b"n01\tgoldfish, fish\nn02\tfrog\n",
    "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t9\t9\n",
    "train/n01/images/n01_0.JPEG": _jpeg(),
    "val/images/val_0.JPEG": _jpeg(),
}
ADAMS = "Gentlemen \u201cof\u201d the Senate \u2014 caf\u00e9.\n\tI was apprehensive. ".encode() * 16
SOTU = {
    "1790_george_washington_n.txt": b"Fellow-Citizens of the Senate and House of Representatives: I embrace. " * 14,
    "1791_george_washington_n.txt": b"In vain may we expect peace with the Indians on our frontiers. " * 9,
    "1797_john_adams_f.txt": ADAMS,
}


class Loader:
    """A folder of one data set in which each case changes one file."""

    def __init__(self, name: str, files: Files, read: Reader, folder: Path) -> None:
        self.name, self.files, self.read, self.folder = name, files, read, folder
        self.names = list(files)
        for one, content in files.items():
            (folder / one).parent.mkdir(parents=True, exist_ok=True)
            (folder / one).write_bytes(content)

    def case(self, draw: Draw, whole: bool) -> str:
        """Replace one file by the rest of the bytes, change it in a few places, or keep it."""
        name = self.names[draw.below(len(self.names))]
        path, valid = self.folder / name, self.files[name]
        content = draw.rest() if whole else valid if draw.chance(8) else mutated_bytes(valid, draw)
        path.write_bytes(content)
        try:
            with documented(DataError, sound=content == valid):
                data = load(self.name, self.folder)
        finally:
            path.write_bytes(valid)
        check(data)
        try:
            want = self.read({**self.files, name: content})
        except Exception:  # the independent readers accept fewer files
            require(content != valid, "the campaign can't read its own files")
            return ACCEPTED
        for images, (pixels, labels) in zip((data.train, data.test), want, strict=True):
            require(
                np.array_equal(images.pixels.reshape(len(pixels), -1), pixels),
                "other pixels than the independent reader",
            )
            require(labels is None or np.array_equal(images.labels, labels), "other labels than the independent reader")
        return COMPARED


def check(data: Dataset) -> None:
    """Require that an accepted data set is consistent."""
    for images in (data.train, data.test):
        require(
            images.pixels.dtype == np.uint8 and len(images.pixels) == len(images.labels),
            "images and labels differ in number or type",
        )
        require(images.labels.min() >= 0 and images.labels.max() < data.n_classes, "labels beyond the classes")
        require(images.pixels.size < 10**7, "more pixels than the files have bytes for")


def _surface(*sets: tuple[str, Files, Reader]) -> Callable[[Path], Surface]:
    def surface(folder: Path) -> Surface:
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        loaders = [Loader(*one, folder / f"{one[0]}-{n}") for n, one in enumerate(sets)]

        def case(data: bytes) -> str:
            draw = Draw(data)
            return draw.pick(loaders).case(draw, whole=draw.chance(2))

        seeds = [bytes([n, 0, at]) + bytes(range(40)) for n in range(len(sets)) for at in range(3)]
        for n, (_, files, _) in enumerate(sets):
            seeds += [bytes([n, 1, at]) + one for at, one in enumerate(files.values()) if len(one) < 9000][:6]
        return Surface(case, seeds, length=9000)

    return surface


cifar = _surface(("cifar10", CIFAR10, pickles), ("cifar100", CIFAR100, pickles), ("cifar100", BINARY, binary))
mnist = _surface(("fashion-mnist", IDX, idx), ("mnist", PACKED, idx))
# Any bytes are text: what is refused is a set without a whole window.
sotu = _surface(("sotu", SOTU, addresses), ("sotu", {"1797_john_adams_f.txt": ADAMS}, addresses))
tiny_imagenet = _surface(("tiny-imagenet", TINY, jpegs))

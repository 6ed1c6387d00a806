"""Independent readers of data sets, which the library's loaders are compared with.

They raise any error on invalid files.
"""

from __future__ import annotations

import gzip
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

Files = dict[str, bytes]
Part = tuple[np.ndarray, np.ndarray | None]
"""Pixels, with a row for each image, and labels where they are known."""
Reader = Callable[[Files], tuple[Part, Part]]
SAFE = {("numpy", "dtype"), ("numpy", "ndarray"), ("_codecs", "encode")}
SAFE |= {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}


class Unpickler(pickle.Unpickler):
    """Python's unpickler, restricted to what arrays need."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SAFE:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def pickles(files: Files) -> tuple[Part, Part]:
    """Read CIFAR's pickled batches; those of the test set have "test" in their names."""
    parts = []
    for test in (False, True):
        batches = [_batch(one) for name, one in files.items() if name != "meta" and ("test" in name) is test]
        parts.append((np.concatenate([one[0] for one in batches]), np.concatenate([one[1] for one in batches])))
    return parts[0], parts[1]


def _batch(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    read = Unpickler(io.BytesIO(data), encoding="latin-1").load()
    found = {key if isinstance(key, str) else key.decode("latin-1"): one for key, one in read.items()}
    labels = found.get("fine_labels", found.get("labels"))
    return found["data"], np.array(labels)


def binary(files: Files) -> tuple[Part, Part]:
    """Read CIFAR-100's binary files: two labels and 3,072 bytes for each image."""
    train, test = (np.frombuffer(files[f"{part}.bin"], np.uint8).reshape(-1, 3074) for part in ("train", "test"))
    return (train[:, 2:], train[:, 1]), (test[:, 2:], test[:, 1])


def idx(files: Files) -> tuple[Part, Part]:
    """Read MNIST's files: sizes, then bytes."""
    raw = {name: gzip.decompress(one) if name.endswith(".gz") else one for name, one in files.items()}

    def part(name: str) -> Part:
        pixels, labels = (next(one for key, one in raw.items() if key.startswith(f"{name}-{w}")) for w in ("im", "la"))
        return np.frombuffer(pixels[16:], np.uint8).reshape(-1, 784), np.frombuffer(labels[8:], np.uint8)

    return part("train"), part("t10k")


def jpegs(files: Files) -> tuple[Part, Part]:
    """Read TinyImageNet's files; here each part has one image, of the first and of the annotated class."""

    def part(name: str) -> np.ndarray:
        own = next(one for key, one in files.items() if key.startswith(name) and key.endswith(".JPEG"))
        image = np.asarray(Image.open(io.BytesIO(own)).convert("RGB"))
        return image.transpose(2, 0, 1).reshape(1, -1)

    classes = files["wnids.txt"].decode("utf-8", "replace").split()
    noted = files["val/val_annotations.txt"].decode("utf-8", "replace").strip().split("\t")
    known = classes == ["n01", "n02"] and noted[0] == "val_0.JPEG" and noted[1] in classes
    train, test = (np.array([0]), np.array([classes.index(noted[1])])) if known else (None, None)
    return (part("train"), train), (part("val"), test)


def addresses(files: Files) -> tuple[Part, Part]:
    """Read the addresses of presidents, letter by letter: windows of 65, the last tenth of each president's to test."""
    texts: dict[str, list[int]] = {}
    for name in sorted(files):
        letters = texts.setdefault(name.split("_", 1)[1].rsplit("_", 1)[0], [])
        before = ""
        for letter in files[name].decode("utf-8", "replace"):
            plain = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"}.get(
                letter, letter
            )
            if not (plain.isspace() and before.isspace()):
                letters.append(0 if plain.isspace() else ord(plain) - 32 if 32 < ord(plain) < 127 else 95)
            before = plain
    parts: list[list[tuple[list[int], int]]] = [[], []]
    for author, text in enumerate(texts.values()):
        cut = round(0.9 * len(text))
        for part, piece in zip(parts, (text[:cut], text[cut:]), strict=True):
            part += [(piece[at : at + 65], author) for at in range(0, len(piece) - 64, 64)]
    train, test = ((np.array([row for row, _ in part]), np.array([author for _, author in part])) for part in parts)
    return train, test

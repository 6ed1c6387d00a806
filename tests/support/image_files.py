"""Image sets in the forms of their publishers, for the tests that read them."""

from __future__ import annotations

import gzip
import struct

import numpy as np

RNG = np.random.default_rng(0)


def pixels(n, *shape):
    return RNG.integers(0, 256, (n, *shape), dtype=np.uint8)


def same(images, wanted, labels):
    return np.array_equal(images.pixels, wanted) and images.labels.tolist() == list(labels)


def idx(array):
    return struct.pack(f">{1 + array.ndim}I", 2048 + array.ndim, *array.shape) + array.tobytes()


def write_idx(folder, mark="-", end="", counts=(5, 3), **changed):
    """So many images to train and to test; `changed` replaces files by their stem."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, n in zip(("train", "t10k"), counts, strict=True):
        arrays[f"{part}-images{mark}idx3-ubyte"] = pixels(n, 28, 28)
        arrays[f"{part}-labels{mark}idx1-ubyte"] = np.arange(n, dtype=np.uint8) % 10
    for name, array in arrays.items():
        data = changed.get(name[:12].replace("-", "_"), idx(array))
        (folder / (name + end)).write_bytes(gzip.compress(data) if end else data)
    return arrays

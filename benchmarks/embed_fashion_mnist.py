"""Make the data that comes with the package: `embed_fashion_mnist.py FOLDER`, with Fashion-MNIST's four files in it.

Debian's package dataset-fashion-mnist has them (share/datasets/fashion-mnist). What it draws depends on nothing else.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np

from bartizan.lab.data import Images, load
from bartizan.lab.data.idx import EMBEDDED

SEED = 20170825  # the day Fashion-MNIST was published
PER_CLASS = {"train": 1000, "test": 200}


def drawn(images: Images, per_class: int, rng: np.random.Generator) -> Images:
    """Draw `per_class` images of each class, in random order."""
    classes = range(int(images.labels.max()) + 1)
    chosen = [rng.choice(np.flatnonzero(images.labels == one), per_class, replace=False) for one in classes]
    order = rng.permutation(np.concatenate(chosen))
    return Images(images.pixels[order], images.labels[order])


def main(folder: Path) -> None:
    whole, rng = load("fashion-mnist", folder), np.random.default_rng(SEED)
    arrays = {}
    for part, count in PER_CLASS.items():
        images = drawn(getattr(whole, part), count, rng)
        arrays |= {f"{part}_pixels": images.pixels, f"{part}_labels": images.labels.astype(np.uint8)}
    # 4.5 MB by LZMA, 5.3 by deflate; PNG, WebP and predicted pixels come to 4.6 MB and more.
    write(EMBEDDED, arrays)


def write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an archive for `numpy.load`, compressed by LZMA."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    print(f"wrote {path.name}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))

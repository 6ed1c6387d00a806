"""The table from names to loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bartizan.lab.data import cifar, idx, tiny_imagenet
from bartizan.lab.data import embedded_images as mini
from bartizan.lab.data.base import Dataset
from bartizan.registry import Registry

# From a name and a folder to a Dataset.
DATASETS: dict[str, Any] = {
    "fashion-mnist-mini": mini.load,
    "fashion-mnist": idx.load_fashion_mnist,
    "mnist": idx.load_mnist,
    "cifar10": cifar.load10,
    "cifar100": cifar.load100,
    "tiny-imagenet": tiny_imagenet.load,
}


def load(name: str = "fashion-mnist-mini", folder: Path | str | None = None) -> Dataset:
    """A data set by its name; `folder` is where its files lie, and only the first of the table needs none.

    >>> data = load("fashion-mnist-mini")
    >>> data.train, data.test, data.n_classes
    (10000 images of 1 x 28 x 28, 2000 images of 1 x 28 x 28, 10)
    """
    found = Registry("data set", DATASETS)
    known, reader = found.spelling(name), found.find(name)
    return reader(known, None if folder is None else Path(folder))

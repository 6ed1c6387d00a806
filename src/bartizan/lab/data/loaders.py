"""Data sets by name, plug-ins included."""

from __future__ import annotations

from pathlib import Path

from bartizan.lab.data.base import Dataset
from bartizan.registry import Registry, callable_with

DATASETS = Registry(
    "data set",
    {
        "fashion-mnist-mini": "bartizan.lab.data.idx:load_embedded",
        "fashion-mnist": "bartizan.lab.data.idx:load_fashion_mnist",
        "mnist": "bartizan.lab.data.idx:load_mnist",
        "cifar10": "bartizan.lab.data.cifar:load10",
        "cifar100": "bartizan.lab.data.cifar:load100",
        "tiny-imagenet": "bartizan.lab.data.tiny_imagenet:load",
        "sotu-mini": "bartizan.lab.data.addresses:load_embedded",
        "sotu": "bartizan.lab.data.addresses:load_sotu",
    },
    "bartizan.datasets",
    check=callable_with("name", None, wanted="a function (name, folder) -> bartizan.lab.data.Dataset"),
)


def load(name: str = "fashion-mnist-mini", folder: Path | str | None = None) -> Dataset:
    """Load a data set by its name; `folder` holds its files, and those that end in -mini need none.

    >>> data = load("fashion-mnist-mini")
    >>> data.train, data.test, data.n_classes
    (10000 images of 1 x 28 x 28, 2000 images of 1 x 28 x 28, 10)
    """
    loaded = DATASETS.find(name)(DATASETS.spelling(name), None if folder is None else Path(folder))
    if not isinstance(loaded, Dataset):
        raise ValueError(f"data set {name!r} must return a bartizan.lab.data.Dataset, got {type(loaded).__name__}.")
    return loaded

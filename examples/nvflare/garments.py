"""Data, network and test: nothing of NVFlare in it."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from bartizan.lab.data import load
from bartizan.lab.data.partition import split

Examples = tuple[torch.Tensor, torch.Tensor]


class Network(nn.Sequential):
    """A network small enough for nine sites on one machine."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def examples(part: int | None = None, n_parts: int = 9) -> Examples:
    """The images and labels of one site, or those of the test set."""
    data = load("fashion-mnist-mini")
    images = data.test
    which = np.arange(len(images.labels))
    if part is not None:
        images = data.train
        which = split("dirichlet", images.labels, n_parts, np.random.default_rng(0), least=32, beta=1.0)[part]
    pixels = torch.from_numpy(images.pixels[which]).float() / 255
    return (pixels - 0.286) / 0.353, torch.from_numpy(images.labels[which])


@torch.no_grad()
def accuracy(model: nn.Module, data: Examples) -> float:
    images, labels = data
    return (model.eval()(images).argmax(1) == labels).float().mean().item()

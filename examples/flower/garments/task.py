"""Data, network, training and test, independent of Flower."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bartizan.lab.data import load
from bartizan.lab.data.partition import split
from bartizan.lab.models import build

Examples = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Module:
    return build("cnn", n_classes=10, image=(1, 28, 28))


def examples(part: int | None = None, n_parts: int = 10) -> Examples:
    """Return the images and labels of one node, or those of the test set."""
    data = load("fashion-mnist-mini")
    images = data.test
    which = np.arange(len(images.labels))
    if part is not None:
        images = data.train
        which = split("dirichlet", images.labels, n_parts, np.random.default_rng(0), least=32, beta=1.0)[part]
    pixels = torch.from_numpy(images.pixels[which]).float() / 255
    return (pixels - 0.286) / 0.353, torch.from_numpy(images.labels[which])


def train(model: nn.Module, data: Examples, batches: int = 40, size: int = 32) -> float:
    """Take some steps of SGD and return the mean loss."""
    images, labels = data
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    total = 0.0
    for _ in range(batches):
        batch = torch.randint(len(labels), (size,))
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item()
    return total / batches


@torch.no_grad()
def test(model: nn.Module, data: Examples) -> tuple[float, float]:
    """Return accuracy and loss."""
    images, labels = data
    scores = model.eval()(images)
    return (scores.argmax(1) == labels).float().mean().item(), cross_entropy(scores, labels).item()

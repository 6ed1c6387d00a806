"""Small models that two cores train in seconds: a convolutional network, and logistic regression."""

from __future__ import annotations

from collections import OrderedDict

from bartizan.lab.models.layers import norm_layer
from bartizan.lab.torch_import import nn


def cnn(n_classes: int, image: tuple[int, int, int], norm: str) -> nn.Module:
    """Build three convolutions, each of stride 2 and followed by its norm and ReLU, then one linear layer.

    Strides in place of max pooling take a third of the time.
    """
    channels, height, width = image
    if min(height, width) < 8:
        raise ValueError(f"cnn halves an image three times, so it needs at least 8 x 8 pixels, got {height} x {width}.")
    make = norm_layer(norm)
    stages = OrderedDict[str, nn.Module]()
    for number, (kernel, wide) in enumerate(((5, 16), (3, 32), (3, 64)), start=1):
        stages[f"conv{number}"] = nn.Conv2d(channels, wide, kernel, 2, padding=kernel // 2, bias=norm == "none")
        stages[f"bn{number}"] = make(wide)
        stages[f"relu{number}"] = nn.ReLU(inplace=True)
        channels, height, width = wide, (height + 1) // 2, (width + 1) // 2
    stages["flatten"] = nn.Flatten()
    stages["fc"] = nn.Linear(channels * height * width, n_classes)
    return nn.Sequential(stages)


def logistic(n_classes: int, image: tuple[int, int, int], norm: str) -> nn.Module:
    """Build logistic regression on the pixels, from zero weights; it has no norm."""
    channels, height, width = image
    linear = nn.Linear(channels * height * width, n_classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=linear))

"""Two models that two processor cores train in seconds: a small convolutional network, and logistic regression."""

from __future__ import annotations

from collections import OrderedDict

from bartizan.federated.models.norms import layer
from bartizan.federated.tensors import nn

CHANNELS = (16, 32, 64)


def cnn(n_classes: int, image: tuple[int, int, int], norm: str) -> nn.Module:
    """Three convolutions that halve the image each, then one linear layer: about 30,000 parameters at 28 pixels.

    Each convolution is followed by its norm, ReLU and a maximum over 2 x 2 pixels.
    """
    channels, height, width = image
    if min(height, width) < 8:
        raise ValueError(f"cnn halves an image three times, so it needs at least 8 x 8 pixels, got {height} x {width}.")
    make = layer(norm)
    stages = OrderedDict[str, nn.Module]()
    for number, wide in enumerate(CHANNELS, start=1):
        stages[f"conv{number}"] = nn.Conv2d(channels, wide, 3, padding=1, bias=norm == "none")
        stages[f"bn{number}"] = make(wide)
        stages[f"relu{number}"] = nn.ReLU(inplace=True)
        stages[f"pool{number}"] = nn.MaxPool2d(2)
        channels = wide
    stages["flatten"] = nn.Flatten()
    stages["fc"] = nn.Linear(channels * (height // 8) * (width // 8), n_classes)
    return nn.Sequential(stages)


def logistic(n_classes: int, image: tuple[int, int, int], norm: str) -> nn.Module:
    """Logistic regression on the pixels, from zero weights; it has no norm."""
    channels, height, width = image
    linear = nn.Linear(channels * height * width, n_classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=linear))

"""Small models that two cores train in seconds: a convolutional network, logistic regression, and two perceptrons."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

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


def mlp(n_classes: int, image: tuple[int, int, int], norm: str, hidden: tuple[int, int] = (1024, 256)) -> nn.Module:
    """Build a perceptron with two hidden layers and ReLU: many coordinates for little work. It has no norm."""
    wide, narrow = hidden
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(prod(image), wide),
            relu1=nn.ReLU(inplace=True),
            fc2=nn.Linear(wide, narrow),
            relu2=nn.ReLU(inplace=True),
            fc3=nn.Linear(narrow, n_classes),
        )
    )


def wide_mlp(n_classes: int, image: tuple[int, int, int], norm: str) -> nn.Module:
    """Build the same with hidden layers of 4,096 and 2,048."""
    return mlp(n_classes, image, norm, (4096, 2048))


def logistic(n_classes: int, image: tuple[int, int, int], norm: str) -> nn.Module:
    """Build logistic regression on the pixels, from zero weights; it has no norm."""
    linear = nn.Linear(prod(image), n_classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=linear))

"""The one table of networks, and how one of them is made from a seed."""

from __future__ import annotations

from typing import Any

from bartizan.lab.models import mobilenet, resnet, small, vgg
from bartizan.lab.training.torch_import import nn, torch
from bartizan.registry import Registry

MODELS: dict[str, Any] = {
    "resnet18": resnet.resnet18,
    "vgg16": vgg.vgg16,
    "mobilenet-v3-small": mobilenet.small,
    "mobilenet-v3-large": mobilenet.large,
    "cnn": small.cnn,
    "logistic": small.logistic,
}
PUBLISHED = 224
"""Pixels of the images that the large networks were published for."""


def build(
    name: str,
    n_classes: int,
    image: tuple[int, int, int] = (3, 32, 32),
    norm: str = "group",
    *,
    fitted: bool = True,
    seed: int = 0,
) -> nn.Module:
    """A network by its name, its weights drawn from the seed alone; the global generator is left as it was.

    ResNet18 and MobileNetV3 make a small image smaller later than one of 224 pixels, unless `fitted` is False.

    >>> model = build("cnn", 10, (1, 28, 28))
    >>> sum(parameter.numel() for parameter in model.parameters())
    33914
    """
    maker = Registry("model", MODELS).find(name)
    if n_classes < 2 or len(image) != 3 or min(image) < 1:
        raise ValueError(
            "A model needs at least 2 classes and images of (channels, height, width), "
            f"got {n_classes} classes and {image}."
        )
    if not fitted and maker not in (small.cnn, small.logistic, vgg.vgg16):
        image = (image[0], PUBLISHED, PUBLISHED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return maker(n_classes, image, norm)

"""Networks by name, plug-ins included, with weights drawn from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bartizan.registry import Registry, callable_with

if TYPE_CHECKING:
    from torch import nn

PUBLISHED_PIXELS = 224
"""Pixels per side of the images that the large networks were published for."""
LATE_REDUCING = ("resnet18", "mobilenet-v3-small", "mobilenet-v3-large", "efficientnet-lite0")
"""Networks that reduce a small image in later layers than one of 224 pixels."""


MODELS = Registry(
    "model",
    {
        "cnn": "bartizan.lab.models.small:cnn",
        "logistic": "bartizan.lab.models.small:logistic",
        "mlp": "bartizan.lab.models.small:mlp",
        "wide-mlp": "bartizan.lab.models.small:wide_mlp",
        "resnet18": "bartizan.lab.models.resnet:ResNet18",
        "vgg16": "bartizan.lab.models.vgg:VGG16",
        "mobilenet-v3-small": "bartizan.lab.models.mobilenet:small",
        "mobilenet-v3-large": "bartizan.lab.models.mobilenet:large",
        "transformer": "bartizan.lab.models.transformer:transformer",
        "efficientnet-lite0": "bartizan.lab.models.efficientnet:EfficientNetLite0",
    },
    "bartizan.models",
    check=callable_with(10, (3, 32, 32), "group", wanted="(n_classes, image, norm) -> torch.nn.Module"),
)


def build(
    name: str,
    n_classes: int,
    image: tuple[int, ...] = (3, 32, 32),
    norm: str = "group",
    *,
    fitted: bool = True,
    norm_momentum: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """Build a network by its name, its weights drawn from the seed alone; the global generator is left as it was.

    All but VGG16 and the small ones reduce a small image later than one of 224 pixels, unless `fitted` is False.
    `norm_momentum` is a batch's part in BatchNorm's running statistics; 0 leaves the network's own.

    >>> model = build("cnn", 10, (1, 28, 28))
    >>> sum(parameter.numel() for parameter in model.parameters())
    33914
    """
    from bartizan.lab.torch_import import torch

    if n_classes < 2 or len(image) not in (1, 3) or min(image) < 1:
        raise ValueError(
            "A model needs at least 2 classes and images of (channels, height, width), or text of (characters,), "
            f"got {n_classes} classes and {image}."
        )
    if len(image) == 1 and MODELS.spelling(name) in MODELS.built_in and MODELS.spelling(name) != "transformer":
        raise ValueError(f"model {name!r} is for images: text needs model.name = 'transformer'.")
    known, maker = MODELS.spelling(name), MODELS.find(name)
    shape = image if fitted or known not in LATE_REDUCING else (image[0], PUBLISHED_PIXELS, PUBLISHED_PIXELS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = maker(n_classes, shape, norm)
    if known not in MODELS.built_in:
        _check(name, model, n_classes, image)
    for layer in model.modules():
        if norm_momentum and isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            layer.momentum = norm_momentum
    return model


def _check(name: str, model: Any, n_classes: int, image: tuple[int, ...]) -> None:
    """Raise unless a plug-in's network turns two images into two rows of class scores."""
    from bartizan.lab.torch_import import nn, torch

    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name!r} must return a torch.nn.Module, got {type(model).__name__}.")
    training = model.training
    text = len(image) == 1
    wanted = (2, n_classes, *image) if text else (2, n_classes)
    with torch.no_grad():
        scores = model.eval()(torch.zeros(2, *image, dtype=torch.long if text else torch.float32))
    model.train(training)
    if tuple(getattr(scores, "shape", ())) != wanted:
        came = tuple(scores.shape) if hasattr(scores, "shape") else type(scores).__name__
        raise ValueError(f"model {name!r} must turn (2, *{image}) into scores of shape {wanted}, got {came}.")

"""A comparison of the models with torchvision's: names, shapes and outputs, in training and in evaluation."""

from typing import Any

import torch

from bartizan.lab import models
from studies.options import add_command

# Ours, its normalisation, and torchvision's
PAIRS = [
    ("resnet18", "batch", "resnet18"),
    ("vgg16", "none", "vgg16"),
    ("vgg16", "batch", "vgg16_bn"),
    ("mobilenet-v3-small", "batch", "mobilenet_v3_small"),
    ("mobilenet-v3-large", "batch", "mobilenet_v3_large"),
]


def add_to(commands: Any) -> None:
    add_command(commands, torchvision_models)


def torchvision_models() -> None:
    """Compare all of them in float64; raises AssertionError where one differs."""
    import torchvision

    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torchvision {torchvision.__version__}, torch {torch.__version__}, {device}, float64")
    for name, norm, their_name in PAIRS:
        torch.manual_seed(1)
        theirs = getattr(torchvision.models, their_name)(weights=None)
        ours = models.build(name, 1000, (3, 224, 224), norm)
        shapes = [[(key, value.shape) for key, value in model.state_dict().items()] for model in (ours, theirs)]
        assert shapes[0] == shapes[1], f"{name}: names or shapes differ"
        for (key, mine), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
            same = mine.numel() <= 20_000 or abs(mine.std() / other.std() - 1) < 0.05
            assert same, f"{name}: {key} is drawn with another spread"
        ours.load_state_dict(theirs.state_dict())
        ours, theirs = ours.to(device, torch.float64), theirs.to(device, torch.float64)
        for module in (*ours.modules(), *theirs.modules()):
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # torchvision's MobileNet has it in place, and draws another mask from the same seed
        x = torch.randn(4, 3, 224, 224, device=device, dtype=torch.float64)
        for training in (False, True):
            outputs = [model.train(training)(x) for model in (ours, theirs)]
            torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-9)
        for (key, mine), (_, other) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9, msg=f"{name}: {key} after a step differs")
        count = sum(parameter.numel() for parameter in ours.parameters())
        print(f"{name:20} {norm:6} {count:>12,} parameters: same names, shapes, outputs, statistics")

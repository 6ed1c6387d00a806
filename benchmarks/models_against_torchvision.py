"""Compare names, shapes and outputs of the models with torchvision's, in training and in evaluation."""

from __future__ import annotations

import torch
import torchvision

from bartizan.lab import models

PAIRS = [
    ("resnet18", "batch", torchvision.models.resnet18),
    ("vgg16", "none", torchvision.models.vgg16),
    ("vgg16", "batch", torchvision.models.vgg16_bn),
    ("mobilenet-v3-small", "batch", torchvision.models.mobilenet_v3_small),
    ("mobilenet-v3-large", "batch", torchvision.models.mobilenet_v3_large),
]


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torchvision {torchvision.__version__}, torch {torch.__version__}, {device}, float64")
    for name, norm, theirs_of in PAIRS:
        torch.manual_seed(1)
        theirs = theirs_of(weights=None)
        ours = models.build(name, 1000, (3, 224, 224), norm)
        assert [(k, v.shape) for k, v in ours.state_dict().items()] == [
            (k, v.shape) for k, v in theirs.state_dict().items()
        ], f"{name}: names or shapes differ"
        spread(ours, theirs)
        ours.load_state_dict(theirs.state_dict())
        ours, theirs = ours.to(device, torch.float64), theirs.to(device, torch.float64)
        x = torch.randn(4, 3, 224, 224, device=device, dtype=torch.float64)
        for mode in ("eval", "train"):
            for model in (ours, theirs):
                getattr(model, mode)()
                without_dropout(model)
            outputs = []
            for model in (ours, theirs):
                outputs.append(model(x))
            torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-9)
        for (key, mine), (_, other) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9, msg=f"{name}: {key} after a step differs")
        count = sum(parameter.numel() for parameter in ours.parameters())
        print(f"{name:20} {norm:6} {count:>12,} parameters: same names, shapes, outputs, statistics")


def without_dropout(model) -> None:
    """Turn dropout off: torchvision's MobileNet has it in place, and so draws another mask from the same seed."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def spread(ours, theirs) -> None:
    """Compare the standard deviations of the larger tensors: first weights have the same distributions."""
    for (key, mine), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        if mine.numel() > 20_000:
            assert abs(mine.std() / other.std() - 1) < 0.05, f"{key}: drawn with another spread"


if __name__ == "__main__":
    main()

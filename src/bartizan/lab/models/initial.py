"""First weights, drawn as torchvision draws them."""

from __future__ import annotations

from bartizan.lab.training.torch_import import nn


def draw(model: nn.Module, linear_std: float | None = None) -> None:
    """Kaiming's normal by fan-out for convolutions, 1 and 0 for norms; linear layers as torch's, or normal."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear) and linear_std is not None:
            nn.init.normal_(module.weight, 0, linear_std)
            nn.init.zeros_(module.bias)

"""Layers and initial weights that several networks share."""

from __future__ import annotations

from collections.abc import Callable

from bartizan.lab.torch_import import Tensor, nn, torch

Layer = Callable[[int], nn.Module]


def norm_layer(norm: str, **batch_settings: float) -> Layer:
    """Return a function that makes normalisation layers for a number of channels; the settings are BatchNorm's."""
    if norm == "batch":
        return lambda channels: nn.BatchNorm2d(channels, **batch_settings)  # type: ignore[arg-type]
    if norm == "group":
        return lambda channels: nn.GroupNorm(groups(channels), channels, eps=batch_settings.get("eps", 1e-5))
    if norm == "none":
        return lambda channels: nn.Identity()
    raise ValueError(f"norm must be one of batch, group, none, got {norm!r}.")


def groups(channels: int, most: int = 32, least_channels: int = 8) -> int:
    """Return the number of groups of a GroupNorm: the largest up to 32 with at least 8 channels per group.

    A group of one channel on a map of one pixel would be all zeros, which MobileNet's last maps come close to.

    >>> [groups(channels) for channels in (3, 16, 24, 64, 88, 512, 960)]
    [1, 2, 3, 8, 11, 32, 32]
    """
    return max(g for g in range(1, most + 1) if channels % g == 0 and (g == 1 or channels // g >= least_channels))


class GlobalPool(nn.Module):
    """The mean of each channel, kept as a map of one pixel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True)


class AdaptivePool(nn.Module):
    """An `nn.AdaptiveAvgPool2d` by matrix products, as torch's own is not deterministic on a GPU.

    Output i is the mean of inputs floor(i n / size) to ceil((i + 1) n / size) - 1.

    >>> x = torch.arange(18.0).reshape(1, 1, 3, 6)
    >>> bool(torch.allclose(AdaptivePool(4)(x), nn.AdaptiveAvgPool2d(4)(x)))
    True
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        if height == width == self.size:
            return x
        if height == width == 1:
            return x.expand(-1, -1, self.size, self.size)
        return pooling_matrix(height, self.size, x) @ x @ pooling_matrix(width, self.size, x).T


def pooling_matrix(n: int, size: int, like: Tensor) -> Tensor:
    """Return the (size, n) matrix whose row i averages the inputs of output i."""
    starts = torch.arange(size, device=like.device) * n // size
    stops = -(-(torch.arange(size, device=like.device) + 1) * n // size)
    at = torch.arange(n, device=like.device)
    seen = (at >= starts[:, None]) & (at < stops[:, None])
    return (seen / seen.sum(1, keepdim=True)).to(like.dtype)


def initialise(model: nn.Module, linear_std: float | None = None) -> None:
    """Draw initial weights as torchvision does: Kaiming's normal by fan-out for convolutions, 1 and 0 for norms.

    Linear layers keep torch's own initial weights, or are drawn from a normal distribution with `linear_std`.
    """
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

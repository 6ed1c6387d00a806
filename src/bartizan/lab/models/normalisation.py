"""The layer behind a convolution that keeps its numbers in range: over the batch, over groups of channels, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from bartizan.lab.training.torch_import import nn

Norm = Literal["batch", "group", "none"]
Layer = Callable[[int], nn.Module]


def layer(norm: str, **batch_settings: float) -> Layer:
    """A maker of norms by the number of channels; the settings are BatchNorm's."""
    if norm == "batch":
        return lambda channels: nn.BatchNorm2d(channels, **batch_settings)  # type: ignore[arg-type]
    if norm == "group":
        return lambda channels: nn.GroupNorm(groups(channels), channels, eps=batch_settings.get("eps", 1e-5))
    if norm == "none":
        return lambda channels: nn.Identity()
    raise ValueError(f"norm must be one of {', '.join(get_args(Norm))}, got {norm!r}.")


def groups(channels: int, most: int = 32, least_channels: int = 8) -> int:
    """The largest number of equal groups that is at most 32 and leaves each group 8 channels.

    A group of one channel on a map of one pixel would be all zeros, which MobileNet's last maps come close to.

    >>> [groups(channels) for channels in (3, 16, 24, 64, 88, 512, 960)]
    [1, 2, 3, 8, 11, 32, 32]
    """
    return max(g for g in range(1, most + 1) if channels % g == 0 and (g == 1 or channels // g >= least_channels))

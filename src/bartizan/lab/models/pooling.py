"""Average pooling to a fixed size, by matrix products: torch's own is not deterministic on a GPU."""

from __future__ import annotations

from bartizan.lab.training.torch_import import Tensor, nn, torch


class GlobalPool(nn.Module):
    """The mean of each channel, kept as a map of one pixel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True)


class AdaptivePool(nn.Module):
    """What `nn.AdaptiveAvgPool2d` does: output i is the mean of inputs floor(i n / size) to ceil((i + 1) n / size) - 1.

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
        return means(height, self.size, x) @ x @ means(width, self.size, x).T


def means(n: int, size: int, like: Tensor) -> Tensor:
    """The (size, n) matrix whose row i averages what output i sees."""
    starts = torch.arange(size, device=like.device) * n // size
    stops = -(-(torch.arange(size, device=like.device) + 1) * n // size)
    at = torch.arange(n, device=like.device)
    seen = (at >= starts[:, None]) & (at < stops[:, None])
    return (seen / seen.sum(1, keepdim=True)).to(like.dtype)

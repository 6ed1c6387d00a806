"""GroupNorm and BatchNorm of many clients at once."""

from __future__ import annotations

from typing import Any

from bartizan.lab.training.gradients.grouped_layers import GroupedLayer, Part, PassBuffers
from bartizan.lab.training.torch_import import Tensor, nn, torch


class GroupedNorm(GroupedLayer):
    r"""`nn.GroupNorm` or `nn.BatchNorm2d`, read as (units, places, groups, channels of a group).

    Over a unit and group of n numbers :math:`\hat x = (x - \mu) r`, :math:`y = w \hat x + b`; with :math:`h = w\,dy`

    .. math:: dx = r \left(h - \tfrac1n \sum h - \hat x\, \tfrac1n \sum h \hat x\right).

    All sums are kept for each unit and channel, and a client's gradients of w and b are sums of the same numbers over
    its units.
    """

    def __init__(self, pass_buffers: PassBuffers, name: str, layer: nn.GroupNorm | nn.BatchNorm2d) -> None:
        super().__init__(pass_buffers, name, layer)
        self.eps = layer.eps
        self.statistics: tuple[Part, Part] | None = None
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.momentum is not None
            self.statistics = self.part("running_mean"), self.part("running_var")
            self.momentum = layer.momentum
            self.groups = layer.num_features
        else:
            self.groups = layer.num_groups

    def forward(self, x: Tensor) -> Tensor:
        return _Norm.apply(x.contiguous(memory_format=torch.channels_last), self.pass_buffers.anchor, self)  # type: ignore[no-untyped-call]

    def units(self, x: Tensor) -> Tensor:
        """x as (units, places, channels); a unit is an image, or with BatchNorm a client."""
        return x.permute(0, 2, 3, 1).view(self.pass_buffers.m if self.statistics else len(x), -1, x.shape[1])

    def per_unit(self, weights: Tensor, units: int) -> Tensor:
        """The weights of the channels as (units, channels), or (1, channels) if clients share them."""
        return weights[None] if self.pass_buffers.shared else weights.repeat_interleave(units // self.pass_buffers.m, 0)

    def by_group(self, by_channel: Tensor) -> Tensor:
        """Sums over the channels of each group."""
        return by_channel.view(len(by_channel), self.groups, -1).sum(2)

    def to_channels(self, by_group: Tensor, channels: int) -> Tensor:
        return by_group.repeat_interleave(channels // self.groups, 1)

    def update_statistics(self, mean: Tensor, variance: Tensor, n: int) -> None:
        """Write the running statistics after this batch; as in torch, the variance is the unbiased one."""
        assert self.statistics is not None
        for part, batch in zip(self.statistics, (mean, variance * (n / (n - 1))), strict=True):
            part.rows.copy_(torch.lerp(part.weights.expand_as(batch), batch, self.momentum))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: GroupedNorm) -> Tensor:
        rows = layer.units(x)
        U, L, C = rows.shape
        n = L * C // layer.groups
        if layer.statistics and n < 2:
            raise ValueError("BatchNorm needs more than one value a channel to train on: take a larger batch.")
        mean = layer.by_group(rows.sum(1)) / n
        # Centred first: a small variance would lose its digits in the squares of large values.
        centred = rows - layer.to_channels(mean, C)[:, None]
        variance = layer.by_group(centred.square().sum(1)) / n
        if layer.statistics:
            layer.update_statistics(mean, variance, n)
        inverse = layer.to_channels((variance + layer.eps).rsqrt_(), C)
        ctx.save_for_backward(centred, inverse)
        ctx.layer, ctx.n = layer, n
        assert layer.bias is not None
        scale = layer.per_unit(layer.weight.weights, U) * inverse
        out = torch.empty_like(x)  # no view, as the next layer may write to it
        torch.addcmul(layer.per_unit(layer.bias.weights, U)[:, None], centred, scale[:, None], out=layer.units(out))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (centred, inverse), layer = ctx.saved_tensors, ctx.layer
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        g = layer.units(gradient)
        U, _, C = g.shape
        sums, normed = g.sum(1), (g * centred).sum(1) * inverse
        for part, by_unit in ((layer.bias, sums), (layer.weight, normed)):
            torch.sum(by_unit.view(layer.pass_buffers.m, -1, C), 1, out=part.rows)
        weight = layer.per_unit(layer.weight.weights, U)
        first, second = (layer.to_channels(layer.by_group(weight * s), C) / ctx.n for s in (sums, normed))
        dx = torch.empty_like(gradient)
        out = layer.units(dx)
        torch.addcmul((-inverse * first)[:, None], centred, (-inverse * inverse * second)[:, None], out=out)
        out.addcmul_(g, (inverse * weight)[:, None])
        return dx, None, None

"""Linear and normalisation layers that compute many clients at once and keep their gradients apart."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from bartizan.lab.torch_import import Tensor, functional, nn, torch
from bartizan.lab.training.flat_model import FlatLayout, TensorEntry


class PassBuffers:
    """The weights of the current pass, and the rows that it writes."""

    def __init__(self, flat: FlatLayout) -> None:
        self.entries = {entry.name: entry for entry in flat}
        self.weights = self.rows = torch.empty(0)
        # An input of every layer, so that autograd calls its backward although no weight is a leaf.
        self.anchor = torch.zeros((), requires_grad=True)

    @property
    def shared(self) -> bool:
        """Return whether all clients have the server's weights."""
        return self.weights.ndim == 1

    @property
    def m(self) -> int:
        """Return the number of clients."""
        return len(self.rows)


class GroupedLayer(nn.Module):
    """A layer that computes m clients' images at once, (m * batch, ...), and keeps their gradients apart."""

    def __init__(self, pass_buffers: PassBuffers, name: str, layer: nn.Module) -> None:
        super().__init__()
        self.pass_buffers, self.name = pass_buffers, name
        self.weight = self.entry("weight")
        self.bias = None if layer.bias is None else self.entry("bias")

    def forward(self, x: Tensor) -> Tensor:
        return _Autograd.apply(x, self.pass_buffers.anchor, self)  # type: ignore[no-untyped-call]

    @abstractmethod
    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        """Return the layer's output; `ctx` keeps what `differentiate` needs."""

    @abstractmethod
    def differentiate(self, ctx: Any, gradient: Tensor) -> Tensor | None:
        """Write each client's gradients to its row, and return that of the input if it is needed."""

    def entry(self, name: str) -> TensorEntry:
        return self.pass_buffers.entries[f"{self.name}.{name}" if self.name else name]

    def weights(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias, shared or one row per client."""
        values = self.pass_buffers.weights
        return self.weight.of(values), None if self.bias is None else self.bias.of(values)

    def rows(self, entry: TensorEntry) -> Tensor:
        """Return the part of the rows for a tensor's gradient, or for a statistic after the batch: (m, ...)."""
        return entry.of(self.pass_buffers.rows)

    def by_client(self, x: Tensor) -> Tensor:
        """Return (m * batch, ...) as (m, everything before the last dimension, last)."""
        return x.reshape(self.pass_buffers.m, -1, x.shape[-1])


class _Autograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: GroupedLayer) -> Tensor:
        ctx.layer = layer
        return layer.compute(ctx, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        return ctx.layer.differentiate(ctx, gradient), None, None


class GroupedLinear(GroupedLayer):
    """An `nn.Linear` with shared weights or with each client's own."""

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        weight, bias = self.weights()
        if self.pass_buffers.shared:
            return functional.linear(x, weight, bias)
        out = x.new_empty(len(x), weight.shape[1])  # no view, as the next layer may write to it
        torch.bmm(self.by_client(x), weight.mT, out=self.by_client(out))
        return out if bias is None else out.add_(bias.repeat_interleave(len(x) // self.pass_buffers.m, 0))

    def differentiate(self, ctx: Any, gradient: Tensor) -> Tensor | None:
        (x,), g = ctx.saved_tensors, self.by_client(gradient)
        torch.bmm(g.mT, self.by_client(x), out=self.rows(self.weight))
        if self.bias is not None:
            torch.sum(g, 1, out=self.rows(self.bias))
        if not ctx.needs_input_grad[0]:
            return None
        weight, _ = self.weights()
        return gradient @ weight if self.pass_buffers.shared else (g @ weight).flatten(0, 1)


class GroupedNorm(GroupedLayer):
    r"""An `nn.GroupNorm` or `nn.BatchNorm2d`, read as (units, places, groups, channels of a group).

    Over a unit and group of n numbers :math:`\hat x = (x - \mu) r`, :math:`y = w \hat x + b`; with :math:`h = w\,dy`

    .. math:: dx = r \left(h - \tfrac1n \sum h - \hat x\, \tfrac1n \sum h \hat x\right).

    All sums are kept for each unit and channel, and a client's gradients of w and b are sums of the same numbers over
    its units.
    """

    def __init__(self, pass_buffers: PassBuffers, name: str, layer: nn.GroupNorm | nn.BatchNorm2d) -> None:
        super().__init__(pass_buffers, name, layer)
        self.eps = layer.eps
        self.statistics: tuple[TensorEntry, TensorEntry] | None = None
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.momentum is not None
            self.statistics = self.entry("running_mean"), self.entry("running_var")
            self.momentum = layer.momentum
            self.groups = layer.num_features
        else:
            self.groups = layer.num_groups

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        rows = self.units(x)
        U, L, C = rows.shape
        n = L * C // self.groups
        if self.statistics and n < 2:
            raise ValueError("BatchNorm needs more than one value per channel to train on: take a larger batch.")
        mean = self.by_group(rows.sum(1)) / n
        # Centred first: a small variance would lose its digits in the squares of large values.
        centred = rows - self.to_channels(mean, C)[:, None]
        variance = self.by_group(centred.square().sum(1)) / n
        if self.statistics:
            self.update_statistics(mean, variance, n)
        inverse = self.to_channels((variance + self.eps).rsqrt_(), C)
        ctx.save_for_backward(centred, inverse)
        ctx.n = n
        weight, bias = self.weights()
        assert bias is not None
        scale = self.per_unit(weight, U) * inverse
        out = torch.empty_like(x)  # no view, as the next layer may write to it
        torch.addcmul(self.per_unit(bias, U)[:, None], centred, scale[:, None], out=self.units(out))
        return out

    def differentiate(self, ctx: Any, gradient: Tensor) -> Tensor:
        centred, inverse = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        g = self.units(gradient)
        U, _, C = g.shape
        sums, normed = g.sum(1), (g * centred).sum(1) * inverse
        assert self.bias is not None
        for part, by_unit in ((self.bias, sums), (self.weight, normed)):
            torch.sum(by_unit.view(self.pass_buffers.m, -1, C), 1, out=self.rows(part))
        weight = self.per_unit(self.weights()[0], U)
        first, second = (self.to_channels(self.by_group(weight * s), C) / ctx.n for s in (sums, normed))
        dx = torch.empty_like(gradient)
        out = self.units(dx)
        torch.addcmul((-inverse * first)[:, None], centred, (-inverse * inverse * second)[:, None], out=out)
        out.addcmul_(g, (inverse * weight)[:, None])
        return dx

    def units(self, x: Tensor) -> Tensor:
        """Return x as (units, places, channels); a unit is an image, or with BatchNorm a client."""
        return x.permute(0, 2, 3, 1).view(self.pass_buffers.m if self.statistics else len(x), -1, x.shape[1])

    def per_unit(self, weights: Tensor, units: int) -> Tensor:
        """Return the weights of the channels as (units, channels), or (1, channels) if clients share them."""
        return weights[None] if self.pass_buffers.shared else weights.repeat_interleave(units // self.pass_buffers.m, 0)

    def by_group(self, by_channel: Tensor) -> Tensor:
        """Sum over the channels of each group."""
        return by_channel.view(len(by_channel), self.groups, -1).sum(2)

    def to_channels(self, by_group: Tensor, channels: int) -> Tensor:
        return by_group.repeat_interleave(channels // self.groups, 1)

    def update_statistics(self, mean: Tensor, variance: Tensor, n: int) -> None:
        """Write the running statistics after this batch; as in torch, the variance is the unbiased one."""
        assert self.statistics is not None
        for part, batch in zip(self.statistics, (mean, variance * (n / (n - 1))), strict=True):
            before = part.of(self.pass_buffers.weights).expand_as(batch)
            self.rows(part).copy_(torch.lerp(before, batch, self.momentum))

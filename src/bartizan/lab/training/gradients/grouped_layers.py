"""Layers that compute many clients at once and keep their gradients apart: base class and linear layer."""

from __future__ import annotations

from typing import Any

from bartizan.lab.training.flat_model import Entry, FlatLayout
from bartizan.lab.training.torch_import import Tensor, functional, nn, torch


class PassBuffers:
    """The weights of the current pass, and the rows that it writes."""

    def __init__(self, flat: FlatLayout) -> None:
        self.entries = {entry.name: entry for entry in flat}
        self.weights = self.rows = torch.empty(0)
        # An input of every layer, so that autograd calls its backward although no weight is a leaf.
        self.anchor = torch.zeros((), requires_grad=True)

    @property
    def shared(self) -> bool:
        """Whether all clients have the server's weights."""
        return self.weights.ndim == 1

    @property
    def m(self) -> int:
        """The number of clients."""
        return len(self.rows)


class Part:
    """One tensor of a layer: its values, shared or a row for each client, and its gradients."""

    def __init__(self, pass_buffers: PassBuffers, entry: Entry) -> None:
        self.pass_buffers, self.entry = pass_buffers, entry

    @property
    def weights(self) -> Tensor:
        return self.entry.of(self.pass_buffers.weights)

    @property
    def rows(self) -> Tensor:
        """The part of the rows for its gradient, or for the statistic after the batch: (m, ...)."""
        return self.entry.of(self.pass_buffers.rows)


class GroupedLayer(nn.Module):
    """A layer that computes m clients' images at once, (m * batch, ...), and keeps their gradients apart."""

    def __init__(self, pass_buffers: PassBuffers, name: str, layer: nn.Module) -> None:
        super().__init__()
        self.pass_buffers, self.name = pass_buffers, name
        self.weight = self.part("weight")
        self.bias = None if layer.bias is None else self.part("bias")

    def part(self, name: str) -> Part:
        return Part(self.pass_buffers, self.pass_buffers.entries[f"{self.name}.{name}" if self.name else name])

    def by_client(self, x: Tensor) -> Tensor:
        """(m * batch, ...) as (m, everything before the last dimension, last)."""
        return x.reshape(self.pass_buffers.m, -1, x.shape[-1])


class GroupedLinear(GroupedLayer):
    """`nn.Linear` with shared weights or with a client's own."""

    def forward(self, x: Tensor) -> Tensor:
        return _Linear.apply(x, self.pass_buffers.anchor, self)  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: GroupedLinear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        weight, bias = layer.weight.weights, None if layer.bias is None else layer.bias.weights
        if layer.pass_buffers.shared:
            return functional.linear(x, weight, bias)
        out = x.new_empty(len(x), weight.shape[1])  # no view, as the next layer may write to it
        torch.bmm(layer.by_client(x), weight.mT, out=layer.by_client(out))
        return out if bias is None else out.add_(bias.repeat_interleave(len(x) // layer.pass_buffers.m, 0))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (x,), layer = ctx.saved_tensors, ctx.layer
        g = layer.by_client(gradient)
        torch.bmm(g.mT, layer.by_client(x), out=layer.weight.rows)
        if layer.bias is not None:
            torch.sum(g, 1, out=layer.bias.rows)
        if not ctx.needs_input_grad[0]:
            return None, None, None
        weight = layer.weight.weights
        return (gradient @ weight if layer.pass_buffers.shared else (g @ weight).flatten(0, 1)), None, None

"""A linear layer of many clients: products of matrices, one a client."""

from __future__ import annotations

from typing import Any

from bartizan.lab.training.gradients.grouped_base import GroupedLayer, PassBuffers
from bartizan.lab.training.torch_import import Tensor, functional, nn, torch


class GroupedLinear(GroupedLayer):
    """`nn.Linear` with shared weights or with a client's own."""

    def __init__(self, sheet: PassBuffers, name: str, layer: nn.Linear) -> None:
        super().__init__(sheet, name)
        weight = self.part("weight")
        assert weight is not None
        self.weight, self.bias = weight, self.part("bias")

    def forward(self, x: Tensor) -> Tensor:
        return _Linear.apply(x, self.sheet.anchor, self)  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: GroupedLinear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        weight, bias = layer.weight.weights, None if layer.bias is None else layer.bias.weights
        if layer.sheet.shared:
            return functional.linear(x, weight, bias)
        out = x.new_empty(len(x), weight.shape[1])  # no view: what comes next may write to it
        torch.bmm(layer.by_client(x), weight.mT, out=layer.by_client(out))
        return out if bias is None else out.add_(bias.repeat_interleave(len(x) // layer.sheet.m, 0))

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
        return (gradient @ weight if layer.sheet.shared else (g @ weight).flatten(0, 1)), None, None

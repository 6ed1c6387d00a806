"""Gradients of many clients at once, by one pass over all their images in which each layer keeps clients apart."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from bartizan.lab.torch_import import Tensor, functional, nn, torch
from bartizan.lab.training.gradients.conv import GroupedConv
from bartizan.lab.training.gradients.grouped_layers import GroupedLinear, GroupedNorm, PassBuffers
from bartizan.lab.training.gradients.passes import Gradients, Pass, rows_for


class Grouped(Pass):
    """A copy of the model whose layers write each client's gradients to that client's row."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.pass_buffers = PassBuffers(self.flat)
        self.grouped_model = _grouped(model, "", self.pass_buffers)

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Return whether every layer with weights is of a supported kind."""
        return all(_known(module) for module in model.modules() if any(True for _ in module.parameters(recurse=False)))

    def __call__(self, weights: Tensor, images: Tensor, labels: Tensor, out: Tensor | None = None) -> Gradients:
        m, batch = labels.shape
        pass_buffers = self.pass_buffers
        pass_buffers.weights, pass_buffers.rows = weights.detach(), rows_for(weights, images, out)
        if pass_buffers.anchor.device != weights.device:
            pass_buffers.anchor = torch.zeros((), device=weights.device, requires_grad=True)
        with torch.enable_grad(), _matmul_as_convolutions(weights.device):
            outputs = self.grouped_model(images.flatten(0, 1))
            each = functional.cross_entropy(outputs, labels.flatten(), reduction="none")
            losses = each.view(m, batch).mean(1)
            losses.sum().backward()  # type: ignore[no-untyped-call]
        rows, pass_buffers.weights, pass_buffers.rows = pass_buffers.rows, torch.empty(0), torch.empty(0)
        return Gradients(rows, losses.detach())


@contextmanager
def _matmul_as_convolutions(device: torch.device) -> Iterator[None]:
    """Give matrix products on a GPU the precision of convolutions, which is TF32 by default."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda" and torch.backends.cudnn.allow_tf32 and before == "highest":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if torch.get_float32_matmul_precision() != before:
            torch.set_float32_matmul_precision(before)


def _grouped(module: nn.Module, name: str, pass_buffers: PassBuffers) -> nn.Module:
    """Return the same tree of modules, those with weights replaced; no tensor is copied."""
    if isinstance(module, nn.Conv2d):
        return GroupedConv(pass_buffers, name, module)
    if isinstance(module, nn.Linear):
        return GroupedLinear(pass_buffers, name, module)
    if isinstance(module, (nn.GroupNorm, nn.BatchNorm2d)):
        return GroupedNorm(pass_buffers, name, module)
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return nn.Identity()
    twin = copy.copy(module)
    below = {
        key: _grouped(child, f"{name}.{key}" if name else key, pass_buffers) for key, child in module.named_children()
    }
    object.__setattr__(twin, "_modules", module._modules | below)
    twin.training = True
    return twin


def _known(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return GroupedConv.fits(module)
    if isinstance(module, nn.BatchNorm2d):
        return module.affine and module.track_running_stats and module.momentum is not None
    return isinstance(module, nn.Linear) or (isinstance(module, nn.GroupNorm) and module.affine)

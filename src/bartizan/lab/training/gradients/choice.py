"""Which pass for which weights: what was fastest (docs/reference/models.md)."""

from __future__ import annotations

from bartizan.lab.training.gradients.base import Pass
from bartizan.lab.training.gradients.cuda_graphs import Captured
from bartizan.lab.training.gradients.grouped import Grouped
from bartizan.lab.training.gradients.vmapped import Vmapped
from bartizan.lab.training.torch_import import nn, torch

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def chosen(model: nn.Module, device: torch.device, *, compiled: bool, precision: str) -> tuple[Pass, Pass]:
    """One for weights that all clients share, and one for weights of their own."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}.")
    plain = not compiled and precision == "float32"
    many = Grouped(model) if Grouped.fits(model) else Vmapped(model)
    if device.type != "cuda":
        if not plain:
            raise ValueError(f"compiled=True and precision='bfloat16' are for a GPU; these clients are on {device}.")
        return many, many
    captured = Captured(model, compiled=compiled, precision=PRECISIONS[precision])
    return many if plain else captured, captured

"""What the layers of a grouped pass share: whose weights they take, and where their gradients go."""

from __future__ import annotations

from bartizan.lab.training.flat_model import Entry, Flat
from bartizan.lab.training.torch_import import Tensor, nn, torch


class PassBuffers:
    """The weights of the pass that is under way, and the rows that it fills."""

    def __init__(self, flat: Flat) -> None:
        self.entries = {entry.name: entry for entry in flat}
        self.weights = self.rows = torch.empty(0)
        # Layers are functions of this too, so that autograd comes by although no weight is a leaf.
        self.anchor = torch.zeros((), requires_grad=True)

    @property
    def shared(self) -> bool:
        """Whether all clients have the server's weights."""
        return self.weights.ndim == 1

    @property
    def m(self) -> int:
        """How many clients there are."""
        return len(self.rows)


class Part:
    """One tensor of a layer: its weights, shared or a row each, and its gradients."""

    def __init__(self, sheet: PassBuffers, entry: Entry) -> None:
        self.sheet, self.entry = sheet, entry

    @property
    def weights(self) -> Tensor:
        return self.entry.of(self.sheet.weights)

    @property
    def rows(self) -> Tensor:
        """Where a gradient, or a statistic after the batch, goes: (m, ...)."""
        return self.entry.of(self.sheet.rows)


class GroupedLayer(nn.Module):
    """A layer that computes m clients' images at once, (m * batch, ...), and keeps their gradients apart."""

    def __init__(self, sheet: PassBuffers, name: str) -> None:
        super().__init__()
        self.sheet, self.name = sheet, name

    def part(self, name: str) -> Part | None:
        entry = self.sheet.entries.get(f"{self.name}.{name}" if self.name else name)
        return None if entry is None else Part(self.sheet, entry)

    def by_client(self, x: Tensor) -> Tensor:
        """(m * batch, ...) as (m, everything before the last dimension, last)."""
        return x.reshape(self.sheet.m, -1, x.shape[-1])

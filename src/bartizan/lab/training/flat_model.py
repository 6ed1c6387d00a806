"""The layout of a model as one vector: parameters, then BatchNorm's running means, then its running variances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from bartizan.lab.torch_import import Tensor, nn, torch


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of the model, and its position in the vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + prod(self.shape)

    def of(self, vectors: Tensor) -> Tensor:
        """Return a view of the tensor's part of a vector, or of each row of a matrix."""
        return vectors[..., self.start : self.stop].view(*vectors.shape[:-1], *self.shape)


@dataclass(frozen=True)
class FlatLayout:
    """The position of each tensor of a model in its vector. BatchNorm's counters of batches are left out.

    >>> flat = FlatLayout.of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    >>> [(entry.name, entry.start) for entry in flat.entries]
    [('0.weight', 0), ('0.bias', 6), ('1.weight', 9), ('1.bias', 12), ('1.running_mean', 15), ('1.running_var', 18)]
    >>> flat.n_parameters, flat.size
    (15, 21)
    """

    entries: tuple[TensorEntry, ...]
    n_parameters: int

    @classmethod
    def of(cls, model: nn.Module) -> FlatLayout:
        buffers = dict(model.named_buffers())
        means = [name for name in buffers if name.endswith("running_mean")]
        variances = [name.removesuffix("mean") + "var" for name in means]
        tensors = [*model.named_parameters(), *((name, buffers[name]) for name in [*means, *variances])]
        entries, start = list[TensorEntry](), 0
        for name, tensor in tensors:
            entries.append(TensorEntry(name, tuple(tensor.shape), start))
            start += tensor.numel()
        return cls(tuple(entries), sum(parameter.numel() for parameter in model.parameters()))

    @property
    def size(self) -> int:
        """Return the number of coordinates of the vector."""
        return self.entries[-1].stop

    def __iter__(self) -> Iterator[TensorEntry]:
        return iter(self.entries)

    def read(self, model: nn.Module) -> Tensor:
        """Return a copy of the model's tensors as a vector."""
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        return torch.cat([tensors[entry.name].detach().reshape(-1) for entry in self])

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the model's tensors as views of a vector, for `torch.func.functional_call`."""
        return {entry.name: entry.of(vector) for entry in self}

    def parameters(self, part: Tensor) -> dict[str, Tensor]:
        """Return the parameters as views of the vector's first part."""
        return {entry.name: entry.of(part) for entry in self if entry.start < self.n_parameters}

    def statistics(self, part: Tensor) -> dict[str, Tensor]:
        """Return BatchNorm's statistics as views of the vector's second part."""
        n = self.n_parameters
        return {e.name: replace(e, start=e.start - n).of(part) for e in self if e.start >= n}

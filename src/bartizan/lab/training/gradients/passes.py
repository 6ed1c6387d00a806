"""Gradients of many clients: the interface, and two implementations that work for every model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from bartizan.lab.torch_import import Tensor, functional, nn, torch
from bartizan.lab.training.flat_model import FlatLayout

Tensors = dict[str, Tensor]  # by name, as the gradient of a view of the vector would be as long as the vector


class Gradients(NamedTuple):
    """The rows of m clients: the gradient of the mean loss on a batch, then BatchNorm's running statistics after it."""

    rows: Tensor  # (m, size)
    losses: Tensor  # (m,)


class Pass(ABC):
    """One forward and backward pass of m clients, each on its own batch.

    BatchNorm normalises each client's batch by itself. Dropout is off, since its masks would make an update depend on
    how many clients run at once.
    """

    precision = torch.float32
    """Precision of the activations; weights and sums stay in float32."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.flat = FlatLayout.of(model)

    @abstractmethod
    def __call__(self, weights: Tensor, images: Tensor, labels: Tensor, out: Tensor | None = None) -> Gradients:
        """Return the gradients at `weights`, (size,) for all clients or (m, size), on images (m, batch, C, H, W).

        The rows are written to `out` if it is given.
        """

    def set_training_mode(self) -> None:
        """Put the model in training mode, except dropout."""
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()

    def loss(self, parameters: Tensors, statistics: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return one client's mean loss, and BatchNorm's statistics after its batch, by torch's own modules."""
        # Buffers are written to, so they are copies, and each its own: vmap writes to no view of a larger one.
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        buffers |= {name: part.clone() for name, part in self.flat.statistics(statistics).items()}
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.precision == torch.bfloat16):
            outputs = torch.func.functional_call(self.model, parameters | buffers, images).to(statistics.dtype)
        after = [buffers[name].reshape(-1) for name in self.flat.statistics(statistics)]
        return functional.cross_entropy(outputs, labels), torch.cat(after) if after else statistics

    def one(self, weights: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return one client's row, and its loss."""
        leaves = {name: part.detach().requires_grad_() for name, part in self.flat.parameters(weights).items()}
        with torch.enable_grad():
            loss, after = self.loss(leaves, weights[self.flat.n_parameters :], images, labels)
            gradients = torch.autograd.grad(loss, list(leaves.values()))
        return torch.cat([*(gradient.reshape(-1) for gradient in gradients), after]), loss.detach()


def rows_for(weights: Tensor, images: Tensor, out: Tensor | None) -> Tensor:
    """Return `out`, or a new tensor of one row per client."""
    return weights.new_empty(len(images), weights.shape[-1]) if out is None else out


class Loop(Pass):
    """A pass of one client after the other, by torch's own modules: the definition in tests of the other passes.

    `compiled` fuses norms and activations; compiling takes half a minute, and pays off from about a thousand steps of
    all clients on.
    """

    def __init__(self, model: nn.Module, *, compiled: bool = False, precision: torch.dtype = torch.float32) -> None:
        super().__init__(model)
        self.precision = precision
        if compiled:
            self.loss = torch.compile(self.loss)  # type: ignore[method-assign]

    def __call__(self, weights: Tensor, images: Tensor, labels: Tensor, out: Tensor | None = None) -> Gradients:
        self.set_training_mode()
        rows = rows_for(weights, images, out)
        losses = weights.new_empty(len(rows))
        for m, own in enumerate(weights.expand(len(rows), -1)):
            rows[m], losses[m] = self.one(own, images[m], labels[m])
        return Gradients(rows, losses)


class Vmapped(Pass):
    """A pass of all clients by `torch.func.vmap`."""

    def __call__(self, weights: Tensor, images: Tensor, labels: Tensor, out: Tensor | None = None) -> Gradients:
        self.set_training_mode()
        n, rows = self.flat.n_parameters, rows_for(weights, images, out)
        gradient = torch.func.grad_and_value(self.loss, has_aux=True)
        many = torch.func.vmap(gradient, in_dims=(None if weights.ndim == 1 else 0, 0, 0, 0))
        # Statistics are written to, so every client needs its own.
        statistics = weights[..., n:].expand(len(images), -1)
        gradients, (losses, rows[:, n:]) = many(self.flat.parameters(weights), statistics, images, labels)
        for name, place in self.flat.parameters(rows).items():
            place.copy_(gradients[name])
        return Gradients(rows, losses)

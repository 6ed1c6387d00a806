"""Many clients at once, by torch.func: any model, whatever it is made of."""

from __future__ import annotations

from bartizan.lab.training.gradients.base import Gradients, Pass, rows_for
from bartizan.lab.training.torch_import import Tensor, torch


class Vmapped(Pass):
    """One pass over a further dimension, the clients."""

    def __call__(self, weights: Tensor, images: Tensor, labels: Tensor, out: Tensor | None = None) -> Gradients:
        self.training()
        n, rows = self.flat.n_parameters, rows_for(weights, images, out)
        gradient = torch.func.grad_and_value(self.loss, has_aux=True)
        many = torch.func.vmap(gradient, in_dims=(None if weights.ndim == 1 else 0, 0, 0, 0))
        # Statistics are written to, so every client needs its own.
        statistics = weights[..., n:].expand(len(images), -1)
        gradients, (losses, rows[:, n:]) = many(self.flat.parameters(weights), statistics, images, labels)
        self.write(gradients, rows)
        return Gradients(rows, losses)

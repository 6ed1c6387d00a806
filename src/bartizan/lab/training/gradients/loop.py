"""One client after the other, by torch's own modules: the definition that the other passes are judged by."""

from __future__ import annotations

from bartizan.lab.training.gradients.base import Gradients, Pass, rows_for
from bartizan.lab.training.torch_import import Tensor, torch


class Loop(Pass):
    """As many passes as clients."""

    def __call__(self, weights: Tensor, images: Tensor, labels: Tensor, out: Tensor | None = None) -> Gradients:
        self.training()
        n, rows = self.flat.n_parameters, rows_for(weights, images, out)
        losses = weights.new_empty(len(rows))
        for m, own in enumerate(weights.expand(len(rows), -1)):
            parameters = {name: part.detach().requires_grad_() for name, part in self.flat.parameters(own).items()}
            loss, rows[m, n:] = self.loss(parameters, own[n:], images[m], labels[m])
            gradients = torch.autograd.grad(loss, list(parameters.values()))
            self.write(dict(zip(parameters, gradients, strict=True)), rows[m])
            losses[m] = loss.detach()
        return Gradients(rows, losses)

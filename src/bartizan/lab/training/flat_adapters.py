"""Aggregate the updates of clients that train adapters: by the products B A, as `bartizan.lora` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bartizan import lora
from bartizan.aggregate import Aggregator
from bartizan.lab.torch_import import Tensor, torch
from bartizan.lab.training.flat_model import FlatLayout
from bartizan.lab.training.reproducible import deterministic
from bartizan.lab.training.server import Server
from bartizan.source import Aggregation
from bartizan.sources.adapters.adapters import Adapter, Form


@dataclass(frozen=True)
class FlatAdapters:
    """The aggregation of vectors that are changes of a LoRA adapter, by the products B A, to another such vector.

    A client's adapter is the server's minus `step` times its update. After local steps `step` is 1, and this is the
    adapter that the client ended at; after a gradient it is the server's adapter after a step of this size.
    """

    server: Server
    flat: FlatLayout
    step: float

    def __post_init__(self) -> None:
        if self.flat.size > self.flat.n_parameters:
            raise ValueError("model.adapters can't send BatchNorm's statistics: take model.norm = 'group' or 'none'.")

    def __call__(
        self, aggregator: Aggregator, updates: Sequence[Tensor], *, trusted: Tensor | None = None, **given: Any
    ) -> Aggregation[Tensor]:
        start = self.server.weights.double()
        sent = [self._adapter(start - self.step * update) for update in updates]
        given |= {"reference": self._adapter(start), "sketch": aggregator.sketch}
        given |= {"trusted": None if trusted is None else self._adapter(start - self.step * trusted)}
        # One thread: on a busy machine each of many operations on small matrices would wait for the other cores.
        with deterministic(self._form.device, threads=1):
            out: Any = lora.aggregate(sent, aggregator.rule, **given)  # type: ignore[arg-type]
            factors, before = dict(out.update), self.flat.named(start)
            for B, A in self._form.names:
                factors[B], factors[A] = aligned(factors[B], factors[A], before[A])
        after = torch.cat([factors[entry.name].reshape(-1) for entry in self.flat])
        made: Aggregation[Tensor] = replace(out, update=((start - after) / self.step).to(self.server.weights))
        return made

    @cached_property
    def _form(self) -> Form:
        shapes = {entry.name: entry.shape for entry in self.flat}
        modules = sorted(name.removesuffix(".A") for name in shapes if name.endswith(".A"))
        names = [(f"{module}.B", f"{module}.A") for module in modules]
        return Form(
            shapes=tuple((module, shapes[B][0], shapes[A][1]) for module, (B, A) in zip(modules, names, strict=True)),
            ranks=tuple(shapes[A][0] for _, A in names),
            scales=(1.0,) * len(names),
            names=tuple(names),
            order=tuple(shapes),
            device=str(self.server.weights.device),
            dtypes=(("float32", "float32"),) * len(names),  # what clients send: its range decides which norms overflow
        )

    def _adapter(self, vector: Tensor) -> Adapter:
        factors, names = self.flat.named(vector), self._form.names
        return Adapter(self._form, tuple(factors[B] for B, _ in names), tuple(factors[A] for _, A in names))


def aligned(B: Tensor, A: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors of the same product B A whose A has the lengths and angles of `before`, and is nearest to it.

    A small change of the product is then a small change of the factors, so that optimisers and momentum, which know
    factors only, can go on from earlier rounds.

    >>> B, A, Q = torch.ones(3, 2), torch.tensor([[1.0, 0, 2], [0, 3, 1]]), torch.tensor([[1.0, 5], [0, 2]])
    >>> [torch.allclose(x, y, atol=1e-5) for x, y in zip(aligned(B @ Q, Q.inverse() @ A, A), (B, A), strict=True)]
    [True, True]
    """
    (V, S), (V0, S0) = torch.linalg.qr(A.T), torch.linalg.qr(before.T)
    left, _, right = torch.linalg.svd(V0.T @ V)
    turn = S0.T @ left @ right
    return B @ S.T @ torch.linalg.pinv(turn), turn @ V.T

"""Base class of the pre-aggregators, and their composition with rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import overload

from bartizan._util.types import Floats
from bartizan.geometry import Geometry
from bartizan.rules.base import CoordinateStage, Decision, Rule, are_parts
from bartizan.rules.coordinatewise.base import CoordinateWise
from bartizan.rules.robust import Robust


class PreAggregator(Robust, ABC):
    """Compute a mixing matrix A from a geometry, (M', M) and >= 0; what a row lacks of sum 1 is at the origin.

    `pre >> rule` is again a rule: it sees A G A' and its weights come back as A' w.
    """

    def __call__(self, geometry: Geometry) -> Floats:
        self.check(geometry.n_clients)
        A = self.mixing(geometry)
        if not (are_parts(A) and A.ndim == 2 and len(A) and A.shape[1] == geometry.n_clients):
            wanted = f"{geometry.n_clients} columns, no entry negative or NaN, and rows with a sum of at most 1"
            raise ValueError(f"{self!r} must give a mixing matrix with {wanted}; gave {A!r}.")
        return A

    @abstractmethod
    def mixing(self, geometry: Geometry) -> Floats:
        """Return the matrix; the breakdown condition was checked."""

    def n_mixed(self, n_clients: int) -> int:
        """How many rows the matrix has."""
        return n_clients

    @overload
    def __rshift__(self, then: Rule | CoordinateWise) -> Mixed: ...
    @overload
    def __rshift__(self, then: PreAggregator) -> Chain: ...
    def __rshift__(self, then: Rule | CoordinateWise | PreAggregator) -> Mixed | Chain:
        if isinstance(then, PreAggregator):
            return Chain(self, then)
        if isinstance(then, (Rule, CoordinateWise)):
            return Mixed(self, then)
        return NotImplemented


@dataclass(frozen=True, repr=False)
class Chain(PreAggregator):
    """Two pre-aggregators, one after the other."""

    first: PreAggregator
    then: PreAggregator

    def max_byzantine(self) -> int | None:
        return _least(self.first, self.then)

    def with_fewer_byzantine(self, gone: int) -> Chain:
        return Chain(self.first.with_fewer_byzantine(gone), self.then.with_fewer_byzantine(gone))

    def check(self, n_clients: int) -> None:
        self.first.check(n_clients)
        self.then.check(self.first.n_mixed(n_clients))

    def n_mixed(self, n_clients: int) -> int:
        return self.then.n_mixed(self.first.n_mixed(n_clients))

    def mixing(self, geometry: Geometry) -> Floats:
        A = self.first(geometry)
        return self.then(geometry.mix(A)) @ A

    def __repr__(self) -> str:
        return f"{self.first!r} >> {self.then!r}"


@dataclass(frozen=True, repr=False)
class Mixed(Rule):
    """A rule after a pre-aggregator, with which coordinate-wise rules too can be used with a projection."""

    pre: PreAggregator
    rule: Rule | CoordinateWise

    @property
    def needs_trusted(self) -> bool:  # type: ignore[override]
        return isinstance(self.rule, Rule) and self.rule.needs_trusted

    def max_byzantine(self) -> int | None:
        return _least(self.pre, self.rule)

    def with_fewer_byzantine(self, gone: int) -> Mixed:
        return Mixed(self.pre.with_fewer_byzantine(gone), self.rule.with_fewer_byzantine(gone))

    def check(self, n_clients: int) -> None:
        self.pre.check(n_clients)
        self.rule.check(self.pre.n_mixed(n_clients))

    def weigh(self, geometry: Geometry) -> Floats:
        return self._decide(geometry).weights

    def _decide(self, geometry: Geometry) -> Decision:
        A = self.pre(geometry)
        mixed = geometry.mix(A)
        if isinstance(self.rule, CoordinateWise):
            self.rule.check(mixed.n_clients)
            return Decision(A.T @ mixed.shares, geometry.history, CoordinateStage(self.rule, A, mixed.sizes))
        inner = self.rule.decide(mixed)
        stage = inner.coordinate_stage
        if stage is not None:
            stage = replace(stage, mixing=A if stage.mixing is None else stage.mixing @ A)
        return Decision(A.T @ inner.weights, inner.history, stage)

    def __repr__(self) -> str:
        return f"{self.pre!r} >> {self.rule!r}"


def _least(*parts: Robust) -> int | None:
    return min((n for n in (part.max_byzantine() for part in parts) if n is not None), default=None)

"""The breakdown condition, said once for rules, pre-aggregators and coordinate-wise rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from bartizan.errors import TooFewClientsError

R = TypeVar("R", bound="Robust")


def whole_number(of: object, name: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{type(of).__name__} needs {name}, a whole number from {least} up; got {value!r}.")


class Robust:
    """Whatever withstands attackers among enough clients: rules, pre-aggregators and coordinate-wise rules."""

    needs_trusted = False  # an update that the server vouches for
    needs_distances = True  # False: norms will do, which cost one read

    def max_byzantine(self) -> int | None:
        """How many clients may be faulty; None where no number is fixed beforehand."""
        return getattr(self, "n_byzantine", None)

    def with_fewer_byzantine(self: R, gone: int) -> R:
        """The same, after `gone` of the faulty clients have been found out and left."""
        n_byzantine = self.max_byzantine()
        return self if n_byzantine is None or not gone else replace(self, n_byzantine=n_byzantine - gone)  # type: ignore[type-var]

    @staticmethod
    def least_clients(n_byzantine: int) -> int:
        """The breakdown condition: how many clients `n_byzantine` attackers take to withstand."""
        return 2 * n_byzantine + 1

    def check(self, n_clients: int) -> None:
        """Raise unless the breakdown condition holds."""
        f = self.max_byzantine()
        least = self.least_clients(f or 0)
        if n_clients >= least:
            return
        name = type(self).__name__
        asked = name if f is None else f"{name} with n_byzantine={f}"
        message = f"{asked} needs at least {least} clients, got {n_clients}."
        if f:
            most = max((g for g in range(f) if self.least_clients(g) <= n_clients), default=None)
            advice = "no n_byzantine will do" if most is None else f"n_byzantine can be at most {most}"
            message += f" With {n_clients} clients {advice}."
        raise TooFewClientsError(message)


@dataclass(frozen=True)
class Bounded(Robust):
    """For what is told beforehand how many clients may lie."""

    n_byzantine: int

    def __post_init__(self) -> None:
        whole_number(self, "n_byzantine", self.n_byzantine, least=0)

"""The breakdown condition of rules, pre-aggregators and coordinate-wise rules."""

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
    """Base of rules, pre-aggregators and coordinate-wise rules: how many Byzantine clients they tolerate."""

    needs_trusted = False  # whether an update that the server trusts must be given
    needs_distances = True  # False where norms are enough, which cost one read of the updates

    def max_byzantine(self) -> int | None:
        """How many Byzantine clients are tolerated; None where no number is fixed beforehand."""
        return getattr(self, "n_byzantine", None)

    def with_fewer_byzantine(self: R, gone: int) -> R:
        """The same rule for the remaining clients, after `gone` Byzantine clients were quarantined."""
        n_byzantine = self.max_byzantine()
        return self if n_byzantine is None or not gone else replace(self, n_byzantine=n_byzantine - gone)  # type: ignore[type-var]

    @staticmethod
    def least_clients(n_byzantine: int) -> int:
        """The breakdown condition: the least number of clients among which `n_byzantine` are tolerated."""
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
    """Base of what takes the number of Byzantine clients as `n_byzantine`."""

    n_byzantine: int

    def __post_init__(self) -> None:
        whole_number(self, "n_byzantine", self.n_byzantine, least=0)

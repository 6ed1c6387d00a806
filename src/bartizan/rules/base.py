"""Base classes of rules and coordinate-wise rules, their breakdown condition, and helpers that rules share."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.errors import TooFewClientsError
from bartizan.kernels.protocol import Kernels
from bartizan.measure.geometry import Geometry

ColumnKernel: TypeAlias = Callable[..., None]
"""A kernel that reduces a block of columns, and writes the result into `out`."""
R = TypeVar("R", bound="Robust")
MAX_LENGTH = 1e150  # also the largest factor that a rule can be set to: no update has a larger norm


def whole_number(of: object, name: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{type(of).__name__} needs {name}, a whole number from {least} up; got {value!r}.")


def positive(of: object, name: str, value: float, what: str) -> None:
    if not (_is_number(value) and 0 < value <= MAX_LENGTH):
        raise ValueError(
            f"{type(of).__name__} needs {name}, a positive {what} of at most {MAX_LENGTH:g}; got {value!r}."
        )


def between(of: object, name: str, value: float, low: float, high: float, what: str) -> None:
    if not (_is_number(value) and low <= value <= high):
        raise ValueError(f"{type(of).__name__} needs {name}, {what} from {low:g} to {high:g}; got {value!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


class Robust:
    """Base of rules, pre-aggregators and coordinate-wise rules: how many Byzantine clients they tolerate."""

    needs_trusted = False  # whether an update that the server trusts must be given
    needs_distances = True  # False where norms are enough, which cost one read of the updates
    bytes_per_pair = 128.0  # of clients, where they are many: 0 where no M x M matrix is made of these

    weighs_by_size = False  # True where each client's weight is its share of the data, whatever it sent

    def max_byzantine(self) -> int | None:
        """Return how many Byzantine clients are tolerated; None where no number is fixed beforehand."""
        return getattr(self, "n_byzantine", None)

    def with_fewer_byzantine(self: R, fewer: int) -> R:
        """Return the same rule with `n_byzantine` lowered by `fewer`."""
        n_byzantine = self.max_byzantine()
        return self if n_byzantine is None or not fewer else replace(self, n_byzantine=n_byzantine - fewer)  # type: ignore[type-var]

    @staticmethod
    def least_clients(n_byzantine: int) -> int:
        """Return the least number of clients among which `n_byzantine` are tolerated: the breakdown condition."""
        return 2 * n_byzantine + 1

    def ends_coordinate_wise(self) -> bool:
        """Return whether the last stage reduces each coordinate by itself: the result is then no weighted sum."""
        return False

    def admits(self, n_clients: int) -> bool:
        """Return whether the breakdown condition holds."""
        try:
            self.check(n_clients)
        except TooFewClientsError:
            return False
        return True

    def check(self, n_clients: int) -> None:
        """Raise TooFewClientsError unless the breakdown condition holds."""
        f = self.max_byzantine()
        least = self.least_clients(f or 0)
        if n_clients >= least:
            return
        message = type(self).__name__ + ("" if f is None else f" with n_byzantine={f}")
        message += f" needs at least {least} clients, got {n_clients}."
        if f:
            most = max((g for g in range(f) if self.least_clients(g) <= n_clients), default=None)
            advice = "no n_byzantine will do" if most is None else f"n_byzantine can be at most {most}"
            message += f" With {n_clients} clients {advice}."
        raise TooFewClientsError(message)

    def check_trusted(self, given: bool) -> None:
        if self.needs_trusted and not given:
            raise ValueError(f"{self!r} needs an update that the server trusts: pass trusted=...")


@dataclass(frozen=True)
class Bounded(Robust):
    """Base of the rules and pre-aggregators that take the number of Byzantine clients as `n_byzantine`."""

    n_byzantine: int

    def __post_init__(self) -> None:
        whole_number(self, "n_byzantine", self.n_byzantine, least=0)
        object.__setattr__(self, "n_byzantine", int(self.n_byzantine))  # NumPy's are no numbers to Flower


class CoordinateWise(Robust, ABC):
    """A rule that reduces the M values of each coordinate to one; there is no single weight per client."""

    needs_distances = False

    def ends_coordinate_wise(self) -> bool:
        return True

    def __call__(self, columns: Array, sizes: Floats) -> Floats:
        """Reduce (M, w) finite values to (w,)."""
        self.check(len(columns))
        return self.reduce(columns, sizes)

    def decide(self, geometry: Geometry) -> Decision:
        """Return the decision to reduce the coordinates of all clients; the weights are their shares of the data."""
        self.check(geometry.n_clients)
        return Decision(geometry.shares, geometry.history, CoordinateStage(self, geometry.sizes))

    @abstractmethod
    def reduce(self, columns: Array, sizes: Floats) -> Floats:
        """Reduce (M, w) values to (w,); the breakdown condition was checked."""

    def kernel(self, kernels: Kernels) -> ColumnKernel | None:
        """Return the kernel of this module that computes `reduce`, called as kernel(rows, sizes=..., out=...).

        It reads the clients where they are. Without one (None), `reduce` gets copies of blocks in host memory.
        """
        return None


@dataclass(frozen=True)
class CoordinateStage:
    """A coordinate-wise rule that replaces the clients' weighted sum.

    It is applied to the mixtures of clients by `mixing`, to the clients `selected`, or to all clients as they are; then
    there are no weights.
    """

    rule: CoordinateWise
    sizes: Floats
    mixing: Floats | None = None
    selected: Array | None = None

    @property
    def has_weights(self) -> bool:
        return self.mixing is not None or self.selected is not None

    def behind(self, mixing: Floats) -> CoordinateStage:
        """Return the same stage on clients that are mixtures of others."""
        mixing = mixing if self.selected is None else mixing[self.selected]
        return replace(self, mixing=mixing if self.mixing is None else self.mixing @ mixing, selected=None)

    def used(self, n_clients: int) -> Array:
        """Return the indices of the clients that enter the result."""
        if self.mixing is not None:
            return np.flatnonzero(self.mixing.any(axis=0))
        return np.arange(n_clients) if self.selected is None else self.selected

    def reduce(self, columns: Array) -> Floats:
        return self.rule.reduce(columns, self.sizes)

    def kernel(self, kernels: Kernels) -> ColumnKernel | None:
        """Return the rule's kernel, called as kernel(rows, out=...)."""
        kernel = self.rule.kernel(kernels)
        return None if kernel is None else partial(kernel, sizes=self.sizes)


@dataclass(frozen=True)
class Decision:
    """The weights, the history to pass in the next round, and for some rules a coordinate-wise stage or noise."""

    weights: Floats
    history: tuple[float, ...] = ()
    coordinate_stage: CoordinateStage | None = None
    noise: float = 0.0
    """Standard deviation of Gaussian noise to add to every coordinate of the result."""


class Rule(Robust, ABC):
    """Compute one weight per client from a geometry: w >= 0; what the weights lack of sum 1 stays at the origin.

    Data sizes are prior weights: sums and averages over clients are weighted by them, counts of clients are not.
    """

    def __call__(self, geometry: Geometry) -> Floats:
        return self.decide(geometry).weights

    def decide(self, geometry: Geometry) -> Decision:
        self.check(geometry.n_clients)
        if self.needs_trusted:
            self.check_trusted(geometry.has_trusted)
        found = self.weigh(geometry)
        decision = found if isinstance(found, Decision) else Decision(found, geometry.history)
        weights = decision.weights
        if not (are_parts(weights) and weights.shape == (geometry.n_clients,)):
            wanted = f"{geometry.n_clients} weights, an array of floats, none negative or NaN, with a sum of at most 1"
            raise ValueError(f"{self!r} must give {wanted}; got {weights!r}.")
        return decision

    @abstractmethod
    def weigh(self, geometry: Geometry) -> Floats | Decision:
        """Return the weights, or a decision that holds more; the breakdown condition was checked."""


def are_parts(values: object) -> bool:
    """Return whether this is an array of floats >= 0, not NaN, whose rows have sums of at most 1 up to rounding."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or not values.ndim or not values.size:
        return False
    sums = np.add.reduce(values, axis=-1)
    largest = sums if values.ndim == 1 else sums.max()
    return bool(np.minimum.reduce(values, axis=None) >= 0 and largest <= 1 + 1e-6)  # False for NaN


def warn_unless(reached: bool, rule: Rule) -> None:
    """Warn that an iteration ended before it reached its tolerance."""
    if not reached:
        message = f"{rule!r} did not reach its tolerance within max_steps: the result is approximate. Raise max_steps."
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def averaged(chosen: Array, geometry: Geometry) -> Floats:
    """Return the weights of the average of these clients, by their data sizes."""
    weights = np.zeros(geometry.n_clients)
    weights[chosen] = geometry.sizes[chosen]
    return weights / weights.sum()


def shortening(norms: Floats, radius: float) -> Floats:
    """Return the factors that clip vectors of these norms to the radius."""
    with np.errstate(over="ignore"):  # of a client so short that it is not clipped
        return np.minimum(1, np.divide(radius, norms, out=np.ones_like(norms), where=norms > 0))


def smallest(values: Array, count: int) -> Array:
    """Return the indices of the `count` smallest values, ties to the lower index."""
    return np.argsort(values, kind="stable")[:count]

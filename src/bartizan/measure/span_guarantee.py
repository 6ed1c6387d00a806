"""Guarantees of a sketch for the span of a round's updates and for its pairs: the part of squared lengths that is kept.

The theorem for `Rotated` and its proof are in the documentation of the theory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan.measure.guarantees import (
    _check,
    _check_probabilities,
    _crossing,
    _lanes,
    achlioptas_range,
    gaussian_range,
)
from bartizan.measure.sketches import Achlioptas, Exact, Gaussian, Rotated, Sketch

LEAST_PART = 0.01  # a bound that loses all but 1% of a squared length is no promise


@dataclass(frozen=True)
class Guarantee:
    """Least parts of a squared length that a sketch keeps, in all rounds at once; 0 where nothing is proven."""

    span: float
    """The part kept of all weighted sums of the clients: geometric median, MCA, and the bound on the error."""
    pairs: float
    """The part kept of the clients' distances and norms: enough for rules that compare distances."""

    @property
    def promise(self) -> str:
        """The largest set that is proven to be kept: "span", "pairs", or "norms", which need no sketch."""
        return "span" if self.span >= LEAST_PART else "pairs" if self.pairs >= LEAST_PART else "norms"

    @property
    def inflation(self) -> float:
        """The factor 1 / span by which projecting may widen the bound on the aggregation error."""
        return 1 / self.span if self.span else math.inf


def guarantee(
    sketch: Sketch,
    n_clients: int,
    delta: float,
    rounds: int = 1,
    *,
    leverage: float = 1.0,
    spread: tuple[float, float] | None = None,
) -> Guarantee:
    r"""Return what is proven of a sketch with a secret seed, except with probability delta in all rounds together.

    `n_clients` counts the rows that the rule sees: one more than the clients if there is a trusted update. For
    `Rotated` it holds for every span with the default `leverage` (small mixing then has no guarantee), for spans whose
    lanes have at most this leverage (`lane_leverage`), or on the condition that the mixed rows are spread as `spread`
    says: the arguments (rho, trace) of `rotated_span`.

    >>> import bartizan as bz
    >>> found = guarantee(bz.Gaussian(4096), n_clients=50, delta=0.05, rounds=100)
    >>> found.promise, round(found.span, 2), round(found.pairs, 2)
    ('span', 0.69, 0.88)
    >>> guarantee(bz.Rotated(4096), n_clients=50, delta=0.05, rounds=100).promise
    'norms'
    >>> round(guarantee(bz.Rotated(16384, mixing=4096), n_clients=50, delta=0.05, rounds=100).inflation, 2)
    2.43
    """
    _check(n_clients=n_clients, rounds=rounds)
    _check_probabilities(delta=delta)
    M, n_vectors = n_clients, n_clients * (n_clients + 1) // 2
    odds = delta / rounds
    span = pairs = 0.0
    if isinstance(sketch, Exact):
        return Guarantee(1.0, 1.0)
    if isinstance(sketch, Gaussian):  # the least singular value: Davidson and Szarek, 2001
        span = max(0.0, 1 - math.sqrt(M / sketch.k) - math.sqrt(2 * math.log(1 / odds) / sketch.k)) ** 2
        pairs = gaussian_range(sketch.k, odds / n_vectors)[0]
    elif isinstance(sketch, Achlioptas):  # squares are not negative, so their second moments bound the lower tail
        variance = (M + max(2, sketch.s - 1)) / sketch.k
        span = max(0.0, 1 - math.sqrt(2 * variance * math.log(M / odds)))
        pairs = achlioptas_range(sketch.k, sketch.s, odds / n_vectors)[0]
    elif isinstance(sketch, Rotated):
        k, n = sketch.k, sketch.mixing
        if spread is None:
            span = rotated_span(k, n, M, odds / 2, *row_spread(n, M, odds / 2, leverage))
            one = row_spread(n, 1, odds / n_vectors / 2, leverage)
            pairs = rotated_span(k, n, 1, odds / n_vectors / 2, *one)
        else:
            span = rotated_span(k, n, M, odds, *spread)
            pairs = rotated_span(k, n, 1, odds / n_vectors, spread[0])
    return Guarantee(span, max(span, pairs))


def rotated_span(k: int, mixing: int, n_clients: int, delta: float, rho: float, trace: float | None = None) -> float:
    r"""Return the theta with :math:`|Pv|^2 \ge \theta |v|^2` for all v of a span of M updates, in one round.

    .. math:: \theta = 1 - t, \quad M \exp\big(-\tfrac{s^2}{R^2} h(\tfrac{R t}{s^2})\big) = \delta, \quad
        h(u) = (1 + u) \ln(1 + u) - u, \quad R = \rho / n, \quad s^2 = (M \, trace + \rho) / k

    On the condition that no mixed row holds more than the part rho / n of any vector of the span, and traces of at
    most M trace / n (at most rho, the default). 0 where the bound says nothing.

    >>> [round(rotated_span(4096, 32, M, 0.05 / 100, rho=1.2, trace=1.05), 2) for M in (10, 20, 50, 100)]
    [0.66, 0.55, 0.32, 0.06]
    """
    _lanes(k, mixing)
    _check(n_clients=n_clients)
    _check_probabilities(delta=delta)
    trace = rho if trace is None else trace
    if not 1 <= trace <= rho:
        raise ValueError(f"rho and trace must be 1 <= trace <= rho, got rho={rho!r}, trace={trace!r}.")
    if span_odds(1.0, k, mixing, n_clients, rho, trace) >= delta:
        return 0.0
    return 1 - _crossing(lambda t: span_odds(t, k, mixing, n_clients, rho, trace) > delta, 0.0, 1.0)


def span_odds(t: float, k: int, mixing: int, n_clients: int, rho: float, trace: float) -> float:
    """Bound the probability that some vector of the span keeps at most 1 - t of its squared length in a round."""
    R, variance = rho / mixing, (n_clients * trace + rho) / k
    u = R * t / variance
    return min(1.0, n_clients * math.exp(-variance / R**2 * ((1 + u) * math.log1p(u) - u)))


def row_spread(mixing: int, n_clients: int, delta: float, leverage: float = 1.0) -> tuple[float, float]:
    r"""Bound (rho, trace) of the mixed rows for every span whose lanes have at most this leverage, except with delta.

    With :math:`\tau` the leverage of a lane and :math:`\alpha = \min(1, \tau)`, both hold with probability 1 - delta:

    .. math:: trace = 1 + 2 \sqrt{\alpha x / M} + 2 \alpha x / M, \; x = \ln(2n / \delta), \qquad
        \rho - 3 \rho^{1/3} + 2 = 2 \tau \ln(2 n M / \delta)

    and rho is at most M trace and at most n.

    >>> [round(part, 2) for part in row_spread(32, 50, 0.05 / 100, leverage=50 * 32 / 1_000_000)]
    [1.43, 1.04]
    """
    _check(mixing=mixing, n_clients=n_clients)
    _check_probabilities(delta=delta)
    if not leverage > 0:
        raise ValueError(f"leverage must be above 0, got {leverage!r}.")
    n, M = mixing, n_clients
    part = min(1.0, leverage) * math.log(2 * n / delta) / M
    trace = 1 + 2 * math.sqrt(part) + 2 * part
    depth = 2 * leverage * math.log(2 * n * M / delta)
    chernoff = _crossing(lambda r: r - 3 * r ** (1 / 3) + 2 < depth, 1.0, 8 + 2 * depth)
    rho = max(1.0, min(n, M * trace, chernoff))
    return rho, min(trace, rho)


def lane_leverage(updates: Any, k: int, mixing: int) -> float:
    """Bound the leverage of a lane for an (M, p) array of updates: a property of their span, for every seed.

    A lane holds one coordinate of each of the `mixing` rows of a block, which ones depends on the seed; so the largest
    leverages of the rows are added. A coordinate's leverage is the squared length of its row in an orthonormal
    basis of the span. Costs as much as exact inner products, and 8 bytes per number.

    >>> lane_leverage(np.eye(3, 256), k=64, mixing=16)
    1.0
    """
    L = _lanes(k, mixing)
    x = np.atleast_2d(np.asarray(updates, dtype=np.float64))
    values, vectors = np.linalg.eigh(x @ x.T)
    independent = values > values[-1] * 1e-12
    basis = (vectors[:, independent] / np.sqrt(values[independent])).T @ x
    leverages = np.zeros(-(-x.shape[1] // k) * k)
    leverages[: x.shape[1]] = (basis**2).sum(axis=0)
    return float(leverages.reshape(-1, mixing, L).max(axis=2).sum(axis=1).max())

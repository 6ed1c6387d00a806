r"""The bounds of the paper's theorems, as functions.

Throughout, sigma bounds a client's sampling noise, :math:`E\|g_m - \nabla F_m\|^2 \le \sigma^2`, and kappa the
clients' disagreement, :math:`\|\nabla F_m - \nabla F\| \le \kappa`; (b, c) are the aggregator's, and eps is the
sketch's distortion, 0 without projection. The k of the embedding is `bartizan.sketch.embedding_dimension`.
"""

from __future__ import annotations

import math

from bartizan.measure.span_guarantee import span_odds


def inflation(eps: float) -> float:
    """Return (1 + eps) / (1 - eps), the factor by which projecting widens the error of Byzantine clients.

    >>> round(inflation(0.5409), 2)
    3.36
    """
    if not 0 <= eps < 1:
        raise ValueError(f"eps must be from 0 (no projection) to below 1, got {eps!r}.")
    return (1 + eps) / (1 - eps)


def occupancy_odds(k: int, mixing: int, per_block: tuple[int, ...], occupancy: int) -> float:
    r"""Bound the probability that some lane of `Rotated` gets this many of the given coordinates, counted by block.

    .. math:: \sum_b \binom{m_b}{j} L^{1-j}

    Coordinates of one row of a block never share a lane, others do with probability 1/L, as lanes are swapped.
    """
    return min(1.0, sum(math.comb(m, occupancy) for m in per_block) * (k / mixing) ** (1 - occupancy))


def axes_kept(k: int, mixing: int, per_block: tuple[int, ...], delta: float) -> float:
    """Return the theta of `Rotated` for a span of coordinate axes, counted by block, in one round.

    The mixed rows' rho is the number of axes in the fullest lane, and their traces are even; each number of them counts
    with its probability.

    >>> round(axes_kept(4096, 32, (25, 25), delta=0.05 / 100), 2)
    0.2
    """
    M, most = sum(per_block), min(mixing, max(per_block))
    reached = [occupancy_odds(k, mixing, per_block, j) for j in range(1, most + 1)]

    def odds(t: float) -> float:
        failed = [0.0, *(span_odds(t, k, mixing, M, j, 1.0) for j in range(1, most + 1))]
        return sum(chance * (high - low) for chance, low, high in zip(reached, failed, failed[1:], strict=False))

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if odds(middle) > delta else (low, middle)
    return 1 - high


def checked_counts(rule: str, n_clients: int, n_byzantine: int, least: int) -> tuple[int, int]:
    """Return both counts; raise ValueError if a rule withstands so many attackers among more clients only."""
    if n_clients < least:
        raise ValueError(f"{rule} with n_byzantine={n_byzantine} needs at least {least} clients, got {n_clients}.")
    return n_clients, n_byzantine


def krum_constant(n_clients: int, n_byzantine: int) -> float:
    r"""Return the K of Krum in :math:`\|F(x) - \bar x_S\|^2 \le K \, V_S(x)`, for all x and all S of M - f clients.

    It is the same for MultiKrum with any number of selected clients up to M - f.

    >>> round(krum_constant(50, 15), 2)
    11.05
    """
    M, f = checked_counts("Krum", n_clients, n_byzantine, 2 * n_byzantine + 3)
    return 6 * (M - f) / (M - 2 * f - 1)


def bulyan_constant(n_clients: int, n_byzantine: int) -> float:
    r"""Return the same K of Bulyan's selection: :math:`6 (M-f) (1 + 1 + 1/2 + ... + 1/(M-2f-1)) / (M-2f)`.

    >>> round(bulyan_constant(50, 11), 1)
    40.9
    """
    M, f = checked_counts("Bulyan", n_clients, n_byzantine, 4 * n_byzantine + 3)
    return 6 * (M - f) * (1 + sum(1 / r for r in range(1, M - 2 * f))) / (M - 2 * f)


def mda_constant(n_clients: int, n_byzantine: int) -> float:
    """Return the same K of MDA.

    >>> round(mda_constant(50, 15), 1)
    51.4
    """
    M, f = checked_counts("MDA", n_clients, n_byzantine, 2 * n_byzantine + 1)
    return 8 * f**2 / (M - f)


def geometric_median_constant(n_clients: int, n_byzantine: int) -> float:
    """Return the same K of the geometric median.

    >>> geometric_median_constant(50, 15)
    12.25
    """
    M, f = checked_counts("GeometricMedian", n_clients, n_byzantine, 2 * n_byzantine + 1)
    return 4 * ((M - f) / (M - 2 * f)) ** 2


def aggregation_bound(c: float, b: float, eps: float, sigma: float, kappa: float) -> float:
    r"""Lemma 3.6: :math:`E\|g - \bar g\|^2 \le 2cb \frac{1+\epsilon}{1-\epsilon} (\sigma^2 + 2\kappa^2)`.

    >>> aggregation_bound(c=2.0, b=0.25, eps=0.5, sigma=1.0, kappa=1.0)
    9.0
    """
    if not 0 <= b < 0.5:
        raise ValueError(f"b must be from 0 to below 0.5, got {b!r}.")
    return 2 * c * b * inflation(eps) * (sigma**2 + 2 * kappa**2)


def error_floor(c: float, b: float, eps: float, sigma: float, kappa: float) -> float:
    r"""Phi, a bound of :math:`E\|g - \nabla F\|^2`: twice the aggregation's error and twice the sampling's.

    .. math:: \Phi = 4cb \frac{1+\epsilon}{1-\epsilon} (\sigma^2 + 2\kappa^2) + 2(\sigma^2 + \kappa^2)

    >>> error_floor(c=2.0, b=0.25, eps=0.5, sigma=1.0, kappa=1.0)
    22.0
    """
    return 2 * aggregation_bound(c, b, eps, sigma, kappa) + 2 * (sigma**2 + kappa**2)


def nonconvex_step(smoothness: float, rounds: int) -> float:
    r"""Return the constant step :math:`\eta = 1 / (L \sqrt T)` of the remark after Theorem 3.8."""
    return 1 / (smoothness * math.sqrt(rounds))


def nonconvex_bound(drop: float, step: float, rounds: int, floor: float) -> float:
    r"""Theorem 3.8 at a constant step: the average of :math:`\|\nabla F(w^t)\|^2` over t < T is at most

    .. math:: 2 (F(w^0) - F(w^T)) / (\eta T) + \Phi

    with `drop` for the difference of F, which may be negative. At :math:`\eta = 1 / (L \sqrt T)` it falls as
    :math:`1 / \sqrt T` down to Phi.

    >>> nonconvex_bound(drop=3.0, step=nonconvex_step(2.0, 16), rounds=16, floor=1.0)
    4.0
    """
    return 2 * drop / (step * rounds) + floor


def convex_step(t: int, convexity: float, smoothness: float) -> float:
    r"""Return the step :math:`\eta^t = 2 / (\mu (t + \gamma))`, :math:`\gamma = 4L / \mu`, of Theorem 3.10.

    >>> convex_step(0, convexity=1.0, smoothness=4.0)
    0.125
    """
    return 2 / (convexity * (t + 4 * smoothness / convexity))


def convex_bound(rounds: int, start: float, convexity: float, smoothness: float, floor: float) -> float:
    r"""Theorem 3.10: :math:`E\|w^T - w^*\|^2 \le \frac{\gamma-1}{T+\gamma-1} \|w^0 - w^*\|^2 + \frac{8}{\mu^2} \Phi`.

    `start` is the squared distance at the beginning.

    >>> convex_bound(15, start=8.0, convexity=1.0, smoothness=4.0, floor=0.5)
    8.0
    """
    gamma = 4 * smoothness / convexity
    return (gamma - 1) / (rounds + gamma - 1) * start + 8 / convexity**2 * floor

"""Attacks by a formula: scaled sums and means, the mean moved by standard deviations, and copies of honest updates."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.random import Generator

from bartizan._util.types import Floats
from bartizan.attacks.honest_updates import (
    Matrix,
    Vector,
    by_columns,
    copied,
    mean,
    narrowed,
    repeat_row,
    sign,
    squared_distances,
    std,
)
from bartizan.attacks.parameters import FRACTION, INDEX_OR_NONE, NUMBER, attack
from bartizan.updates.layout import is_tensor, on_host


@attack(factor=NUMBER)
def sign_flip(honest: Matrix, count: int, rng: Generator, *, factor: float = -3.0) -> Matrix:
    """Send -3 times the sum, not the mean, of the honest updates.

    >>> sign_flip([[1.0, 2.0], [3.0, -2.0]], 1, np.random.default_rng(0)).tolist()
    [[-12.0, -0.0]]
    """
    return repeat_row(by_columns(honest, lambda x: factor * x.sum(axis=0)), count)


@attack(z=NUMBER)
def little_is_enough(honest: Matrix, count: int, rng: Generator, *, z: float = 0.7) -> Matrix:
    """LIE: send the honest mean plus 0.7 standard deviations in every coordinate (after Baruch et al., 2019).

    >>> little_is_enough([[1.0, 2.0], [3.0, -2.0]], 1, np.random.default_rng(0)).tolist()
    [[2.7, 1.4]]
    """
    return repeat_row(by_columns(honest, lambda x: mean(x) + z * std(x)), count)


@attack(factor=NUMBER)
def fall_of_empires(honest: Matrix, count: int, rng: Generator, *, factor: float = -0.1) -> Matrix:
    """FoE: send -0.1 times the honest mean (after Xie et al., 2020).

    The paper gives a second form, a sum over M' without B, and does not say what M' is: this is the first.
    """
    return repeat_row(by_columns(honest, lambda x: factor * mean(x)), count)


@attack(factor=NUMBER)
def inner_product_manipulation(honest: Matrix, count: int, rng: Generator, *, factor: float = 2.0) -> Matrix:
    """IPM: send minus `factor` times the honest mean (Xie et al., 2020); FoE is the same with 0.1.

    >>> inner_product_manipulation([[1.0, 2.0], [3.0, -2.0]], 1, np.random.default_rng(0)).tolist()
    [[-4.0, -0.0]]
    """
    return repeat_row(by_columns(honest, lambda x: -factor * mean(x)), count)


@attack()
def a_little_is_enough(honest: Matrix, count: int, rng: Generator) -> Matrix:
    """ALIE: send the honest mean plus z standard deviations, with z from the counts (Baruch et al., 2019)."""
    z = hiding_z(len(honest), count)
    return repeat_row(by_columns(honest, lambda x: mean(x) + z * std(x)), count)


@attack()
def alie_over_time(honest: Matrix, count: int, rng: Generator, *, published: Vector) -> Matrix:
    r"""ALIE over time: push every coordinate back along the course of training so far, the same way in every round.

    Sends :math:`m - |z|\,\sigma\,\mathrm{sign}(C)`, with the honest mean m, the standard deviations :math:`\sigma` and
    ALIE's z; C is `published`, the sum of the aggregates so far. Where that is zero, as in the first round, the sign is
    that of m. ALIE hides in the spread of one round; what is coupled over rounds adds up while honest noise cancels
    (Karimireddy et al., 2021, section 3): clients' momentum is the defence.

    >>> known = np.array([5.0, -1.0])
    >>> alie_over_time([[1.0, 2.0], [3.0, -2.0], [2.0, 3.0]], 2, np.random.default_rng(0), published=known)[0].round(2)
    array([1.65, 1.93])
    """
    z = abs(hiding_z(len(honest), count))
    centre, spread = by_columns(honest, mean, wide=True), by_columns(honest, std, wide=True)
    way = sign(narrowed(np.asarray(on_host(published), dtype=np.float64), centre))
    way = way + (way == 0) * sign(centre)
    return repeat_row(narrowed(centre - z * spread * way, honest), count)


@attack(place=FRACTION, mix=FRACTION, angle=NUMBER, length=NUMBER)
def relocated_orthogonal_perturbation(
    honest: Matrix,
    count: int,
    rng: Generator,
    *,
    published: Vector,
    place: float = 1.0,
    mix: float = 0.9,
    angle: float = 90.0,
    length: float = 1.0,
) -> Matrix:
    r"""ROP: stand where the server last was, and push at an angle to the course (after Ozfatura et al., 2024).

    Sends :math:`\pi r + (1 - \pi) m + \ell \|m\| (\sin\theta \, o + \cos\theta \, u)`: m is the honest mean, u the unit
    vector along :math:`\lambda r + (1 - \lambda) m`, and o the one along the part of (1, ..., 1) orthogonal to u.
    In the source r is the server's last momentum; here it is the sum of the aggregates so far at the length of m, and 0
    before the first. `place` is :math:`\pi`, `mix` :math:`\lambda`, `angle` :math:`\theta` in degrees, `length`
    :math:`\ell`.

    >>> known = np.array([0.0, 8.0])
    >>> relocated_orthogonal_perturbation([[0.0, 2.0]], 1, np.random.default_rng(0), published=known)[0].round(6)
    array([2., 2.])
    """
    m = by_columns(honest, mean, wide=True)
    size, course = _length(m), narrowed(np.asarray(on_host(published), dtype=np.float64), m)
    r = course * (size / (_length(course) or 1.0))
    u = mix * r + (1 - mix) * m if _length(course) else m
    u = u / (_length(u) or 1.0)
    o = 1.0 - float(u.sum()) * u
    o = o / (_length(o) or 1.0)
    push = math.sin(math.radians(angle)) * o + math.cos(math.radians(angle)) * u
    return repeat_row(narrowed(place * r + (1 - place) * m + length * size * push, honest), count)


def _length(vector: Vector) -> float:
    return math.sqrt(float((vector * vector).sum()))


@attack(share=FRACTION, factor=NUMBER)
def hybrid_sparse(honest: Matrix, count: int, rng: Generator, *, share: float = 0.005, factor: float = 1.5) -> Matrix:
    r"""Hybrid sparse: a visible push on few sensitive coordinates, ALIE on all others (after Ozfatura et al., 2026).

    Sends :math:`m - \sigma s`, with the honest mean m and the standard deviations :math:`\sigma`; s is `factor` on the
    `share` of the coordinates with the largest :math:`|m|`, and ALIE's |z| elsewhere. The source finds sensitive
    weights by pruning the network at its start; an update alone shows where the loss is steepest.

    >>> hybrid_sparse([[9.0, 1.0], [11.0, 3.0], [10.0, 2.0]], 2, np.random.default_rng(0), share=0.5)[0].round(2)
    array([8.78, 1.65])
    """
    z = abs(hiding_z(len(honest), count))
    m, spread = by_columns(honest, mean, wide=True), by_columns(honest, std, wide=True)
    sizes = np.abs(np.asarray(on_host(m)))
    n_sensitive = math.ceil(share * len(sizes))
    scale = np.full(len(sizes), z)
    scale[np.argsort(-sizes, kind="stable")[:n_sensitive]] = factor
    return repeat_row(narrowed(m - narrowed(scale, m) * spread, honest), count)


def hiding_z(n_honest: int, count: int) -> float:
    r"""Return the z of ALIE: the largest at which attackers and the honest clients beyond them are a majority.

    :math:`z = \Phi^{-1}((M - f - s) / (M - f))`, where :math:`s = \lfloor M/2 + 1 \rfloor - f` is the number of honest
    clients that the attackers lack for a majority (Baruch et al., 2019, section 3.3). Few attackers make z negative.
    Where the formula is infinite the fraction is limited to 1/(H + 1) or H/(H + 1).

    >>> round(hiding_z(40, 10), 4), round(hiding_z(35, 15), 4)
    (0.2533, 0.4837)
    """
    H, M = n_honest, n_honest + count
    s = M // 2 + 1 - count
    part = min(max((H - s) / H, 1 / (H + 1)), H / (H + 1))
    return NormalDist().inv_cdf(part)


@attack(client=INDEX_OR_NONE)
def mimic(honest: Matrix, count: int, rng: Generator, *, client: int | None = None) -> Matrix:
    """Send copies of one honest client: row `client`, or the outermost one of the round (Karimireddy et al., 2022).

    The outermost is farthest from the mean along the direction of largest variance. In the source it is chosen in the
    first rounds and then kept; to keep one, give its row.

    >>> mimic([[0.0, 0.0], [1.0, 5.0], [0.0, -1.0]], 2, np.random.default_rng(0)).tolist()
    [[1.0, 5.0], [1.0, 5.0]]
    """
    if client is not None and client >= len(honest):
        raise ValueError(f"mimic needs client, the row of an honest update, 0 to {len(honest) - 1}; got {client}.")
    row = honest[_outermost(squared_distances(honest)) if client is None else client]
    return repeat_row(copied(row), count)


def _outermost(D: Floats) -> int:
    """Return the row with the largest entry in the top eigenvector of -J D J / 2, the inner products about the mean."""
    if not np.isfinite(D).all():
        return 0  # a client has diverged, and there is no such direction
    G = D.mean(axis=0) + D.mean(axis=1)[:, None] - D - D.mean()
    return int(np.abs(np.linalg.eigh(G)[1][:, -1]).argmax())


@attack()
def none(honest: Matrix, count: int, rng: Generator) -> Matrix:
    """Send copies of honest updates drawn at random: the baseline without an attack.

    No update is drawn twice while there are enough. A run trains these clients instead: copies are closer to each
    other than honest updates are.
    """
    H = len(honest)
    drawn = np.concatenate([rng.permutation(H) for _ in range(-(-count // H))] or [np.empty(0, dtype=np.intp)])[:count]
    if is_tensor(honest):
        import torch

        return honest[torch.from_numpy(drawn).to(honest.device)]
    return honest[drawn]

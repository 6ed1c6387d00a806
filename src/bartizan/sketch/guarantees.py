"""What a projection promises, as functions."""

from __future__ import annotations

import math


def embedding_dimension(n_clients: int, eps: float, delta: float, rounds: int = 1) -> int:
    r"""The k at which all of span{g_1 .. g_M} keeps its squared norms to 1 +- eps, in all rounds, but for odds delta.

    .. math:: k = \lceil 18 / \epsilon^2 \, (M + 2 \ln(2T / \delta)) \rceil

    The subspace embedding theorem as the paper states it (Lemma 2.2, and Theorem 3.8 for T rounds), for matrices
    with independent sub-Gaussian entries of variance 1/k.

    >>> embedding_dimension(50, eps=0.5, delta=0.05, rounds=100)
    4795
    """
    _check(n_clients=n_clients, rounds=rounds)
    _check_odds(eps=eps, delta=delta)
    return math.ceil(18 / eps**2 * (n_clients + 2 * math.log(2 * rounds / delta)))


def distortion(k: int, n_clients: int, delta: float, rounds: int = 1) -> float:
    """The eps that `embedding_dimension` grants for this k; refuses where it would not be below 1.

    >>> round(distortion(4096, n_clients=50, delta=0.05, rounds=100), 2)
    0.54
    """
    _check(k=k, n_clients=n_clients, rounds=rounds)
    _check_odds(delta=delta)
    needed = 18 * (n_clients + 2 * math.log(2 * rounds / delta))
    if k <= needed:
        raise ValueError(
            f"k={k} promises nothing for the whole span of {n_clients} clients: eps would be "
            f"{math.sqrt(needed / k):.2f}, not below 1. Take k above {math.ceil(needed)}, or rely on pairwise "
            f"distances alone (pairwise_distortion)."
        )
    return math.sqrt(needed / k)


def pairwise_dimension(n_clients: int, eps: float, delta: float, rounds: int = 1) -> int:
    r"""The k at which the M(M-1)/2 pairwise distances and M norms alone are kept to 1 +- eps: Johnson-Lindenstrauss.

    .. math:: k = \lceil 2 \ln(M (M+1) T / \delta) \, / \, (\epsilon^2/2 - \epsilon^3/3) \rceil

    A union bound over Achlioptas' tail (2003, section 5), proven for Gaussian entries and for s = 1 and 3. Enough
    for rules that compare distances (Krum, NNM, MDA); the span is more than its pairs, so what a weighted sum of
    clients does is not promised.

    >>> pairwise_dimension(1000, eps=0.2, delta=0.05, rounds=100)
    2472
    """
    _check(n_clients=n_clients, rounds=rounds)
    _check_odds(eps=eps, delta=delta)
    return math.ceil(_pairs(n_clients, delta, rounds) / _exponent(eps))


def pairwise_distortion(k: int, n_clients: int, delta: float, rounds: int = 1) -> float:
    """The eps that `pairwise_dimension` grants for this k; refuses where it would not be below 1.

    >>> round(pairwise_distortion(4096, n_clients=1000, delta=0.05, rounds=100), 3)
    0.153
    """
    _check(k=k, n_clients=n_clients, rounds=rounds)
    _check_odds(delta=delta)
    wanted = _pairs(n_clients, delta, rounds) / k
    if wanted >= _exponent(1.0):
        least = math.floor(_pairs(n_clients, delta, rounds) / _exponent(1.0)) + 1
        raise ValueError(
            f"k={k} promises nothing for the pairs of {n_clients} clients: eps would not be below 1. "
            f"Take k of at least {least}."
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _exponent(middle) < wanted else (low, middle)
    return high


def _pairs(n_clients: int, delta: float, rounds: int) -> float:
    return 2 * math.log(n_clients * (n_clients + 1) * rounds / delta)


def _exponent(eps: float) -> float:
    return eps**2 / 2 - eps**3 / 3


def _check(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1 or value != int(value):
            raise ValueError(f"{name} must be a positive whole number, got {value!r}.")


def _check_odds(**odds: float) -> None:
    for name, value in odds.items():
        least = 1e-6 if name == "eps" else 0  # below it k would be beyond any memory
        if not least < value < 1:
            raise ValueError(f"{name} must lie between {least:g} and 1, got {value!r}.")

"""Malformed updates, as a crash or a bug would send them: infinite, NaN and random bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bartizan.attacks.honest_updates import LARGEST, Matrix, Vector, agreed, copied, empty, narrowed
from bartizan.attacks.parameters import attack
from bartizan.attacks.random_rows import AttackerRandom, random_rows
from bartizan.updates.layout import dtype_name, is_tensor

EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F80_0000, "float64": 0x7FF0 << 48}


@attack()
def infinity(honest: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Send infinity in every coordinate."""
    return agreed(_filled(honest, np.inf), count)


@attack()
def not_a_number(honest: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Send NaN in every coordinate."""
    return agreed(_filled(honest, np.nan), count)


@attack()
def garbage(honest: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Send random bits, finite random bits, subnormals, extreme numbers and one hidden NaN or Inf, in turn."""
    H, p = honest.shape
    first = int(rng.integers(5))
    hosts, spots, values = (rng.integers(most, size=count) for most in (H, p, 3))

    def hidden(own: AttackerRandom, low: int, high: int) -> Vector:
        row = copied(honest[int(hosts[own.attacker]), low:high])
        spot = int(spots[own.attacker])
        if low <= spot < high:
            row[spot - low] = (np.nan, np.inf, -np.inf)[values[own.attacker]]
        return row

    kinds: list[Callable[[AttackerRandom, int, int], Vector]] = [
        _random_bits,
        _finite_bits,
        _subnormal,
        _extreme,
        hidden,
    ]

    def draw(own: AttackerRandom, low: int, high: int) -> Vector:
        return kinds[(first + own.attacker) % len(kinds)](own, low, high)

    return random_rows(honest, count, rng, draw, fit=False)


def _filled(honest: Matrix, value: float) -> Vector:
    row = empty(honest, honest.shape[1:])
    row[:] = value
    return row


def _random_bits(own: AttackerRandom, low: int, high: int) -> Vector:
    return own.bits(high - low).view(own.honest.dtype)


def _finite_bits(own: AttackerRandom, low: int, high: int) -> Vector:
    """Magnitudes of all sizes; for NaN and Inf the last bit of the exponent is cleared, which makes them finite."""
    bits = own.bits(high - low)
    E = EXPONENT[dtype_name(own.honest)]
    bits[(bits & E) == E] &= ~(E & -E)
    return bits.view(own.honest.dtype)


def _subnormal(own: AttackerRandom, low: int, high: int) -> Vector:
    return (own.bits(high - low) & ~EXPONENT[dtype_name(own.honest)]).view(own.honest.dtype)


def _extreme(own: AttackerRandom, low: int, high: int) -> Vector:
    """The largest, smallest and finest numbers of every dtype that fit into this one, and zero of both signs."""
    known = [np.finfo(dtype) for dtype in (np.float16, np.float32, np.float64)]
    sizes = [float(x) for info in known for x in (info.max, info.tiny, info.smallest_subnormal, info.eps)]
    sizes += [0.0, LARGEST["bfloat16"]]
    table = np.array([*sizes, *(-x for x in sizes)])
    chosen = own.bits(high - low) % len(table)
    return narrowed(table, own.honest)[chosen.long() if is_tensor(chosen) else chosen]

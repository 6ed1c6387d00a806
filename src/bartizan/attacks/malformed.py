"""Updates that are none: what a crash, a bug or a vandal sends. A server must survive them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bartizan.attacks.honest_updates import LARGEST, Matrix, Vector, agreed, copied, empty, narrowed
from bartizan.attacks.parameters import attack
from bartizan.attacks.random_rows import Dice, each_draws
from bartizan.updates.layout import dtype_name, is_tensor

EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F80_0000, "float64": 0x7FF0 << 48}


@attack()
def infinity(honest: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Every coordinate is infinite."""
    return agreed(_filled(honest, np.inf), count)


@attack()
def not_a_number(honest: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Every coordinate is NaN."""
    return agreed(_filled(honest, np.nan), count)


@attack()
def garbage(honest: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Random bits, finite ones, subnormals, extremes of all dtypes, one hidden NaN or Inf, in turn."""
    H, p = honest.shape
    first = int(rng.integers(5))
    hosts, spots, values = (rng.integers(most, size=count) for most in (H, p, 3))

    def hidden(dice: Dice, low: int, high: int) -> Vector:
        row = copied(honest[int(hosts[dice.attacker]), low:high])
        spot = int(spots[dice.attacker])
        if low <= spot < high:
            row[spot - low] = (np.nan, np.inf, -np.inf)[values[dice.attacker]]
        return row

    kinds: list[Callable[[Dice, int, int], Vector]] = [_random_bits, _finite_bits, _subnormal, _extreme, hidden]

    def draw(dice: Dice, low: int, high: int) -> Vector:
        return kinds[(first + dice.attacker) % len(kinds)](dice, low, high)

    return each_draws(honest, count, rng, draw, fit=False)


def _filled(honest: Matrix, value: float) -> Vector:
    row = empty(honest, honest.shape[1:])
    row[:] = value
    return row


def _random_bits(dice: Dice, low: int, high: int) -> Vector:
    return dice.bits(high - low).view(dice.honest.dtype)


def _finite_bits(dice: Dice, low: int, high: int) -> Vector:
    """Magnitudes of all sizes; what would be NaN or Inf has the last bit of its exponent cleared, and is just large."""
    bits = dice.bits(high - low)
    E = EXPONENT[dtype_name(dice.honest)]
    bits[(bits & E) == E] &= ~(E & -E)
    return bits.view(dice.honest.dtype)


def _subnormal(dice: Dice, low: int, high: int) -> Vector:
    return (dice.bits(high - low) & ~EXPONENT[dtype_name(dice.honest)]).view(dice.honest.dtype)


def _extreme(dice: Dice, low: int, high: int) -> Vector:
    """The largest, smallest and finest numbers of every dtype, as far as this one holds them; zero of both signs."""
    known = [np.finfo(dtype) for dtype in (np.float16, np.float32, np.float64)]
    sizes = [float(x) for info in known for x in (info.max, info.tiny, info.smallest_subnormal, info.eps)]
    sizes += [0.0, LARGEST["bfloat16"]]
    table = np.array([*sizes, *(-x for x in sizes)])
    chosen = dice.bits(high - low) % len(table)
    return narrowed(table, dice.honest)[chosen.long() if is_tensor(chosen) else chosen]

"""Random and malformed updates: Gaussian noise; infinity, NaN and random bits, as after a crash or with a bug."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.random import Generator

from bartizan.attacks.honest_updates import LARGEST_FINITE, Matrix, Vector, copied, empty, narrowed, repeat_row
from bartizan.attacks.parameters import NOT_NEGATIVE, attack
from bartizan.updates.layout import dtype_name, is_tensor

NUMBERS_PER_DRAW = 2**18  # numbers drawn at a time in host memory
EXPONENT_BITS = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F80_0000, "float64": 0x7FF0 << 48}
GARBAGE_KINDS = ("random bits", "finite bits", "subnormal", "extreme", "one hidden")


@attack(variance=NOT_NEGATIVE)
def gaussian(honest: Matrix, count: int, rng: Generator, *, variance: float = 90.0) -> Matrix:
    """Send Gaussian noise of mean 0 and this variance in every coordinate.

    The paper's N(0, 90) is read as a variance of 90, a standard deviation of 9.49.
    """
    deviation = float(np.sqrt(variance))

    def noise(attacker: int, generator: Any, low: int, high: int) -> Vector:
        return narrowed(_normal(honest, generator, high - low) * deviation, honest)

    return _random_rows(honest, count, rng, noise)


@attack()
def infinity(honest: Matrix, count: int, rng: Generator) -> Matrix:
    """Send infinity in every coordinate."""
    return repeat_row(_filled(honest, np.inf), count)


@attack()
def not_a_number(honest: Matrix, count: int, rng: Generator) -> Matrix:
    """Send NaN in every coordinate."""
    return repeat_row(_filled(honest, np.nan), count)


@attack()
def garbage(honest: Matrix, count: int, rng: Generator) -> Matrix:
    """Send random bits, finite random bits, subnormals, extreme numbers and one hidden NaN or Inf, in turn."""
    H, p = honest.shape
    first = int(rng.integers(len(GARBAGE_KINDS)))
    hosts, spots, values = (rng.integers(most, size=count) for most in (H, p, 3))
    E, extremes = EXPONENT_BITS[dtype_name(honest)], narrowed(_extremes(), honest)

    def draw(attacker: int, generator: Any, low: int, high: int) -> Vector:
        kind = GARBAGE_KINDS[(first + attacker) % len(GARBAGE_KINDS)]
        if kind == "one hidden":
            row, spot = copied(honest[int(hosts[attacker]), low:high]), int(spots[attacker])
            if low <= spot < high:
                row[spot - low] = (np.nan, np.inf, -np.inf)[values[attacker]]
            return row
        bits = _bits(honest, generator, high - low)
        if kind == "extreme":
            chosen = bits % len(extremes)
            return extremes[chosen.long() if is_tensor(chosen) else chosen]
        if kind == "finite bits":  # NaN and Inf become finite when the last bit of the exponent is cleared
            bits[(bits & E) == E] &= ~(E & -E)
        elif kind == "subnormal":
            bits &= ~E
        return bits.view(honest.dtype)

    return _random_rows(honest, count, rng, draw)


def _filled(honest: Matrix, value: float) -> Vector:
    row = empty(honest, honest.shape[1:])
    row[:] = value
    return row


def _extremes() -> Vector:
    """Return the largest, smallest and finest numbers of every dtype, and zero, of both signs."""
    known = [np.finfo(dtype) for dtype in (np.float16, np.float32, np.float64)]
    sizes = [float(x) for info in known for x in (info.max, info.tiny, info.smallest_subnormal, info.eps)]
    sizes += [0.0, LARGEST_FINITE["bfloat16"]]
    return np.array([*sizes, *(-x for x in sizes)])


def _random_rows(honest: Matrix, count: int, rng: Generator, draw: Callable[[int, Any, int, int], Vector]) -> Matrix:
    """Return one row per attacker, from draw(attacker, its generator, first column, last column + 1)."""
    p = honest.shape[1]
    sent = empty(honest, (count, p))
    step = p if is_tensor(honest) else NUMBERS_PER_DRAW
    # Seeds, not rng.spawn: the rows are then a function of the generator's state alone.
    seeds = rng.integers(2**63, size=count)

    def fill(attacker: int) -> None:
        generator = _generator(honest, int(seeds[attacker]))
        with np.errstate(over="ignore", invalid="ignore"):
            for low in range(0, p, step):
                high = min(p, low + step)
                sent[attacker, low:high] = draw(attacker, generator, low, high)

    with ThreadPoolExecutor(1 if is_tensor(honest) else None) as pool:
        list(pool.map(fill, range(count)))
    return sent


def _generator(honest: Matrix, seed: int) -> Any:
    """Return NumPy's generator, or torch's on the device of the honest updates."""
    if not is_tensor(honest):
        return np.random.default_rng(seed)
    import torch

    return torch.Generator(device=honest.device).manual_seed(seed)


def _normal(honest: Matrix, generator: Any, size: int) -> Vector:
    """Draw from N(0, 1), in float64 if the honest updates are, else in float32."""
    dtype = "float64" if honest.itemsize == 8 else "float32"
    if not is_tensor(honest):
        return generator.standard_normal(size, dtype=dtype)
    import torch

    return torch.randn(size, generator=generator, dtype=getattr(torch, dtype), device=honest.device)


def _bits(honest: Matrix, generator: Any, size: int) -> Any:
    """Draw integers of as many bits as the honest updates' floats."""
    width = 8 * honest.itemsize
    most = 2 ** (width - 1)
    if not is_tensor(honest):
        return generator.integers(-most, most, size, dtype=f"int{width}")
    import torch

    integers = torch.empty(size, dtype=getattr(torch, f"int{width}"), device=honest.device)
    return integers.random_(-most, None if width == 64 else most, generator=generator)

"""Seeds: one secret integer per round, from which all of its randomness is derived."""

from __future__ import annotations

import secrets

import numpy as np

from bartizan._util.text import quoted
from bartizan._util.types import Array

KEY_BITS = 256


def fresh_seed() -> int:
    """Draw 128 bits of entropy from the operating system, so that no client can guess the projection."""
    return secrets.randbits(128)


def checked_seed(seed: int) -> int:
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= int(seed) < 2**KEY_BITS:
        raise ValueError(f"seed must be an integer from 0 to 2**{KEY_BITS} - 1, got {quoted(seed)}.")
    return int(seed)


def key_of(seed: int) -> Array:
    """Return the seed as the eight key words of ChaCha."""
    return np.frombuffer(int(seed).to_bytes(KEY_BITS // 8, "little"), dtype="<u4").astype(np.uint32)


def generator_of(seed: int, nth: int = 0) -> np.random.Generator:
    """Return a generator for the nth small draw of a round (bucketing), independent of the projection's stream."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(checked_seed(seed), spawn_key=(1, nth))))

"""Surface: sums of Kronecker products, which sketches must not hide more often than they state."""

from functools import reduce

import numpy as np
from hypothesis import strategies as st

import bartizan as bz
from bartizan.lora import LoRA, TwoSided
from fuzz.surfaces import COMPARED, RefusedError, Surface, require
from tests.support.blind_spots import HIDDEN, most_hidden, stated_odds

SKETCHES = (
    *(bz.Rotated(64, mixing=4), bz.Rotated(64, mixing=16), bz.Rotated(256, mixing=16), bz.Rotated(4096)),
    *(bz.Gaussian(16), bz.Achlioptas(64), TwoSided(64, 16), TwoSided(256, 32), TwoSided(4096, 256)),
)
SEEDS = 32
SURPRISE = 1e-13
"""Probability that a case fails although the stated odds are true: 2e-7 in two million cases."""
FACTORS = (*[[1.0, 0.0]] * 5, [0.0, 1.0], [1.0, 1.0], [1.0, -1.0])
"""Products of these are coordinates, pairs and planes at distances of powers of two, lanes, blocks and characters."""


def _vectors(sketch):
    width = 2 * sketch.rows if isinstance(sketch, TwoSided) else 2 * sketch.k  # two blocks
    n = width.bit_length() - 1
    products = st.lists(st.sampled_from(FACTORS), min_size=n, max_size=n).map(lambda each: reduce(np.kron, each))
    return st.tuples(products, products, st.sampled_from([0.0, 1.0, -1.0, 0.5])).map(lambda v: v[0] + v[2] * v[1])


CASES = st.sampled_from(SKETCHES).flatmap(lambda sketch: st.tuples(st.just(sketch), _vectors(sketch), _vectors(sketch)))
"""A sketch with a vector for each side of a two-sided one; the first one is enough for others."""


def check(case, first_seed):
    sketch, u, v = case
    squares = (u @ u, v @ v)
    if not all(squares):
        raise RefusedError
    shown = []
    for seed in range(SEEDS * first_seed, SEEDS * (first_seed + 1)):
        if isinstance(sketch, TwoSided):
            adapter = {"m.lora_A.weight": v[None], "m.lora_B.weight": u[:, None]}
            y = sketch([adapter], seed=seed, settings=LoRA(alpha=1)) / squares[1] ** 0.5
        else:
            y = sketch(u[None], seed=seed)
        shown.append((y**2).sum() / squares[0])
    hidden = int((np.array(shown) < HIDDEN).sum())
    limit = most_hidden(SEEDS, stated_odds(sketch), SURPRISE)
    require(hidden <= limit, f"{sketch!r} hides a vector in {hidden} of {SEEDS} seeds, where {limit} are expected")
    return COMPARED


def warm():
    """Compile what the cases need, and compute the stated odds."""
    for sketch in SKETCHES:
        stated_odds(sketch)
        if not isinstance(sketch, TwoSided):
            sketch(np.ones((1, 2 * sketch.k)), seed=1)


def surface(folder):
    return Surface(check, {"case": CASES, "first_seed": st.integers(0, 2**20)}, warm)

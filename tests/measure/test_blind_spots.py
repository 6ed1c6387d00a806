"""No sketch has a blind spot that can be guessed: structured inputs are hidden as rarely as each sketch states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import bartizan as bz
from bartizan.judge.judge import RECHECK_SKETCH
from bartizan.kernels import reference
from bartizan.lora import TwoSided
from bartizan.sources.adapters.two_sided import RandomSigns
from blind_spots import hiding_seeds, most_hidden, stated_odds

# Sketch, coordinates (two blocks and more), seeds. For mixing = 1 a blind spot is stated: two coordinates, 2 / k.
SKETCHES = [
    (bz.Gaussian(8), 64, 1000),
    (bz.Gaussian(64), 64, 200),
    (bz.Achlioptas(64), 64, 1000),
    (bz.Achlioptas(256), 256, 60),
    (bz.Rotated(64, mixing=1), 128, 1500),
    (bz.Rotated(64, mixing=4), 128, 1500),
    (bz.Rotated(64, mixing=16), 128, 1000),
    (bz.Rotated(256, mixing=16), 1024, 200),
    (bz.Rotated(4096, mixing=1), 8192, 20),
    (bz.Rotated(4096, mixing=16), 8192, 20),
    (RECHECK_SKETCH, 8192, 40),
    (TwoSided(64, 16), 64, 60),
    (TwoSided(256, 32), 128, 40),
    (TwoSided(), 512, 6),
]


@pytest.mark.parametrize(("sketch", "p", "seeds"), SKETCHES, ids=repr)
def test_structured_inputs_are_hidden_as_rarely_as_the_sketch_states(sketch, p, seeds):
    """If the stated odds hold, one input exceeds the limit with a probability below 1e-9, any of 12,000 below 2e-5."""
    assert hiding_seeds(sketch, p, seeds).max() <= most_hidden(seeds, stated_odds(sketch))


@dataclass(frozen=True)
class Claims:
    """A sketch that states the odds of another."""

    sketch: Any
    other: Any

    def norm_ratio_range(self, odds):
        return self.other.norm_ratio_range(odds)

    def __call__(self, updates, *, seed, **more):
        return self.sketch(updates, seed=seed, **more)


@dataclass(frozen=True)
class SamplesCells:
    """Shows one coordinate in eight, chosen by the seed."""

    def __call__(self, updates, *, seed):
        kept = np.random.default_rng(seed).random(updates.shape[1]) < 1 / 8
        return updates[:, kept] * 8**0.5


@pytest.mark.parametrize(
    ("sketch", "other", "p", "seeds"),
    [
        (bz.Rotated(64, mixing=1), bz.Rotated(64, mixing=16), 128, 1000),
        (bz.Achlioptas(64, s=64), bz.Achlioptas(64), 64, 200),
        (SamplesCells(), bz.Rotated(), 512, 40),
    ],
    ids=["no mixing", "a non-zero in a column", "sampled coordinates"],
)
def test_a_sketch_with_a_blind_spot_is_found_out(sketch, other, p, seeds):
    """Two coordinates meet in 1 of 128 seeds, a column is empty in 1 of 3, a coordinate is left out in 7 of 8."""
    assert hiding_seeds(Claims(sketch, other), p, seeds).max() > most_hidden(seeds, stated_odds(other))


def hadamard_rows(self, modules, side, low, x):
    """Signs of `TwoSided` before rows were independent: equal groups of rows vanish on both sides."""
    rng, n_blocks = np.random.default_rng([int(self.key[0] >> 32), side == "A"]), -(-x.shape[2] // self.rows)
    first, second = rng.choice([-1.0, 1.0], size=(2, n_blocks, self.rows))
    signs = first[:, :, None] * reference.hadamard(self.rows) * second[:, None]
    return signs.reshape(1, -1, self.rows)[:, : x.shape[2]].astype(x.dtype)


def test_so_is_a_two_sided_one_whose_rows_are_not_independent(monkeypatch):
    sketch, seeds = TwoSided(64, 16), 60
    limit = most_hidden(seeds, stated_odds(sketch))
    monkeypatch.setattr(RandomSigns, "columns", hadamard_rows)
    assert hiding_seeds(sketch, 64, seeds).max() > limit


def test_the_odds_that_the_default_sketches_state():
    """They are written down in docs/explanation/sketches.md and docs/guides/adapters.md."""
    assert stated_odds(bz.Rotated()) < 2.0**-48
    assert stated_odds(TwoSided()) < 2.0**-80

"""The fast kernels against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from bartizan.kernels import cpu, reference
from bartizan.kernels.rows import Rows
from bartizan.randomness import key_of

KEY = key_of(2**200 + 12345)
SHAPES = [(1, 1), (2, 63), (5, 4096), (7, 9001), (13, 300)]
# name, shape of the result for (M, w), arguments between origin and out
KERNELS = [
    ("gram", lambda M, w: (M, M), ()),
    ("squared_norms", lambda M, w: (M,), ()),
    ("dots", lambda M, w: (M,), ()),
    ("rotated", lambda M, w: (M, 4096), (8192, KEY, 32)),
    ("rotated", lambda M, w: (M, 64), (64 * 1001, KEY, 32)),
    ("rotated", lambda M, w: (M, 64), (0, KEY, 1)),
    ("rotated", lambda M, w: (M, 256), (256, KEY, 64)),
    ("rotated", lambda M, w: (M, 128), (128, KEY, 128)),
    ("achlioptas", lambda M, w: (M, 37), (11, KEY, 8)),
    ("achlioptas", lambda M, w: (M, 16), (0, KEY, 1)),
    ("gaussian", lambda M, w: (M, 37), (11, KEY)),
]


@pytest.mark.parametrize(("name", "shape", "arguments"), KERNELS, ids=[f"{k[0]}-{i}" for i, k in enumerate(KERNELS)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("with_origin", [False, True])
@pytest.mark.parametrize("small", [0, 2**60], ids=["all threads", "one thread"])
def test_a_kernel_adds_what_its_definition_adds(name, shape, arguments, dtype, with_origin, small, monkeypatch):
    monkeypatch.setattr(cpu, "SMALL", small)
    rng = np.random.default_rng(0)
    for M, w in SHAPES:
        x = rng.normal(size=(M, w)).astype(dtype)
        origin = rng.normal(size=w) if with_origin else None
        norms = (np.full(M, 0.5),) if arguments else ()
        fast, slow = ([np.full(shape(M, w), 0.25), *(n.copy() for n in norms)] for _ in range(2))
        getattr(cpu, name)(Rows.of(x), origin, *arguments, *fast)
        getattr(reference, name)(x, origin, *arguments, *slow)
        for ours, truth in zip(fast, slow, strict=True):
            np.testing.assert_allclose(ours, truth, atol=1e-11 * w)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_weighted_sum_adds_what_its_definition_adds(dtype):
    rng = np.random.default_rng(1)
    for M, w in [*SHAPES, (3, 20_000)]:
        x, weights = rng.normal(size=(M, w)).astype(dtype), rng.normal(size=M)
        fast, slow = np.full(w, 0.25), np.full(w, 0.25)
        cpu.weighted_sum(Rows.of(x), weights, fast)
        reference.weighted_sum(x, weights, slow)
        np.testing.assert_allclose(fast, slow, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["gram", "squared_norms"])
def test_what_is_not_finite_shows_in_its_own_row_and_nowhere_else(bad, name):
    for place in (0, 255, 256, 998):
        x = np.ones((6, 999), dtype=np.float32)
        x[2, place] = bad
        out = np.zeros((6, 6) if name == "gram" else 6)
        getattr(cpu, name)(Rows.of(x), None, out)
        others = [0, 1, 3, 4, 5]
        assert not np.isfinite(out[2]).any()
        assert np.isfinite(out[np.ix_(others, others)] if name == "gram" else out[others]).all()


def test_equal_rows_are_at_distance_zero_to_the_last_bit():
    x = np.random.default_rng(3).normal(size=(7, 5000)).astype(np.float32)
    x[6] = x[1]
    G = np.zeros((7, 7))
    cpu.gram(Rows.of(x), None, G)
    assert G[1, 1] + G[6, 6] - 2 * G[1, 6] == 0


def test_rows_point_into_memory_without_copying_it():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = Rows.of(x)
    x[1, 2] = 99
    np.testing.assert_array_equal(np.asarray(rows), x)
    np.testing.assert_array_equal(np.asarray(rows, dtype=np.float64), x)

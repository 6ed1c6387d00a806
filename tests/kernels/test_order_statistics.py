"""Median, trimmed mean, MeaMed and mixtures of rows against their definitions."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest

import bartizan as bz
from bartizan.kernels import cpu, reference
from bartizan.kernels.rows import Mixing, Rows
from bartizan.updates.layout import widen_bfloat16

SHAPES = [(1, 1), (2, 63), (3, 64), (5, 4096), (7, 9001), (50, 300), (131, 70), (1000, 33)]


def cases(M):
    """Kernels with their number of dropped values."""
    yield "median", {}
    for f in sorted({0, 1, M // 5, (M - 1) // 2}):
        if 2 * f < M:
            yield "trimmed_mean", {"f": f}
    for f in sorted({0, 1, M // 5, (M - 1) // 2, 3 * M // 4}):
        if f < M:
            yield "meamed", {"f": f}


def agree(x, sizes, exact=None, rtol=1e-12):
    """All kernels write what their definitions write, in float64, into memory that held NaN."""
    rows, exact = Rows.of(x), np.asarray(x, np.float64) if exact is None else exact
    for name, settings in cases(len(x)):
        fast, slow = np.full((2, 1, x.shape[1]), np.nan)
        getattr(cpu, name)(rows, sizes=sizes, out=Rows.of(fast), **settings)
        getattr(reference, name)(exact, sizes=sizes, out=slow, **settings)
        # Sums may be taken in another order: an error of some last bits of the largest number.
        np.testing.assert_allclose(fast, slow, rtol=rtol, atol=rtol * np.abs(exact).max(), err_msg=f"{name} {settings}")


def sizes_of(M, sized):
    return np.random.default_rng(3).integers(1, 9, size=M) / 7 if sized else np.full(M, 0.3)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("M", "w"), SHAPES)
def test_a_kernel_writes_what_its_definition_writes(M, w, dtype, sized):
    agree(np.random.default_rng(M).normal(size=(M, w)).astype(dtype), sizes_of(M, sized))


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("M", [*range(1, 20), 33, 64, 65])
def test_equal_values_and_distances_are_no_exception(M, sized):
    x = np.random.default_rng(M).integers(-2, 3, size=(M, 200)).astype(np.float32)
    agree(x, sizes_of(M, sized))


@pytest.mark.parametrize("sized", [False, True])
def test_bfloat16_rows_are_read_in_place(sized):
    bits = (np.random.default_rng(0).normal(size=(9, 500)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    agree(bits, sizes_of(9, sized), widen_bfloat16(bits).astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("M", [2, 5, 8])
def test_the_mean_of_two_huge_numbers_is_finite(M, dtype):
    x, out = np.full((M, 20), np.finfo(dtype).max, dtype), np.full((1, 20), np.nan, dtype)
    for sizes in (np.ones(M), np.arange(1.0, M + 1)):
        cpu.median(Rows.of(x), sizes, Rows.of(out))
        np.testing.assert_array_equal(out[0], x[0])
    if dtype == np.float32:
        agree(np.random.default_rng(0).choice(np.array([3e38, -3e38, 1.0, 1e30], dtype), size=(M, 50)), np.ones(M))


def test_zeros_of_both_signs_and_the_tiniest_numbers_are_kept():
    tiny = np.float64(5e-324)
    x = np.array([[0.0, tiny], [-0.0, tiny], [-0.0, tiny], [0.0, tiny]])
    for rows in (x, x[:3]):
        out = np.full((1, 2), np.nan)
        cpu.median(Rows.of(rows), np.ones(len(rows)), Rows.of(out))
        assert out.tolist() == [[0.0, tiny]]


@pytest.mark.parametrize("sized", [False, True])
def test_the_result_depends_on_no_thread_strip_or_place_to_the_bit(sized, monkeypatch):
    x = np.random.default_rng(0).normal(size=(21, 30_011)).astype(np.float32)
    for name, settings in cases(21):
        made = []
        for threads, strip in ((1, 2**19), (3, 2**19), (2, 2**14), (16, 1)):
            monkeypatch.setattr(cpu, "n_threads", lambda threads=threads: threads)
            monkeypatch.setattr(cpu, "STRIP_BYTES", strip)
            made.append(np.full((1, x.shape[1]), np.nan))
            getattr(cpu, name)(Rows.of(x), sizes=sizes_of(21, sized), out=Rows.of(made[-1]), **settings)
        made.append(np.full((1, x.shape[1]), np.nan))
        for low, high in ((0, 7), (7, 20_000), (20_000, x.shape[1])):
            part = Rows.of(made[-1][:, low:high])
            getattr(cpu, name)(Rows.of(x[:, low:high]), sizes=sizes_of(21, sized), out=part, **settings)
        for other in made[1:]:
            np.testing.assert_array_equal(made[0], other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("R", "M", "w"), [(1, 1, 1), (4, 9, 70), (50, 50, 300), (3, 130, 1000)])
def test_mixtures_are_those_of_their_definition(R, M, w, dtype):
    rng = np.random.default_rng(R)
    x, origin = rng.normal(size=(M, w + 37)).astype(dtype), rng.normal(size=w + 37)
    mixing = rng.random((R, M)) * (rng.random((R, M)) < 0.4)
    for about in (None, origin):
        for start in (0, 37):
            fast, slow = np.full((2, R, w), np.nan)
            cpu.mixed(Rows.of(x), mixing, 1 - mixing.sum(1), about, start, fast)
            reference.mixed(x, mixing, 1 - mixing.sum(1), about, start, slow)
            np.testing.assert_allclose(fast, slow, atol=1e-13 * (1 + np.abs(slow).max()) * M)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("name", ["median", "trimmed_mean", "meamed"])
def test_order_statistics_of_mixtures_are_those_of_their_definitions(name, sized, alike):
    """Most rows of the mixing are the same, or each leaves out other clients; a distant client is in few of them."""
    rng, M, R = np.random.default_rng(4), 13, 11
    x, origin = rng.normal(size=(M, 9000)).astype(np.float32), rng.normal(size=9000).astype(np.float32)
    x[0] = 1e30
    mixing = (rng.random((R, M)) < (0.9 if alike else 0.3)) * 0.1
    mixing[1:, 0] = 0
    settings = {} if name == "median" else {"f": 2}
    for about in (None, origin):
        fast, slow, rest = np.full((1, 9000), np.nan), np.full((1, 9000), np.nan), 1 - mixing.sum(1)
        rows = dataclasses.replace(Rows.of(x), mixing=Mixing(mixing, rest, about))
        getattr(cpu, name)(rows, sizes=sizes_of(R, sized), out=Rows.of(fast), **settings)
        mixtures = mixing @ x.astype(float) + (0 if about is None else rest[:, None] * about)
        getattr(reference, name)(mixtures, sizes=sizes_of(R, sized), out=slow, **settings)
        np.testing.assert_allclose(fast, slow, atol=1e-13)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("rule", [bz.Median(), bz.TrimmedMean(1000), bz.MeaMed(1000)], ids=repr)
def test_many_clients_take_little_memory(rule, sized):
    """10,000 clients: a matrix of pairs would take 800 MB, and sorted copies of all more than the updates."""
    x = np.random.default_rng(0).normal(size=(10_000, 300)).astype(np.float32)
    sizes = np.random.default_rng(1).integers(1, 9, size=len(x)) if sized else None
    bz.aggregate(x[:3000, :5], rule, sizes=None if sizes is None else sizes[:3000])
    tracemalloc.start()
    try:
        out = bz.aggregate(x, rule, sizes=sizes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20, f"{peak / 2**20:.0f} MiB"
    truth = rule(x[:, :20].astype(np.float64), np.ones(len(x)) if sizes is None else sizes / 8.0)
    np.testing.assert_allclose(out.update[:20], truth, rtol=1e-5, atol=1e-6)

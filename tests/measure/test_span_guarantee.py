"""The theorem about spans under `Rotated`, step by step and as a whole, on a NumPy model of it with swapped lanes.

Steps about one mixed row are checked by enumeration, so they are exact. The model draws a swap of
lanes per row of the input, signs before and after the Hadamard transform, and an offset per mixed row.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import bartizan as bz
from bartizan.kernels import reference
from bartizan.measure.span_guarantee import guarantee, lane_leverage, rotated_span, row_spread
from studies.theory import subspace_embedding
from studies.theory.bounds import axes_kept, occupancy_odds

SEEDS = 10_000


def orthonormal(x):
    """An orthonormal basis of the columns' span."""
    return np.linalg.qr(x)[0]


def moved(x, offsets):
    """Rotate axis -2 of x by offsets, one for each of the axes before it."""
    places = (np.arange(x.shape[-2]) - offsets[..., None]) % x.shape[-2]
    return np.take_along_axis(x, places[..., None], axis=-2)


def swapped(x, rng):
    """Move lane l of each row to lane l XOR a random number, in (seeds, blocks, n, L, M)."""
    lanes = np.arange(x.shape[3]) ^ rng.integers(x.shape[3], size=(*x.shape[:3], 1))
    return np.take_along_axis(x, lanes[..., None], axis=3)


def signed(x, rng):
    return x * (2 * rng.integers(2, size=(*x.shape[:-1], 1), dtype=np.int8) - 1).astype(np.float32)


def model(basis, rng, seeds):
    """Return n G_c, (seeds, n, M, M), and the projected Gram matrices, for an orthonormal basis (blocks, n, L, M)."""
    B, n, L, M = basis.shape
    x = np.broadcast_to(basis.astype(np.float32), (seeds, *basis.shape))
    x = signed(swapped(x, rng), rng)
    H = (reference.hadamard(n) / math.sqrt(n)).astype(np.float32)
    y = (H @ x.reshape(seeds * B, n, L * M)).reshape(x.shape)
    slices = y.transpose(0, 2, 1, 3, 4).reshape(seeds, n, B * L, M)
    shares = n * (slices.swapaxes(2, 3) @ slices)
    cells = moved(signed(y, rng), rng.integers(L, size=(seeds, B, n))).sum(axis=1).reshape(seeds, n * L, M)
    return shares, cells.swapaxes(1, 2) @ cells


def draws(basis, seeds, at_a_time=500):
    """Return rho, trace and the least part of a squared length that is kept, one per seed."""
    rng = np.random.default_rng(2)
    found = []
    for _ in range(seeds // at_a_time):
        shares, grams = model(basis, rng, at_a_time)
        traces = np.trace(shares, axis1=2, axis2=3).max(axis=1) / basis.shape[-1]
        found.append((np.linalg.eigvalsh(shares)[..., -1].max(axis=1), traces, np.linalg.eigvalsh(grams)[:, 0]))
    return [np.concatenate(part) for part in zip(*found, strict=True)]


def at_most(part, seeds):
    """The most seeds that an event of this probability takes, except with probability 3e-7."""
    return seeds * part + 5 * math.sqrt(seeds * part) + 5


def spans(n, L, M, rng, blocks=2):
    """Spans that an attacker may choose without the seed, and ordinary ones: orthonormal bases (blocks, n, L, M)."""
    p, half = blocks * n * L, M // 2
    at = np.arange(p).reshape(blocks, n, L)
    lane = np.concatenate([at[0, :half, 3 % L], at[1, : M - half, 3 % L]])
    axes = np.eye(p)[:, lane]
    flat = np.zeros((p, M))  # on a whole lane of both blocks, signs from the Hadamard matrix
    for m in range(M):
        for b in range(2):
            flat[at[b, :, m % L], m] = reference.hadamard(n)[m]
    pairs = np.zeros((p, M))  # on 2 rows of one lane in both blocks
    for m in range(M):
        pairs[at[:2, 2 * m : 2 * m + 2, 1 % L].ravel(), m] = 1
    one_and_rest = rng.normal(size=(p, M)) / 10
    one_and_rest[lane[:half], np.arange(half)] += 10
    found = {
        "a lane of two blocks": axes,
        "flat lanes": flat,
        "pairs in a lane": pairs,
        "dense": rng.normal(size=(p, M)),
        "heavy tails": rng.standard_t(1.5, size=(p, M)),
        "axes and dense": one_and_rest,
    }
    return {name: orthonormal(x).reshape(blocks, n, L, M) for name, x in found.items()}


SPANS = list(spans(16, 16, 4, np.random.default_rng(0)))


@pytest.fixture(scope="module", params=[(2, 4), (3, 2)], ids=["2 blocks of 4 lanes", "3 blocks of 2 lanes"])
def one_row(request):
    """A mixed row: the blocks' shares G_cb, and X_c for every choice of its signs and offsets."""
    B, L = request.param
    q = np.random.default_rng(B).normal(size=(B, L, 3)) * np.array([1.0, 2.0, 0.2])
    q /= math.sqrt(np.linalg.norm(np.einsum("blm,blq->mq", q, q), 2))
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=B * L))).reshape(-1, B, L, 1)
    found = []
    for offsets in itertools.product(range(L), repeat=B):
        cells = moved(signs * q, np.broadcast_to(offsets, (len(signs), B))).sum(axis=1)
        found.append(np.einsum("slm,slq->smq", cells, cells))
    return np.einsum("blm,blq->bmq", q, q), np.concatenate(found), L


def exp(symmetric):
    values, vectors = np.linalg.eigh(symmetric)
    return (vectors * np.exp(values)[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def least(symmetric):
    return np.linalg.eigvalsh(symmetric)[..., 0].min()


def test_a_row_is_kept_on_average_with_the_stated_second_moment(one_row):
    G_b, X, L = one_row
    G, Z = G_b.sum(axis=0), G_b.sum(axis=0) - X
    np.testing.assert_allclose(X.mean(axis=0), G, atol=1e-12)
    second = (Z @ Z).mean(axis=0)
    traces = np.trace(G) - np.trace(G_b, axis1=1, axis2=2)
    np.testing.assert_allclose(second, (np.einsum("b,bmq->mq", traces, G_b) + G @ G - (G_b @ G_b).sum(axis=0)) / L)
    assert least((np.trace(G) + np.linalg.norm(G, 2)) * G / L - second) > -1e-12
    assert least(G - Z) > -1e-12  # X is not negative


@pytest.mark.parametrize("theta", [0.1, 1, 5, 20])
def test_the_one_sided_bennett_step_holds_for_a_row(one_row, theta):
    """E exp(theta Z) <= I + g E Z^2, where g = (exp(theta R) - 1 - theta R) / R^2 and Z <= R; here R = |G| = 1."""
    G_b, X, _ = one_row
    Z = G_b.sum(axis=0) - X
    g = math.exp(theta) - 1 - theta
    assert least(np.eye(3) + g * (Z @ Z).mean(axis=0) - exp(theta * Z).mean(axis=0)) > -1e-12 * g


@pytest.mark.parametrize("alike", [True, False])
def test_the_moments_of_a_signed_lane_are_at_most_a_normal_variables(alike):
    """All 2^8 signs: E exp(theta g g') <= I + ((1 - 2 theta tau)^-1/2 - 1) / tau A, and E exp(theta |g|^2) <= det."""
    q = np.random.default_rng(1).normal(size=(8, 3)) if not alike else np.ones((8, 1)) * [[1.0, 0.5, 0.0]]
    A = q.T @ q
    tau = np.trace(A)
    g = np.array(list(itertools.product([1.0, -1.0], repeat=8))) @ q
    for theta in np.array([0.05, 0.2, 0.4, 0.49]) / tau:
        average = exp(theta * g[:, :, None] * g[:, None, :]).mean(axis=0)
        assert least(np.eye(3) + ((1 - 2 * theta * tau) ** -0.5 - 1) / tau * A - average) > -1e-9
        norms = np.exp(theta * (g**2).sum(axis=1)).mean()
        assert norms <= np.linalg.det(np.eye(3) - 2 * theta * A) ** -0.5 * (1 + 1e-12)


@pytest.fixture(scope="module", params=SPANS)
def drawn(request):
    """10,000 seeds of a span of 4 vectors under k = 512, mixing = 32."""
    return draws(spans(32, 16, 4, np.random.default_rng(0))[request.param], SEEDS)


@pytest.mark.parametrize(("rho", "trace", "factor"), [(1.3, 1.15, 3.0), (2.0, 1.3, 3.5), (4.0, 2.0, 5.0)])
def test_a_span_is_kept_as_often_as_promised_and_the_bound_is_within_a_factor(drawn, rho, trace, factor):
    """At most 5% of the seeds leave the bound; a 1 - theta that is `factor` times smaller would be left by more."""
    largest, traces, kept = drawn
    theta = rotated_span(512, 32, 4, 0.05, rho, trace)
    holds = (largest <= rho) & (traces <= trace)
    assert theta > 0
    assert (kept[holds] < theta).sum() <= at_most(0.05, SEEDS)
    assert (1 - theta) / factor < np.quantile(1 - kept, 0.95)


def test_a_bound_for_another_sketch_is_left(drawn):
    """The check above can fail: the theta of 16 times the k and the mixing is not kept."""
    assert (drawn[2] < rotated_span(16 * 512, 16 * 32, 4, 0.05, 1.0)).mean() > 0.05


def test_axes_share_a_lane_as_rarely_as_proven_and_are_kept():
    """rho is the number of axes in the fullest lane, and the traces are even; 4 + 4 axes of one lane."""
    axes = np.zeros((2, 16, 64, 8))
    axes[np.repeat([0, 1], 4), np.tile(np.arange(4), 2), 5, np.arange(8)] = 1
    largest, traces, kept = draws(axes, SEEDS, 250)
    np.testing.assert_allclose(traces, 1, rtol=1e-5)  # float32
    np.testing.assert_allclose(largest, largest.round(), rtol=1e-5)
    for j in (2, 3, 4):
        assert (largest > j - 0.5).sum() <= at_most(occupancy_odds(1024, 16, (4, 4), j), SEEDS)
    assert (largest > 1.5).mean() > 0.8 * occupancy_odds(1024, 16, (4, 4), 2)
    theta = axes_kept(1024, 16, (4, 4), 0.01)
    assert 0.2 < theta < 1
    assert (kept < theta).sum() <= at_most(0.01, SEEDS)


def test_a_lane_of_two_blocks_is_kept_with_swapped_lanes():
    """64 axes, 32 of each block: without swaps a vector of them is lost in 22% of the seeds."""
    axes = np.zeros((2, 32, 128, 64))
    axes[np.repeat([0, 1], 32), np.tile(np.arange(32), 2), 5, np.arange(64)] = 1
    assert draws(axes, 200, 20)[2].min() > 0.6


@pytest.mark.parametrize("name", SPANS)
def test_rows_are_spread_as_proven_for_every_span(name):
    """2,000 seeds; delta 0.05. The bound from the leverage of lanes and the one without it, which is about any span."""
    of_span = spans(16, 16, 4, np.random.default_rng(0), blocks=8)[name]
    leverage = lane_leverage(of_span.reshape(-1, 4).T, 256, 16)
    largest, traces, _ = draws(of_span, 2000)
    for given in (leverage, 1.0):
        rho, trace = row_spread(16, 4, 0.05, given)
        assert ((largest > rho * (1 + 1e-5)) | (traces > trace * (1 + 1e-5))).sum() <= at_most(0.05, 2000)


@pytest.mark.parametrize("name", SPANS)
def test_with_full_mixing_every_span_is_kept(name):
    """The library's kernel, k = mixing = 1024; M = 2, delta 0.05, and nothing is supposed of the span; 400 seeds."""
    sketch = bz.Rotated(1024, mixing=1024)
    theta = guarantee(sketch, 2, 0.05).span
    assert 0.2 < theta < 0.5
    rows = spans(1024, 1, 2, np.random.default_rng(0))[name].reshape(-1, 2).T
    kept = [np.linalg.svd(sketch(rows, seed=seed), compute_uv=False)[-1] ** 2 for seed in range(400)]
    assert np.count_nonzero(np.array(kept) < theta) <= at_most(0.05, 400)


@pytest.mark.parametrize("name", ["1 coordinate", "dense"])
@pytest.mark.parametrize("s", [1, 3, 8, 32])
def test_the_sparse_matrix_keeps_a_span_as_proven(name, s):
    """k = 512, M = 6, delta 0.05, 4,000 seeds of the model: independent entries."""
    rng = np.random.default_rng(s)
    basis = np.eye(6) if name == "1 coordinate" else orthonormal(rng.normal(size=(24, 6)))
    theta = guarantee(bz.Achlioptas(512, s), 6, 0.05).span
    kept = []
    for _ in range(40):
        entries = rng.choice([1.0, 0.0, -1.0], p=[0.5 / s, 1 - 1 / s, 0.5 / s], size=(100, 512, len(basis)))
        x = entries @ basis * math.sqrt(s / 512)
        kept.append(np.linalg.eigvalsh(x.swapaxes(1, 2) @ x)[:, 0])
    kept = np.concatenate(kept)
    assert theta > 0
    assert (kept < theta).sum() <= at_most(0.05, 4000)
    assert (1 - theta) / 3 < np.quantile(1 - kept, 0.95)


def test_the_second_moment_of_a_sparse_row_is_the_stated_one():
    """E |a|^2 a a' = ((M + 2) I + (s - 3) sum |q_i|^2 q_i q_i') / k^2, over all 3^7 rows."""
    q, s = orthonormal(np.random.default_rng(0).normal(size=(7, 3))), 8
    rows = np.array(list(itertools.product([-1.0, 0.0, 1.0], repeat=7)))
    odds = np.prod(np.where(rows == 0, 1 - 1 / s, 0.5 / s), axis=1)
    a = math.sqrt(s) * rows @ q
    found = np.einsum("i,i,im,iq->mq", odds, (a**2).sum(axis=1), a, a)
    np.testing.assert_allclose(found, 5 * np.eye(3) + (s - 3) * (q.T * (q**2).sum(axis=1)) @ q, atol=1e-12)


def test_the_guarantee_of_a_round_says_which_promise_it_has():
    promises = {
        "span": [bz.Exact(), bz.Gaussian(4096), bz.Achlioptas(4096, 8), bz.Rotated(16384, mixing=4096)],
        "pairs": [bz.Gaussian(40), bz.Achlioptas(256, 8)],
        "norms": [bz.Rotated(4096), bz.Gaussian(2), bz.Achlioptas(64, 8)],
    }
    for promise, sketches in promises.items():
        for sketch in sketches:
            found = guarantee(sketch, 50, 0.05, rounds=100)
            assert found.promise == promise, sketch
            assert 0 <= found.span <= found.pairs <= 1
            assert found.inflation >= 1
    given = guarantee(bz.Rotated(), 50, 0.05, rounds=100, spread=(1.0, 1.0))
    assert (round(given.span, 3), given.promise) == (0.355, "span")
    assert given.pairs > 0.75


def test_more_is_kept_by_more_cells_more_mixing_and_fewer_clients():
    for sketch, better in [
        (bz.Gaussian(4096), bz.Gaussian(8192)),
        (bz.Achlioptas(4096, 8), bz.Achlioptas(4096, 3)),
        (bz.Rotated(16384, 4096), bz.Rotated(16384, 8192)),
        (bz.Rotated(16384, 4096), bz.Rotated(32768, 4096)),
    ]:
        one, other = guarantee(sketch, 50, 0.05, 100), guarantee(better, 50, 0.05, 100)
        assert 0 < one.span < other.span
        assert guarantee(sketch, 51, 0.05, 100).span < one.span
        assert guarantee(sketch, 50, 0.05, 101).span < one.span
    assert rotated_span(4096, 32, 50, 0.0005, 1.2, 1.05) > rotated_span(4096, 32, 50, 0.0005, 1.3, 1.05)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda: guarantee(bz.Gaussian(64), 0, 0.05), "n_clients must be a positive whole number, got 0"),
        (lambda: guarantee(bz.Gaussian(64), 5, 1.5), "delta must be between 0 and 1, got 1.5"),
        (lambda: guarantee(bz.Rotated(), 5, 0.05, leverage=0.0), "leverage must be above 0, got 0.0"),
        (lambda: guarantee(bz.Rotated(), 5, 0.05, spread=(0.5, 1.0)), "1 <= trace <= rho, got rho=0.5, trace=1.0"),
        (lambda: rotated_span(64, 3, 5, 0.05, 1.0), "power of two that divides k = 64"),
    ],
)
def test_what_the_theorem_does_not_speak_of_is_refused(call, wanted):
    with pytest.raises(ValueError, match=wanted):
        call()


def test_the_leverage_of_lanes_holds_for_every_choice_of_lanes():
    rng = np.random.default_rng(0)
    x = rng.standard_t(2, size=(5, 300))
    q = np.zeros((5, 320))
    q[:, :300] = orthonormal(x.T).T
    by_row = (q**2).sum(axis=0).reshape(-1, 8, 8)
    lanes = [by_row[:, np.arange(8), rng.integers(8, size=8)].sum(axis=1).max() for _ in range(500)]
    assert max(lanes) <= lane_leverage(x, 64, 8) <= 2 * max(lanes)
    assert lane_leverage(np.vstack([x, x[0] + x[1]]), 64, 8) == pytest.approx(lane_leverage(x, 64, 8))


def test_the_rows_of_real_gradients_are_spread_better_than_their_leverage_shows(one_thread):
    """M = 8, p = 33,914, the default size: rho stays below 2, though single lanes have a large leverage."""
    pytest.importorskip("torch")
    q = subspace_embedding.basis("gradients", 8, np.random.default_rng(0), independent=False)
    padded = np.zeros((9 * 4096, 8))
    padded[: q.shape[1]] = q.T
    largest, traces, kept = draws(padded.reshape(9, 32, 128, 8), 40, 10)
    assert largest.max() < 2
    assert traces.max() < 1.3
    theta = rotated_span(4096, 32, 8, 0.05 / 100, 2.0, 1.3)
    assert 0.5 < theta < kept.min()
    assert guarantee(bz.Rotated(), 8, 0.05, 100, leverage=lane_leverage(q, 4096, 32)).promise != "span"

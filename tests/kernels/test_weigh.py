"""The kernels of the weigh stage against their definitions, and what they promise about ties, giants and threads."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest

import bartizan as bz
import oracle
from bartizan.kernels import reference, weigh
from bartizan.measure.geometry import Geometry

SIZES = [1, 2, 3, 4, 5, 12, 31, 64, 97]


def random(rng, M):
    return rng.normal(size=(M, 6))


def grid(rng, M):
    """Few distinct distances: ties everywhere."""
    return rng.integers(0, 3, size=(M, 3)).astype(float)


def twins(rng, M):
    x = random(rng, M)
    x[: M // 3] = x[0]
    return x


def agreed(rng, M):
    return np.tile(rng.normal(size=6), (M, 1))


def giants(rng, M):
    x = random(rng, M)
    x[: M // 4] *= 1e140
    x[M // 4 : M // 2] *= 1e15
    return x


def all_scales(rng, M):
    return random(rng, M) * 10.0 ** rng.integers(-100, 100, size=(M, 1))


def equidistant(rng, M):
    """All distances equal but for the last digits."""
    return np.linalg.qr(rng.normal(size=(M, M)))[0]


KINDS = [random, grid, twins, agreed, giants, all_scales, equidistant]
every = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def gram(x):
    G = x @ x.T
    return (G + G.T) / 2


def drawn(kind):
    for M in SIZES:
        rng = np.random.default_rng(M)
        yield M, rng, kind(rng, M)


@every
def test_distances_and_the_medoid_are_those_of_the_definition_to_the_last_bit(kind):
    for M, _, x in drawn(kind):
        for G in (gram(x), gram(np.vstack([x, x[:1] + 1]))):
            D, medoid, median = weigh.distances(G, M)
            truth, true_medoid, true_median = reference.distances(G, M)
            np.testing.assert_array_equal(D, truth)
            assert (medoid, median) == (true_medoid, true_median)
            assert not np.signbit(D).any()


@every
def test_recentring_puts_the_origin_behind_the_clients_and_is_symmetric(kind):
    for M, _, x in drawn(kind):
        for G in (gram(x), gram(np.vstack([x, x[:1] + 1]))):
            for centre in {0, M // 2, M - 1}:
                inner = weigh.recentred(G, centre, M)
                np.testing.assert_array_equal(inner, inner.T)
                lengths = np.sqrt(np.diag(G))
                size = np.insert(lengths, M, 0.0) + lengths[centre]
                error = np.abs(inner - reference.recentred(G, centre, M))
                assert (error <= 1e-14 * np.outer(size, size)).all()


@every
def test_who_is_nearest_and_in_which_order(kind):
    for M, rng, x in drawn(kind):
        D, sizes = weigh.distances(gram(x), M)[0], rng.uniform(0.1, 1, size=M)
        np.testing.assert_array_equal(weigh.by_distance(D), reference.by_distance(D))
        for n in {1, (M + 1) // 2, M}:
            A, truth = weigh.nearest(D, n, sizes), reference.nearest(D, n, sizes)
            np.testing.assert_array_equal(A > 0, truth > 0)
            np.testing.assert_allclose(A, truth, rtol=1e-13)


@every
def test_krum_scores_are_those_of_the_definition(kind):
    for M, _, x in drawn(kind):
        D = weigh.distances(gram(x), M)[0]
        for n in {0, 1, M // 2, M - 2} & set(range(M)):
            np.testing.assert_allclose(weigh.nearest_sums(D, n + 1), oracle.krum_scores(D, n), rtol=1e-13)


@every
def test_bulyans_selection_is_that_of_exact_sums(kind):
    for M, _, x in drawn(kind):
        D = weigh.distances(gram(x), M)[0]
        for f in {0, 1, (M - 3) // 4} & set(range(max(0, (M - 3) // 4) + 1)):
            ours = weigh.repeated_krum(D, f, M - 2 * f)
            assert ours.tolist() == reference.repeated_krum(D, f, M - 2 * f).tolist()


def test_a_giant_that_was_in_a_running_sum_leaves_no_trace():
    """Two camps: whoever sees the other camp leave is left with a sum 10^24 times smaller than it was."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(15, 2))
        x[7:] += 1e12 * (seed % 2 + 1)
        D = oracle.squared_distances(x)
        for f in (0, 1):
            ours = weigh.repeated_krum(D, f, 15 - 2 * f)
            assert ours.tolist() == reference.repeated_krum(D, f, 15 - 2 * f).tolist()


def test_clients_that_coincide_up_to_rounding_are_one_vertex():
    """Five clients at the origin, one of them as far off as rounding puts it; the others pull with more than five."""
    x = np.random.default_rng(0).normal(size=(13, 6)) + 0.7
    x[:5] = 0.0
    x[4, 3] = 3e-8
    G = gram(x)
    D, pivot, _ = weigh.distances(G, 13)
    weights, reached = weigh.weiszfeld(weigh.recentred(G, pivot, 13), D, pivot, np.full(13, 1 / 13), 1e-8, 1000)
    assert reached
    np.testing.assert_allclose(weights @ x, oracle.geometric_median(x), atol=1e-6)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_sandwich_is_symmetric_and_the_same_for_any_number_of_threads(threads, monkeypatch):
    for n, m in [(1, 1), (3, 9), (5, 4), (4, 5), (17, 30), (61, 61), (301, 299)]:
        rng = np.random.default_rng(n)
        B, S = rng.normal(size=(n, m)), gram(rng.normal(size=(m, m)))
        alone = weigh.sandwich(B, S)
        monkeypatch.setattr(weigh, "n_threads", lambda: threads)
        ours = weigh.sandwich(B, S)
        np.testing.assert_array_equal(ours, alone)
        np.testing.assert_array_equal(ours, ours.T)
        np.testing.assert_allclose(ours, reference.sandwich(B, S), atol=1e-9 * m)


def neighbours(rng, M, sizes):
    return weigh.nearest(weigh.distances(gram(random(rng, M)), M)[0], M - M // 12, sizes)


def buckets(rng, M):
    A = np.zeros((M // 3, M))
    A[np.arange(M) % len(A), rng.permutation(M)] = rng.uniform(0.1, 1, size=M)
    return A


MIXINGS = {
    "neighbours": lambda rng, M: neighbours(rng, M, np.ones(M)),
    "neighbours by sizes": lambda rng, M: neighbours(rng, M, rng.uniform(0.1, 1, size=M)),
    "buckets": buckets,
    "scaled": lambda rng, M: np.diag(rng.uniform(0, 1, size=M) * (rng.uniform(size=M) > 0.1)),
    "one row in most": lambda rng, M: np.where(rng.uniform(size=(M, M)) > 0.1, rng.uniform(size=M), 0.0),
}


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("mixing", MIXINGS)
def test_a_sandwich_of_like_or_sparse_rows_is_that_of_the_definition(mixing, threads, monkeypatch):
    for M in (97, 300, 515):
        rng = np.random.default_rng(M)
        B, S = MIXINGS[mixing](rng, M), gram(rng.normal(size=(M, 9)))
        alone = weigh._sparse_sandwich(B, S)
        monkeypatch.setattr(weigh, "n_threads", lambda: threads)
        ours = weigh.sandwich(B, S)
        np.testing.assert_array_equal(ours, alone)
        np.testing.assert_array_equal(ours, ours.T)
        # Sums of at most M^2 products, each rounded a few times.
        error = 1e-15 * M * (abs(B) @ abs(S) @ abs(B).T)
        assert (abs(ours - reference.sandwich(B, S)) <= error).all()


def test_a_giant_takes_no_digits_from_the_mixtures_without_it():
    rng, M, f = np.random.default_rng(0), 200, 20
    x = random(rng, M)
    x[:f] *= 1e12
    G = gram(x)
    B = weigh.nearest(weigh.distances(G, M)[0], M - f, rng.uniform(0.1, 1, size=M))
    assert not B[f:, :f].any()
    ours, truth = weigh._sparse_sandwich(B, G), reference.sandwich(B[f:, f:], G[f:, f:])
    np.testing.assert_allclose(ours[f:, f:], truth, atol=1e-12)


def test_sums_of_the_nearest_are_those_of_the_definition_for_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(weigh, "THREADS_FROM_CLIENTS", 0)
    D = np.random.default_rng(0).uniform(size=(301, 301))
    for threads in (1, 4):
        monkeypatch.setattr(weigh, "n_threads", lambda threads=threads: threads)
        np.testing.assert_array_equal(weigh.nearest_sums(D, 77), reference.nearest_sums(D, 77))


def test_a_rule_that_asks_for_distances_only_costs_no_recentring():
    geometry = Geometry.of(np.random.default_rng(0).normal(size=(9, 4)))
    bz.Krum(2)(geometry)
    bz.Bulyan(1)(geometry)
    assert "inner" not in vars(geometry.points)


def test_a_giant_takes_no_digits_from_the_others_sums_of_distances():
    """Against 400 digits: by these sums the client is chosen from which Weiszfeld's iteration starts."""
    rng, M = np.random.default_rng(0), 12
    x, shares = giants(rng, M), rng.dirichlet(np.ones(M))
    G = gram(x)
    D, pivot, _ = weigh.distances(G, M)
    inner, ours = weigh.recentred(G, pivot, M), np.empty(M)
    weigh._distance_sums(inner, D, shares, pivot, ours)
    with localcontext(prec=400):
        rows = [[Decimal(number) for number in row] for row in x.tolist()]
        sums = [
            sum(Decimal(s) * sum((a - b) ** 2 for a, b in zip(one, other, strict=True)).sqrt() for s, other in others)
            for one in rows
            for others in [list(zip(shares.tolist(), rows, strict=True))]
        ]
        truth = np.array([float(total - sums[pivot]) for total in sums])
    honest = slice(M // 2, None)
    np.testing.assert_allclose(ours[honest], truth[honest], atol=1e-9)
    assert ours.argmin() == truth.argmin()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 3, 5, 8])
def test_a_vertex_cover_is_found_exactly_where_there_is_one(n, share):
    for seed in range(20):
        far = np.triu(np.random.default_rng(seed).random((n, n)) < share, 1)
        far |= far.T
        for most in range(n):
            cover, passes = weigh.vertex_cover(far, most, 10**6)
            assert passes <= 10**6
            assert (cover is None) == (reference.vertex_cover(far, most) is None)
            if cover is not None:
                assert len(set(cover.tolist())) == len(cover) <= most
                assert not np.delete(np.delete(far, cover, axis=0), cover, axis=1).any()
    assert weigh.vertex_cover(~np.eye(9, dtype=bool), 5, max_passes=3)[1] > 3  # given up


@pytest.mark.parametrize("M", [1, 2, 5, 64, 300])
def test_the_principal_direction_is_the_first_of_all_eigenvectors(M):
    rng = np.random.default_rng(M)
    x, weights = rng.normal(size=(M, 6)) * [9, 5, 3, 2, 1, 1], rng.random(M) * (rng.random(M) < 0.8) + 1e-9
    weights /= weights.sum()
    y, found = x - weights @ x, np.zeros(M)
    for unit in (1.0, 2.0**-200, 2.0**200):
        top = weigh.principal_direction(unit**2 * (x - x[0]) @ (x - x[0]).T, weights, 1e-13, found)
        values, vectors = np.linalg.eigh(y.T @ (weights[:, None] * y))
        assert top == pytest.approx(unit**2 * values[-1], rel=1e-12, abs=1e-290)
        np.testing.assert_allclose(np.abs(found) / unit, np.abs(y @ vectors[:, -1]) * (M > 1), atol=1e-10)

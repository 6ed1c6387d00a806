"""Sorting networks and what is left of them for some ranks."""

from __future__ import annotations

import numpy as np
import pytest

from bartizan.kernels.sorting_networks import LARGEST, LEAST, MEAMED, MEDIAN, TRIMMED_MEAN, comparators

SIZES = [*range(1, 65), 100, 127, 128, 129, 200, 257, 300]


def applied(network, x):
    """The rows after all comparators; NaN where an output was not needed."""
    x = x.copy()
    for i, j, kind in network.tolist():
        low, high = np.minimum(x[i], x[j]), np.maximum(x[i], x[j])
        x[i], x[j] = np.nan if kind == LARGEST else low, np.nan if kind == LEAST else high
    return x


def zeros_and_ones(M):
    """All columns of zeros and ones of few rows; of many, all that are sorted but for a shuffle, several of each.

    A network that sorts all columns of zeros and ones sorts all columns (Knuth, volume 3, section 5.3.4).
    """
    if M <= 10:
        return ((np.arange(2**M) >> np.arange(M)[:, None]) & 1).astype(float)
    rng = np.random.default_rng(M)
    sorted_columns = (np.arange(M)[:, None] >= np.repeat(np.arange(M + 1), 8)).astype(float)
    return rng.permuted(sorted_columns, axis=0)


@pytest.mark.parametrize("M", SIZES)
def test_a_whole_network_sorts(M):
    x = zeros_and_ones(M)
    np.testing.assert_array_equal(applied(comparators(MEDIAN, M, 0, by_sizes=True), x), np.sort(x, axis=0))


@pytest.mark.parametrize("M", SIZES)
def test_a_reduced_network_brings_the_wanted_ranks_into_their_rows(M):
    x = zeros_and_ones(M)
    truth, middle = np.sort(x, axis=0), slice((M - 1) // 2, M // 2 + 1)
    np.testing.assert_array_equal(applied(comparators(MEDIAN, M, 0), x)[middle].sum(0), truth[middle].sum(0))
    for f in {0, 1, M // 5, (M - 1) // 2}:
        if 2 * f < M:
            kept = slice(f, M - f)
            np.testing.assert_array_equal(applied(comparators(TRIMMED_MEAN, M, f), x)[kept].sum(0), truth[kept].sum(0))
    for f in {0, 1, M // 5, (M - 1) // 2, M // 2, 3 * M // 4, M - 1}:
        if f < M:
            ours = applied(comparators(MEAMED, M, f), x)
            for ranks in (slice(0, f), middle, slice(M - f, M)):
                np.testing.assert_array_equal(ours[ranks], truth[ranks])
            np.testing.assert_array_equal(ours[f : M - f].sum(0), truth[f : M - f].sum(0))


@pytest.mark.parametrize("M", [10, 50, 200])
def test_fewer_ranks_need_fewer_comparators(M):
    counts = [
        len(comparators(*which))
        for which in [(MEDIAN, M, 0), (TRIMMED_MEAN, M, M // 5), (MEAMED, M, M // 5), (MEDIAN, M, 0, True)]
    ]
    assert counts == sorted(counts)
    assert M < 50 or counts[0] < 0.85 * counts[3]

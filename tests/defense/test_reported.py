"""What clients report beside their updates can't end a round, nor own an average."""

from __future__ import annotations

import numpy as np
import pytest

from bartizan.defense.reported import SizePolicy, median_metrics


def test_a_metric_is_the_median_of_the_finite_numbers_that_most_report():
    strange = [float("nan"), float("inf"), 10**400, "9", None, [1], {"a": 1}, 1j]
    reports = [{"loss": value} for value in strange] + [{"loss": np.float32(n), "own": n} for n in range(9)]
    assert median_metrics(reports) == {"loss": 4.0, "own": 4.0}
    assert median_metrics([{"loss": value} for value in strange]) == {}
    assert median_metrics([]) == {}


@pytest.mark.parametrize(("claim", "size"), [(7, 7), (np.int64(7), 7), (np.float32(2.5), 2.5), (10**400, 50)])
def test_a_reported_size_counts_up_to_the_cap(claim, size):
    assert SizePolicy("reported", 50).of("a", lambda: claim) == size


def test_given_sizes_are_not_asked_for():
    policy = SizePolicy({"a": 3})
    assert policy.of("a", lambda: 1 / 0) == 3
    with pytest.raises(ValueError, match="no number for this client"):
        policy.of("b", lambda: 1 / 0)

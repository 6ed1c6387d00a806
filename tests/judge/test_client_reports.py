"""What clients report beside their updates can't end a round, nor own an average."""

from __future__ import annotations

import numpy as np
import pytest

from bartizan.judge.client_reports import SizePolicy, median_metrics


def test_a_metric_is_the_median_of_the_finite_numbers_that_most_report():
    strange = [float("nan"), float("inf"), 10**400, "9", None, [1], {"a": 1}, 1j]
    reports = [{"loss": value} for value in strange] + [{"loss": np.float32(n), "own": n} for n in range(9)]
    assert median_metrics(reports) == {"loss": 4.0, "own": 4.0}
    assert median_metrics([{"loss": value} for value in strange]) == {}
    assert median_metrics([]) == {}


@pytest.mark.parametrize("strange", [np.int8(100), np.float16(100), np.uint8(100)], ids=repr)
def test_no_type_of_a_number_moves_the_median_beyond_the_others_values(strange):
    reports = [{"loss": n} for n in (99, 101, 127, 65000)]
    assert 99 <= median_metrics([*reports, {"loss": strange}, {"loss": 90}])["loss"] <= 127


@pytest.mark.parametrize(
    ("claim", "size"), [(7, 7), (np.int64(7), 7), (np.float16(2.5), 2.5), (2**64, 50), (2.0**-64, 2.0**-64)]
)
def test_a_reported_size_counts_up_to_the_cap(claim, size):
    assert SizePolicy("reported", 50).of("a", lambda: claim) == size


@pytest.mark.parametrize(
    "claim", [5e-324, 1e-20, 1e20, 1e308, 10**400, 0, -1, float("nan"), float("inf"), True, np.True_, "7", None, [7]]
)
def test_a_reported_size_outside_the_range_is_refused(claim):
    with pytest.raises(ValueError, match=r"report its number of examples, a positive number from 2\^-64 to 2\^64; got"):
        SizePolicy("reported", 50).of("a", lambda: claim)


def test_given_sizes_are_not_asked_for():
    policy = SizePolicy({"a": 3})
    assert policy.of("a", lambda: 1 / 0) == 3
    with pytest.raises(ValueError, match="no number for this client"):
        policy.of("b", lambda: 1 / 0)


@pytest.mark.parametrize(
    ("sizes", "cap", "says"),
    [
        ({"a": 1, "b": -5}, None, "client 'b' has -5"),
        ({"a": None}, None, "client 'a' has None"),
        ({"a": float("nan")}, None, "client 'a' has nan"),
        ({"a": 10**400}, None, "client 'a' has 1000"),
        ({"a": 5e-324}, None, r"a positive number from 2\^-64 to 2\^64; client 'a' has 5e-324"),
        ({"a": 1e30}, None, "client 'a' has 1e\\+30"),
        ({"\x1b" * 10**6: "many"}, None, "has 'many'"),
        (np.ones(2), None, "a mapping from client ids, got"),
        ([3, 4], None, "a mapping from client ids, got"),
        (7, None, "a mapping from client ids, got 7"),
        ("all", None, "a mapping from client ids, got 'all'"),
        *(("reported", cap, "needs size_cap") for cap in (None, 0, -1, float("nan"), float("inf"), "9", True, 1e30)),
    ],
)
def test_sizes_that_can_not_be_used_are_refused_before_the_first_round(sizes, cap, says):
    with pytest.raises(ValueError, match=says) as error:
        SizePolicy(sizes, cap)
    assert len(str(error.value)) < 600

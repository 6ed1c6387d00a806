"""`sketch="auto"`: the cheaper of exact and projected by the table of costs, and nothing is measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import bartizan as bz
from bartizan._util import machine
from bartizan.measure.sketches import COSTS, exact_is_faster

EXACT_IS_FREE = replace(COSTS["cpu"], gram=0.0, gram_pair=0.0)
ROTATED_IS_FREE = replace(COSTS["cpu"], draw=0.0, rotate=0.0, cell=0.0, sketch_pair=0.0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dim", [100_000, 1_000_000, 11_200_000])
def test_exact_is_chosen_for_few_clients_and_never_again_once_projecting_is_cheaper(dim, device):
    exact = [exact_is_faster(M, dim, device) for M in range(1, 1200)]
    turn = exact.index(False)
    assert turn > 0 or device == "cuda"  # where the table has no cost of drawing signs
    assert not any(exact[turn:])


@pytest.mark.parametrize(
    ("clients", "dim", "exact"),
    [(4, 100_000, True), (16, 100_000, False), (32, 1_000_000, False), (50, 11_200_000, False), (10, 10_000, True)],
)
def test_the_table_decides_as_was_measured_away_from_the_crossover(clients, dim, exact):
    """Cells of the crossover table in docs/guides/choosing.md whose two times differ by a third or more."""
    assert exact_is_faster(clients, dim) is exact


def test_nothing_is_projected_to_more_dimensions_than_it_has():
    assert exact_is_faster(1000, 4096)
    assert not exact_is_faster(1000, 100, k=64)


def test_a_device_without_costs_is_refused():
    with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda', got 'abacus'"):
        exact_is_faster(5, 1000, "abacus")


def test_auto_takes_what_the_table_says_and_the_result_says_which(monkeypatch):
    x = np.random.default_rng(0).normal(size=(9, 20_000))
    for costs, chosen in ((EXACT_IS_FREE, bz.Exact()), (ROTATED_IS_FREE, bz.Rotated(k=4096))):
        monkeypatch.setitem(COSTS, "cpu", costs)
        auto = bz.aggregate(x, bz.Krum(2), sketch="auto", seed=3)
        assert auto.sketch == chosen
        np.testing.assert_array_equal(auto.weights, bz.aggregate(x, bz.Krum(2), sketch=chosen, seed=3).weights)
    assert bz.Aggregator(bz.Krum(2), "auto")([list(row[:10]) for row in x]).sketch == bz.Exact()


def test_auto_never_measures(monkeypatch):
    monkeypatch.setattr(machine, "timed", None)  # every measurement calls it
    assert bz.aggregate(np.eye(9), bz.Krum(2), sketch="auto").sketch == bz.Exact()


def test_auto_projects_no_coordinate_wise_rule(monkeypatch):
    monkeypatch.setitem(COSTS, "cpu", ROTATED_IS_FREE)
    x = np.random.default_rng(0).normal(size=(5, 9000))
    result = bz.aggregate(x, bz.coordinatewise.Median(), sketch="auto")
    assert result.sketch == bz.Exact()
    np.testing.assert_allclose(result.update, np.median(x, axis=0))
    behind = bz.aggregate(x, bz.NNM(1) >> bz.coordinatewise.Median(), sketch="auto")
    assert behind.sketch == bz.Rotated(k=4096)

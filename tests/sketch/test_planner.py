"""The planner: what it promises is the theorems' functions, what it chooses is what its own model says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

import bartizan as bz
from bartizan import cli
from bartizan._util import machine
from bartizan.sketch import distortion, embedding_dimension, pairwise_distortion
from bartizan.sketch.planner import calibrate, calibration, plan, sketch_for, stored
from bartizan.sketch.planner.costs import TYPICAL
from bartizan.updates.updates import Updates

CPU = TYPICAL["cpu"]
EXACT_IS_FREE = replace(CPU, gram=0.0, gram_pair=0.0)
ROTATED_IS_FREE = replace(CPU, draw=0.0, rotate=0.0, cell=0.0, sketch_pair=0.0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache folder of this test alone, and sizes that are measured in a moment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibration, "CLIENTS", (4, 8, 16))
    monkeypatch.setattr(calibration, "DIMENSIONS", (64, 256))
    monkeypatch.setattr(calibration, "SEVERAL", (4, 16))
    stored.cache_clear()
    yield tmp_path / "bartizan"
    stored.cache_clear()


@pytest.fixture
def measured():
    return calibrate(numbers=2**14)


@pytest.mark.parametrize("clients", [2, 8, 50, 200, 1000])
@pytest.mark.parametrize("dim", [10_000, 1_000_000, 11_200_000])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_cheaper_look_is_taken_and_the_other_is_named_with_its_price(clients, dim, device):
    planned = plan(clients, dim, calibration=TYPICAL[device])
    assert {type(planned.sketch), type(planned.rejected)} == {bz.Exact, bz.Rotated}
    for taken, rejected in zip(planned.prices, planned.rejected_prices, strict=True):
        assert taken.seconds <= rejected.seconds
        assert taken.sketch == TYPICAL[device].look(planned.sketch, clients, dim)
        assert rejected.sketch == TYPICAL[device].look(planned.rejected, clients, dim)
        assert taken.reads == pytest.approx(taken.seconds / (TYPICAL[device].read * clients * dim))


def test_exact_wins_for_few_clients_and_never_again_once_it_has_lost():
    kinds = [type(plan(M, 1_000_000, calibration=CPU).sketch) for M in range(2, 300)]
    turn = kinds.index(bz.Rotated)
    assert turn > 0
    assert set(kinds[turn:]) == {bz.Rotated}


def test_one_client_is_combined_for_less_than_all():
    one, every = plan(50, 1_000_000, calibration=CPU).prices
    assert one.combine < every.combine
    krum, median = (plan(50, 1_000_000, rule=rule, calibration=CPU).prices for rule in ("krum", "geometric-median"))
    assert krum[0].seconds == one.seconds
    assert median[0].seconds == every.seconds
    assert plan(50, 1_000_000, rule=bz.Krum(5), calibration=CPU).prices[0].seconds == one.seconds
    mixed = plan(50, 1_000_000, rule="nnm >> krum", calibration=CPU).prices[0]
    assert mixed.combine == every.combine  # mixing gives all of them weight


@pytest.mark.parametrize("clients", [3, 50, 200, 220, 1000])
@pytest.mark.parametrize(("delta", "rounds"), [(0.05, 100), (0.001, 1)])
def test_the_promise_is_that_of_the_theorems_functions(clients, delta, rounds):
    planned = plan(clients, 1_000_000, delta=delta, rounds=rounds, calibration=ROTATED_IS_FREE)
    assert planned.sketch == bz.Rotated(k=4096)
    text = str(planned)
    assert f"1 +- {pairwise_distortion(4096, clients, delta, rounds):.3f}" in text
    try:
        promised = distortion(4096, clients, delta, rounds)
    except ValueError:
        assert planned.span_eps is None
        assert "no whole-span guarantee" in text
    else:
        assert planned.span_eps == promised
        assert f"whole span: squared lengths to 1 +- {promised:.3f}" in text
    assert "are measured, not proven (docs/explanation/sketches.md)" in text


@pytest.mark.parametrize("eps", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("clients", [5, 50, 1000])
def test_an_eps_that_is_asked_for_is_kept_by_the_least_power_of_two(eps, clients):
    planned = plan(clients, 10**8, eps=eps, calibration=ROTATED_IS_FREE)
    k = planned.sketch.k
    assert k >= embedding_dimension(clients, eps, 0.05, 100) > k // 2
    assert planned.span_eps <= eps


def test_exact_promises_exact_distances_and_nothing_of_theorems():
    text = str(plan(50, 1_000_000, calibration=EXACT_IS_FREE))
    assert "Take       Exact()" in text
    assert "distances are exact" in text
    assert "1 +-" not in text


@pytest.mark.parametrize("settings", [{}, {"eps": 0.3}])
def test_nothing_is_projected_to_more_dimensions_than_it_has(settings):
    planned = plan(50, 4096, **settings, calibration=ROTATED_IS_FREE)
    assert planned.sketch == bz.Exact()
    assert "would not be fewer than the 4,096 coordinates" in str(planned)


def test_a_rule_of_norms_needs_no_sketch():
    planned = plan(50, 1_000_000, rule=bz.Mean(), calibration=ROTATED_IS_FREE)
    assert planned.sketch == bz.Exact()
    assert planned.rejected is None
    assert planned.prices[0].sketch == CPU.look(None, 50, 1_000_000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps": 1.5}, "eps must lie between 1e-06 and 1, got 1.5"),
        ({"delta": 0.0}, "delta must lie between 0 and 1, got 0.0"),
        ({"rounds": 0}, "rounds must be a positive whole number, got 0"),
        ({"dtype": "int8"}, "dtype must be one of float16, bfloat16, float32, float64; got 'int8'"),
        ({"device": "abacus"}, "device must be 'cpu' or 'cuda', got 'abacus'"),
        ({"rule": "krumm"}, "Unknown rule 'krumm'. Did you mean 'krum'"),
        ({"rule": "median"}, "judges each coordinate by itself"),
    ],
)
def test_what_can_not_be_planned_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        plan(50, 1_000_000, **settings)


def test_auto_takes_what_the_plan_says_and_the_result_says_which(monkeypatch):
    x = np.random.default_rng(0).normal(size=(9, 20_000))
    for costs in (EXACT_IS_FREE, ROTATED_IS_FREE):
        monkeypatch.setitem(TYPICAL, "cpu", costs)
        auto = bz.aggregate(x, bz.Krum(2), sketch="auto", seed=3)
        chosen = plan(9, 20_000, dtype="float64", calibration=costs).sketch
        assert auto.sketch == chosen
        np.testing.assert_array_equal(auto.weights, bz.aggregate(x, bz.Krum(2), sketch=chosen, seed=3).weights)
    assert auto.sketch == bz.Rotated(k=4096)
    assert bz.Aggregator(bz.Krum(2), "auto")([list(row[:10]) for row in x]).sketch == bz.Exact()


def test_auto_never_measures(own_cache, monkeypatch):
    monkeypatch.setattr(machine, "timed", None)  # whoever measures calls it
    bz.aggregate(np.eye(9), bz.Krum(2), sketch="auto")
    assert not own_cache.exists()


def test_auto_projects_no_coordinate_wise_rule(monkeypatch):
    monkeypatch.setitem(TYPICAL, "cpu", ROTATED_IS_FREE)
    x = np.random.default_rng(0).normal(size=(5, 9000))
    result = bz.aggregate(x, bz.coordinatewise.Median(), sketch="auto")
    assert result.sketch == bz.Exact()
    np.testing.assert_allclose(result.update, np.median(x, axis=0))
    behind = bz.aggregate(x, bz.NNM(1) >> bz.coordinatewise.Median(), sketch="auto")
    assert behind.sketch == bz.Rotated(k=4096)


def test_any_other_string_is_no_sketch():
    with pytest.raises(TypeError, match="or 'auto'; got 'automatic'"):
        bz.Aggregator(bz.Krum(2), "automatic")


def test_a_calibration_is_stored_and_then_used(own_cache, measured):
    assert all(value >= 0 for value in asdict(measured).values() if isinstance(value, float))
    assert measured.read > 0
    stored.cache_clear()
    assert stored() == measured
    assert plan(50, 1_000_000).costs == measured
    clients = Updates.of(np.zeros((50, 5000), dtype=np.float32))
    assert sketch_for(clients, bz.Krum(2)) == plan(50, 5000).sketch
    assert len(list(own_cache.iterdir())) == 1  # and nothing temporary is left


def broken(kept):
    yield "", "not JSON"
    yield "[]", "not a table"
    yield json.dumps(kept | {"key": kept["key"] | {"version": "0.0.0"}}), "of another version"
    yield json.dumps(kept | {"key": kept["key"] | {"machine": "abacus"}}), "of another machine"
    yield json.dumps(kept | {"costs": kept["costs"] | {"read": -1.0}}), "negative"
    yield json.dumps(kept | {"costs": kept["costs"] | {"read": float("nan")}}), "NaN"
    yield json.dumps(kept | {"costs": kept["costs"] | {"read": "fast"}}), "a word"
    yield json.dumps(kept | {"costs": {"read": 1e-9}}), "incomplete"
    yield json.dumps(kept)[:-40], "cut short"


def test_a_broken_or_foreign_calibration_is_measured_anew(own_cache, measured, capsys):
    (path,) = own_cache.iterdir()
    kept = json.loads(path.read_text())
    for text, what in broken(kept):
        path.write_text(text)
        stored.cache_clear()
        assert stored() is None, what
        assert plan(50, 1_000_000).costs == CPU, what
    path.write_bytes(b"\xff\xfe\x00")
    stored.cache_clear()
    assert stored() is None
    calibrate(numbers=2**14)
    assert stored() is not None


def test_a_folder_that_can_not_be_written_to_only_forgets(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert calibrate(numbers=2**14).read > 0
    assert stored() is None


def test_the_fit_finds_costs_again_and_none_is_negative():
    rng = np.random.default_rng(0)
    amounts = [(p, M * p, M * M * k) for M in (4, 32, 128) for k in (4096, 65536) for p in (10**5, 10**6)]
    costs = [3e-9, 8e-10, 2e-11]
    seconds = [float(np.dot(row, costs)) for row in amounts]
    assert calibration.fitted(list(zip(amounts, seconds, strict=True))) == pytest.approx(costs, rel=1e-4)
    noisy = [s * rng.uniform(0.5, 2) for s in seconds]
    assert min(calibration.fitted(list(zip(amounts, noisy, strict=True)))) >= 0


@pytest.mark.usefixtures("measured")
def test_the_command_prints_the_plan_and_its_json(capsys):
    arguments = ["plan", "--clients", "50", "--dim", "1M", "--eps", "0.5", "--rounds", "10", "--rule", "mca"]
    assert cli.main(arguments) == 0
    expected = plan(50, 1_000_000, eps=0.5, rounds=10, rule="mca")
    assert capsys.readouterr().out == f"{expected}\n"
    assert cli.main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sketch"] == repr(expected.sketch)
    assert told["prices"][0]["seconds"] == expected.prices[0].seconds
    assert told["span_eps"] == expected.span_eps


def test_the_command_measures_where_nothing_is_stored_and_again_when_told(own_cache, monkeypatch, capsys):
    monkeypatch.setitem(calibration.NUMBERS, "cpu", 2**14)
    assert cli.main(["plan", "--clients", "5", "--dim", "9k"]) == 0
    (path,) = own_cache.iterdir()
    assert machine.name_of("cpu") in capsys.readouterr().out
    path.write_text("{}")
    stored.cache_clear()
    assert cli.main(["plan", "--clients", "5", "--dim", "9k", "--recalibrate"]) == 0
    assert stored() is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--eps", "2"], "eps must lie between 1e-06 and 1, got 2.0"),
        (["--rule", "krumm"], "Did you mean 'krum'?"),
    ],
)
def test_a_plan_that_can_not_be_made_is_one_line_and_status_2(arguments, message, capsys, own_cache):
    assert cli.main(["plan", "--clients", "5", "--dim", "9k", *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not own_cache.exists()  # refused before anything was measured

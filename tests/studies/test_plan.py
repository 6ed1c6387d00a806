"""`bartizan plan`: it promises what the theorems' functions say, and its prices are those of the table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import bartizan as bz
from bartizan import cli
from bartizan._util import machine
from bartizan.sketch import choose, distortion, embedding_dimension, pairwise_distortion
from bartizan.sketch.choose import COSTS
from bartizan.studies.plan import NUMBERS, TYPICAL, measured, plan

EXACT_IS_FREE = replace(COSTS["cpu"], gram=1e-9, gram_pair=0.0)
ROTATED_IS_FREE = replace(COSTS["cpu"], draw=0.0, rotate=1e-9, cell=0.0, sketch_pair=0.0)


@pytest.fixture
def projecting_is_free(monkeypatch):
    monkeypatch.setitem(COSTS, "cpu", ROTATED_IS_FREE)


@pytest.mark.parametrize("clients", [2, 8, 50, 200, 1000])
@pytest.mark.parametrize("dim", [10_000, 1_000_000, 11_200_000])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_cheaper_sketch_is_taken_and_the_other_is_named_with_its_price(clients, dim, device):
    planned = plan(clients, dim, device=device)
    assert {type(planned.sketch), type(planned.rejected)} == {bz.Exact, bz.Rotated}
    assert planned.sketch == choose.choose(clients, dim, device)
    for taken, rejected in zip(planned.prices, planned.rejected_prices, strict=True):
        assert taken.seconds <= rejected.seconds
        assert taken.reads == pytest.approx(taken.seconds / (TYPICAL[device].read * clients * dim))


def test_one_client_is_combined_for_less_than_all():
    one, every = plan(50, 1_000_000).prices
    assert one.combine < every.combine
    krum, median = (plan(50, 1_000_000, rule=rule).prices for rule in ("krum", "geometric-median"))
    assert krum[0].seconds == one.seconds
    assert median[0].seconds == every.seconds
    assert plan(50, 1_000_000, rule="nnm >> krum").prices[0].combine == every.combine  # mixing gives all weight


@pytest.mark.usefixtures("projecting_is_free")
@pytest.mark.parametrize("clients", [3, 50, 200, 220, 1000])
@pytest.mark.parametrize(("delta", "rounds"), [(0.05, 100), (0.001, 1)])
def test_the_promise_is_that_of_the_theorems_functions(clients, delta, rounds):
    planned = plan(clients, 1_000_000, delta=delta, rounds=rounds)
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


@pytest.mark.usefixtures("projecting_is_free")
@pytest.mark.parametrize("eps", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("clients", [5, 50, 1000])
def test_an_eps_that_is_asked_for_is_kept_by_the_least_power_of_two(eps, clients):
    planned = plan(clients, 10**8, eps=eps)
    k = planned.sketch.k
    assert k >= embedding_dimension(clients, eps, 0.05, 100) > k // 2
    assert planned.span_eps <= eps


def test_exact_promises_exact_distances_and_nothing_of_theorems(monkeypatch):
    monkeypatch.setitem(COSTS, "cpu", EXACT_IS_FREE)
    text = str(plan(50, 1_000_000))
    assert "Take       Exact()" in text
    assert "distances are exact" in text
    assert "1 +-" not in text


@pytest.mark.usefixtures("projecting_is_free")
@pytest.mark.parametrize("settings", [{}, {"eps": 0.3}])
def test_nothing_is_projected_to_more_dimensions_than_it_has(settings):
    planned = plan(50, 4096, **settings)
    assert planned.sketch == bz.Exact()
    assert "would not be fewer than the 4,096 coordinates" in str(planned)


@pytest.mark.usefixtures("projecting_is_free")
def test_a_rule_of_norms_needs_no_sketch():
    planned = plan(50, 1_000_000, rule="mean")
    assert planned.sketch == bz.Exact()
    assert planned.rejected is None
    assert planned.prices[0].sketch == pytest.approx(planned.one_read, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps": 1.5}, "eps must be between 1e-06 and 1, got 1.5"),
        ({"delta": 0.0}, "delta must be between 0 and 1, got 0.0"),
        ({"rounds": 0}, "rounds must be"),
        ({"device": "abacus"}, "device must be 'cpu' or 'cuda', got 'abacus'"),
        ({"rule": "krumm"}, "Unknown rule 'krumm'. Did you mean 'krum'"),
        ({"rule": "median"}, "judges each coordinate by itself"),
    ],
)
def test_what_can_not_be_planned_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        plan(50, 1_000_000, **settings)


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setitem(NUMBERS, "cpu", 2**14)


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_read_speed_of_this_machine_is_measured(dtype):
    here = measured("cpu", dtype)
    assert here.name == machine.name_of("cpu")
    assert here.read > 0
    assert plan(50, 1_000_000, on=here).one_read == here.read * 50 * 1_000_000


def test_a_device_that_is_not_here_is_planned_for_with_typical_speeds(monkeypatch):
    def missing(device):
        raise ValueError("no GPU")

    monkeypatch.setattr(machine, "checked_device", missing)
    assert measured("cuda", "float32") is TYPICAL["cuda"]


@pytest.mark.usefixtures("quickly")
def test_the_command_prints_the_plan_and_its_json(capsys):
    arguments = ["plan", "--clients", "50", "--dim", "1M", "--eps", "0.5", "--rounds", "10", "--rule", "mca"]
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    expected = plan(50, 1_000_000, eps=0.5, rounds=10, rule="mca")
    assert str(expected).partition("\nOne read")[0] in out
    assert machine.name_of("cpu") in out
    assert err == ""
    assert cli.main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sketch"] == repr(expected.sketch)
    assert told["span_eps"] == expected.span_eps
    assert told["prices"][0]["reads"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--eps", "2"], "eps must be between 1e-06 and 1, got 2.0"),
        (["--rule", "krumm"], "Did you mean 'krum'?"),
    ],
)
def test_a_plan_that_can_not_be_made_is_one_line_and_status_2(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(machine, "timed", None)  # refused before anything is measured
    assert cli.main(["plan", "--clients", "5", "--dim", "9k", *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1

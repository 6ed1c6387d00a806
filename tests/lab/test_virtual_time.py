"""Clients that never wait: virtual time, a buffer instead of rounds, and runs that resume."""

from __future__ import annotations

import numpy as np
import pytest

from bartizan.lab import Experiment, run
from bartizan.lab.config.keys import ConfigError
from bartizan.lab.training.population import Population
from laboratory import SMALL, facts, run_until

BUFFERED = SMALL.with_settings(["server.buffer=7", "clients.speed=10", "rule.name=krum"])


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["attack.name=send-old", "attack.age=2"],
        ["server.remember=judge", "clients.participation=0.3", "server.buffer=2"],
        ["server.remember=sum", "server.staleness=none", "clients.worker_momentum=0.9"],
        ["attack.name=label-flip"],
        ["attack.name=send-old", "attack.age=2", "server.remember=judge"],
        ["attack.name=wait-and-strike", "attack.start=3"],
        ["sketch.name=exact", "attack.name=observer", "rule.name=multi-krum"],
    ],
    ids=" ".join,
)
def test_a_resumed_run_with_a_buffer_equals_an_uninterrupted_one(tmp_path, settings):
    experiment = BUFFERED.with_settings(settings)
    run(experiment, tmp_path / "whole")
    for until in (2, 5):
        run_until(until, experiment, tmp_path / "parts", resume=until > 2)
    run(experiment, tmp_path / "parts", resume=True)
    assert facts(tmp_path / "whole") == facts(tmp_path / "parts")


def test_a_judgement_has_the_first_clients_that_arrive_and_their_ages(tmp_path):
    recorded = run(BUFFERED.with_settings(["rounds=12"]), tmp_path)
    times = Population.of(BUFFERED).durations
    attackers = recorded.run["byzantine"]
    assert (times[attackers] == 1).all()
    assert times.min() >= 1
    assert times.max() <= 10
    lines = recorded.rounds
    first = np.argsort(times, kind="stable")[:7]
    assert sorted(lines[0]["clients"]) == sorted(first.tolist())
    assert lines[0]["time"] == pytest.approx(times[first].max())
    assert lines[0]["ages"] == [0] * 7
    assert all(len(line["ages"]) == len(line["clients"]) == len(line["weights"]) >= 7 for line in lines)
    assert max(age for line in lines for age in line["ages"]) > 0
    assert sorted(line["time"] for line in lines) == [line["time"] for line in lines]


def test_a_synchronous_round_takes_as_long_as_its_slowest_client(tmp_path):
    experiment = SMALL.with_settings(["clients.speed=10", "clients.participation=0.4", "rounds=3"])
    lines = run(experiment, tmp_path).rounds
    times = Population.of(experiment).durations
    slowest = [times[line["clients"]].max() for line in lines]
    np.testing.assert_allclose([line["time"] for line in lines], np.cumsum(slowest))


def test_remembered_clients_take_part_and_only_if_wanted_in_the_sum(tmp_path):
    few = ["server.buffer=2", "clients.participation=0.2", "clients.speed=0", "rounds=8", "rule.name=multi-krum"]
    for how in ("judge", "sum"):
        lines = run(BUFFERED.with_settings([*few, f"server.remember={how}"]), tmp_path / how).rounds
        last = lines[-1]
        assert len(last["clients"]) > 4
        old = np.array(last["ages"]) > 0
        assert (np.array(last["weights"])[old].sum() > 0) == (how == "sum")


def test_attackers_who_flood_are_in_each_judgement_once(tmp_path):
    recorded = run(BUFFERED.with_settings(["attack.name=flood", "rounds=12"]), tmp_path)
    for line in recorded.rounds:
        assert set(recorded.run["byzantine"]) <= set(line["clients"])
        assert len(set(line["clients"])) == len(line["clients"]) == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["server.buffer=11"], r"server.buffer = 11 is more than clients.count = 10"),
        (["rule.name=krum", "rule.n_byzantine=4", "server.buffer=7"], "needs at least"),
        (["rule.name=fltrust", "sketch.name=exact"], "a buffer has none"),
        (["rule.name=median", "sketch.name=exact"], "pass staleness=None"),
        (["model.adapters=2"], "leave model.adapters out"),
        (["server.remember=always"], "server.remember must be"),
        (["clients.speed=-1"], "clients.speed must be"),
    ],
)
def test_a_wrong_setting_is_told_before_the_run(settings, message):
    with pytest.raises(ConfigError, match=message):
        BUFFERED.with_settings(settings)


def test_runs_without_a_buffer_keep_their_ids():
    assert Experiment.of({}).id == Experiment.of({"server": {"buffer": 0, "remember": "no"}}).id
    ids = {SMALL.with_settings([one]).id for one in ("server.buffer=7", "server.remember=sum", "clients.speed=2")}
    assert len(ids | {SMALL.id}) == 4

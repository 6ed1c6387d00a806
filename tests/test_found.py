"""What the hostile input campaign found once stays mended: each case by its name, not by the bytes that drew it."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import bartizan as bz
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import ConfigError
from bartizan.lab.runs.checkpoint import Checkpoint
from bartizan.records import CorruptFileError
from fuzz.lab.runs import STATE
from fuzz.updates import hostile_objects

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
FORMS = {"array": lambda row: row, "dict": lambda row: {"w": row[:3], "b": row[3:]}}


def by_a_call(updates, rule):
    return bz.aggregate(updates, rule, seed=5)


def by_a_round(updates, rule, **settings):
    with bz.Aggregator(rule).round(seed=5, **settings) as r:
        for client, update in enumerate(updates):
            r.add(update, client)
        return r.close()


WAYS = {
    "one call": lambda updates, rule, tmp_path: by_a_call(updates, rule),
    "a round": lambda updates, rule, tmp_path: by_a_round(updates, rule),
    "a round that copies": lambda updates, rule, tmp_path: by_a_round(updates, rule, copy=True),
    "a round that spills": lambda updates, rule, tmp_path: by_a_round(updates, rule, spill=tmp_path),
}
BAD = {
    "a container gone at the first look": lambda: hostile_objects.ReadableTimes({"v": X[0]}, 0),
    "a container gone at the second look": lambda: hostile_objects.ReadableTimes({"v": X[0]}, 1),
    "a container gone at the third look": lambda: hostile_objects.ReadableTimes({"v": X[0]}, 2),
    "a key that can't be printed": lambda: {"w": X[0, :3], "b": X[0, 3:], hostile_objects.UnprintableKey(): X[0]},
    "an error that can't be printed": lambda: hostile_objects.RaisingMapping(hostile_objects.UnprintableError()),
    "10^13 numbers in four bytes": lambda: np.broadcast_to(np.float32(0), (10**6, 10**7)),
    "an array that lies about its shape": lambda: [X[0].view(hostile_objects.OverstatesShape)],
    "an object that poses as an array": hostile_objects.PretendsArray,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", [bz.Mean(), bz.coordinatewise.Median()], ids=repr)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BAD)
def test_it_is_quarantined_among_others_and_ends_nothing_alone(name, form, rule, way, tmp_path):
    others = [FORMS[form](row) for row in X]
    out = WAYS[way]([BAD[name](), *others], rule, tmp_path)
    assert list(out.quarantined) == [0]
    assert 10 < len(out.quarantined[0]) < 600
    alone = WAYS[way](others, rule, tmp_path)
    np.testing.assert_array_equal(np.concatenate(parts(out)), np.concatenate(parts(alone)))
    with suppress(bz.TooFewClientsError):  # and no other error
        WAYS[way]([BAD[name]()], rule, tmp_path)


def parts(out):
    return list(out.update.values()) if isinstance(out.update, dict) else [out.update]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_fickle_container_is_asked_once_or_is_out(times, way, tmp_path):
    updates = [FORMS["dict"](row) for row in X]
    out = WAYS[way](
        [hostile_objects.ReadableTimes(updates[0], times), *updates[1:]], bz.coordinatewise.Median(), tmp_path
    )
    assert list(out.quarantined) == ([0] if times == 0 else [])


@pytest.mark.parametrize("wrong", [{"round": "x"}, {"lines": [None]}, {"server": "x"}, {"history": 7}], ids=repr)
def test_a_checkpoint_whose_checksum_fits_and_whose_fields_dont_is_corrupt(wrong, tmp_path):
    torch.save({**STATE, "diverged": False, **wrong}, tmp_path / "checkpoint.pt")
    with pytest.raises(CorruptFileError, match=r"checkpoint\.pt"):
        Checkpoint.load(tmp_path)


def test_a_message_about_a_setting_is_short_however_long_the_setting_is(tmp_path):
    (tmp_path / "long.toml").write_text(f'rounds = "{"y" * 5000}"\n')
    with pytest.raises(ConfigError, match="rounds must be a whole number") as error:
        Experiment.from_toml(tmp_path / "long.toml")
    assert len(str(error.value)) < 4000


def test_an_array_is_no_clients_id():
    with bz.Aggregator(bz.Mean()).round() as r, pytest.raises(TypeError, match="id must be hashable"):
        r.add(X[0], np.zeros(2))


def test_a_history_that_is_no_tuple_is_told_so():
    with pytest.raises(TypeError, match="history must be what the last round's result held"):
        bz.aggregate(X, bz.Mean(), history=1)

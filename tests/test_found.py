"""Failures that the fuzz campaign found stay fixed: each is a named case."""

from __future__ import annotations

import errno
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import bartizan as bz
import hostile_objects as hostile
from bartizan.errors import ServerResourceError
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import ConfigError
from bartizan.lab.runs.checkpoint import Checkpoint
from bartizan.records import CorruptFileError
from fuzz.lab.runs import STATE

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
CLAIMS = [  # what a server that runs out of something raises
    MemoryError("Unable to allocate 8 TiB"),
    *(OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENOSPC, "No space left on device")),
    ServerResourceError(errno.EMFILE, "Too many open files"),
]
BAD = {
    "a mapping that can be read never": lambda: hostile.HostileMapping([("v", X[0])], reads=0),
    "a mapping that can be read once": lambda: hostile.HostileMapping([("v", X[0])], reads=1),
    "a mapping that can be read twice": lambda: hostile.HostileMapping([("v", X[0])], reads=2),
    "a key that can't be printed": lambda: {"w": X[0, :3], "b": X[0, 3:], hostile.UnprintableKey(): X[0]},
    "an error that can't be printed": lambda: hostile.HostileMapping(error=hostile.UnprintableError()),
    "10^13 numbers in four bytes": lambda: np.broadcast_to(np.float32(0), (10**6, 10**7)),
    "an array that overstates its shape": lambda: [X[0].view(hostile.OverstatesShape)],
    "a tensor repeated for ever": lambda: torch.zeros(1).expand(10**9, 10**4),
    "an object that pretends to be an array": hostile.PretendsArray,
    "an object that raises when it is asked for its class": hostile.Unclassed,
    "a list that lies": hostile.InconsistentList,
    "text under a key that can't be printed": lambda: {"w": {hostile.UnprintableKey(): "text"}},
    "a name that can't be written": lambda: {"w": X[0, :3], "b": X[0, 3:], 10**5000: X[0]},
    **{f"a claim of {claim!r}": lambda claim=claim: hostile.HostileMapping(error=claim) for claim in CLAIMS},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", [bz.Mean(), bz.coordinatewise.Median()], ids=repr)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BAD)
def test_a_hostile_update_is_quarantined_among_others_and_alone_is_too_few_clients(name, form, rule, way, tmp_path):
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
def test_a_mapping_is_read_once_or_its_client_is_quarantined(times, way, tmp_path):
    updates = [FORMS["dict"](row) for row in X]
    out = WAYS[way](
        [hostile.HostileMapping(updates[0].items(), reads=times), *updates[1:]], bz.coordinatewise.Median(), tmp_path
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


def test_an_array_as_a_clients_id_is_a_type_error():
    with bz.Aggregator(bz.Mean()).round() as r, pytest.raises(TypeError, match="id must be hashable"):
        r.add(X[0], np.zeros(2))


def test_a_history_that_is_no_tuple_is_a_type_error():
    with pytest.raises(TypeError, match="history must be what the last round's result held"):
        bz.aggregate(X, bz.Mean(), history=1)


@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=64)], ids=repr)
def test_flame_keeps_all_clients_that_are_parallel(sketch):
    rows = np.array([[-3.578125], [-2.03125], [-2.84375], [-2.578125]])
    assert (bz.aggregate(rows, bz.FLAME(), sketch=sketch, seed=5).weights > 0).all()

"""A checkpoint that was damaged or forged is an error that names the file and the field, or does no harm."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array

from bartizan import records as results
from bartizan.flower import saved_state
from bartizan.flower.replies import Model
from bartizan.flower.saved_state import Saved
from bartizan.judge.reputation import Reputation
from flower_nodes import ATTACKERS, arrays, as_record, run, steps_by_one
from places import KINDS, put

SETTINGS = {"rule": "Mean()"}


def saved(folder: Path) -> Path:
    reputation = Reputation()
    reputation.add(None, {}, {2**63: "no reply within 60 s"})
    state = Saved(1, 1.5, (0.25, 3.0), reputation, SETTINGS, as_record({"w": np.float32([[1, 2]])}))
    saved_state.save(folder, state)
    return folder / saved_state.NAME


def state_of(path: Path) -> tuple:
    model = Model.of(as_record({"w": np.zeros((1, 2), np.float32)}))
    found = saved_state.load(path.parent, model, SETTINGS)
    data = {name: array.data for name, array in found.arrays.items()}
    return found.round, found.seconds, found.history, found.reputation.as_dict(), found.settings, data


def test_every_bit_that_is_flipped_is_noticed_or_changes_nothing(tmp_path):
    path = saved(tmp_path)
    whole, expected = path.read_bytes(), state_of(path)
    noticed = []
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert state_of(path) == expected, bit
        except results.CorruptFileError as wrong:
            noticed.append(str(wrong))
    assert len(noticed) > 4 * len(whole)
    assert all(str(path) in wrong for wrong in noticed)


@pytest.mark.parametrize("what", [0, 1, 100, -1, -30, *KINDS])
def test_a_file_that_was_cut_or_is_no_regular_file_is_an_error_and_not_waited_for(tmp_path, what):
    path = saved(tmp_path)
    if what in KINDS:
        put(what, path)
    else:
        path.write_bytes(path.read_bytes()[:what])
    with pytest.raises(results.CorruptFileError, match=r"checkpoint\.npz is not what RobustStrategy writes"):
        state_of(tmp_path / saved_state.NAME)


def forge(path: Path, about=None, arrays=None, method: int = zipfile.ZIP_STORED) -> None:
    """Change fields of a checkpoint, with the right checksums."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    entries[saved_state.ABOUT] = json.dumps({**json.loads(entries[saved_state.ABOUT]), **(about or {})}).encode()
    entries |= arrays or {}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


STANDING = Reputation()
STANDING.add({5: 1.0}, {})
STANDING = STANDING.as_dict()["5"]


def npy(array: np.ndarray) -> bytes:
    return Array(array).data


FORGED = {
    "round 0": ({"round": 0}, "round"),
    "round true": ({"round": True}, "round"),
    "seconds below 0": ({"seconds": -1.0}, "seconds"),
    "history with infinity": ({"history": [float("inf")]}, "history"),
    "settings no texts": ({"settings": {"rule": 3}}, "settings.rule"),
    "a name twice": ({"names": ["w", "w"]}, "names"),
    "an unknown field": ({"pickle": "x"}, "pickle"),
    "reputation no object": ({"reputation": []}, "reputation"),
    "a node that is no number": ({"reputation": {"amy": STANDING}}, "amy"),
    "a standing with another field": ({"reputation": {"5": {**STANDING, "odds": 1}}}, "odds"),
    "a standing with NaN": ({"reputation": {"5": {**STANDING, "share": float("nan")}}}, "share"),
    "left out more often than judged": ({"reputation": {"5": {**STANDING, "left_out": 7}}}, "left_out"),
    "left out against all odds": (
        {"reputation": {"5": {**STANDING, "left_out": 1, "expected": 0.0}}},
        "expected must be above 0",
    ),
}


@pytest.mark.parametrize(("about", "field"), FORGED.values(), ids=FORGED)
def test_a_forged_field_is_an_error_that_names_it(tmp_path, about, field):
    path = saved(tmp_path)
    forge(path, about)
    with pytest.raises(results.CorruptFileError, match=r"checkpoint\.npz is not what RobustStrategy writes") as wrong:
        state_of(path)
    assert field in str(wrong.value).partition("writes: ")[2]
    assert len(str(wrong.value)) < 1000


SOUND = npy(np.float32([[1, 2]]))
ARRAYS = {
    "NaN": (npy(np.float32([[1, np.nan]])), "array 'w'"),
    "objects": (SOUND.replace(b"<f4", b"|O8"), "array 'w'"),
    "too long": (SOUND + b"x", "array 'w'"),
    "another dtype": (npy(np.float64([[1, 2]])), "holds a run of another model"),
    "another shape": (npy(np.float32([1, 2])), "holds a run of another model"),
}


@pytest.mark.parametrize(("data", "message"), ARRAYS.values(), ids=ARRAYS)
def test_a_forged_array_is_an_error_that_names_it_or_another_model(tmp_path, data, message):
    path = saved(tmp_path)
    forge(path, arrays={"0.npy": data})
    with pytest.raises((results.CorruptFileError, ValueError), match=message):
        state_of(path)


@pytest.mark.parametrize("field", [20, 24], ids=["stored", "original"])
def test_nothing_is_allocated_for_the_size_that_an_entry_claims(tmp_path, field):
    saved_state.save(tmp_path, Saved(1, arrays=as_record(arrays())))
    path = tmp_path / saved_state.NAME
    content = path.read_bytes()
    at = content.index(b"PK\1\2") + field  # in the first entry of the directory
    path.write_bytes(content[:at] + (0xFFFFFFF0).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(results.CorruptFileError, match="claims more bytes than the file has"):
        saved_state.load(tmp_path, Model.of(as_record(arrays())), {})


def test_a_compressed_checkpoint_is_refused_unread(tmp_path):
    """A few kilobytes could become gigabytes."""
    path = saved(tmp_path)
    forge(path, arrays={"0.npy": bytes(10**6)}, method=zipfile.ZIP_DEFLATED)
    with pytest.raises(results.CorruptFileError, match="compressed"):
        state_of(path)


@pytest.mark.parametrize("rounds", [2, 200])
def test_a_round_that_the_record_does_not_have_is_an_error_also_if_the_run_seems_done(tmp_path, rounds):
    nodes = {**dict.fromkeys(range(7), steps_by_one), 9: ATTACKERS["NaN"]}
    run(nodes, rounds=2, folder=tmp_path)
    forge(tmp_path / saved_state.NAME, {"round": 3})
    with pytest.raises(
        results.CorruptFileError, match=r"checkpoint.npz is of round \d+, and results.jsonl .* 2 rounds"
    ):
        run(nodes, rounds=rounds, folder=tmp_path)
    (tmp_path / results.NAME).unlink()
    with pytest.raises(results.CorruptFileError, match=r"results\.jsonl .* 0 rounds"):
        run(nodes, rounds=rounds, folder=tmp_path)


def test_numpy_reads_the_model_of_a_checkpoint(tmp_path):
    nodes = dict.fromkeys(range(7), steps_by_one)
    _, result = run(nodes, folder=tmp_path)
    with np.load(io.BytesIO((tmp_path / saved_state.NAME).read_bytes()), allow_pickle=False) as file:
        for i, array in enumerate(result.arrays.values()):
            np.testing.assert_array_equal(file[str(i)], array.numpy())
    _, again = run(nodes, folder=tmp_path)
    assert again.arrays == result.arrays

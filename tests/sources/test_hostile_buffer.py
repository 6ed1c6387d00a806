"""A buffer under attack: what clients send, when they send it, and what is done to its folder."""

from __future__ import annotations

import errno
import itertools
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import bartizan as bz
from bartizan._util import jsonl
from bartizan.errors import ServerResourceError
from bartizan.records import CorruptFileError

MEAN = bz.Aggregator(bz.Mean())


def honest(n: int = 9, dim: int = 500) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, dim)).astype(np.float32) + 3


# What clients send.


class Hostile(dict):
    def __iter__(self):
        raise KeyError("hostile")


def nested(depth: int):
    return [nested(depth - 1)] if depth else np.ones(3)


ODD = [
    *(None, 1, "x", b"x", {}, [], (), {"w": None}, Hostile(a=1), iter([1]), lambda: 1),
    *({1: honest()[0]}, {None: honest()[0]}, {"\ud800": honest()[0]}, {10**5000: honest()[0]}, nested(40), nested(400)),
    *(np.array(one) for one in (None, "a", b"a", 3.0, [])),
    *(np.zeros(500, kind) for kind in ("c8", "?", "M8[s]", "m8[s]", [("a", "f4")], "g", ">f4", "f2", "u1")),
    *(np.full(500, one, "f4") for one in (np.nan, np.inf, 3e38)),
    *(honest()[0, ::-1], np.broadcast_to(np.float32(1), 500), np.ma.array(honest()[0], mask=True)),
    *(torch.zeros(500).to_sparse(), torch.zeros(500, requires_grad=True), torch.zeros(500, device="meta")),
    *(torch.zeros(500, dtype=kind) for kind in (torch.complex64, torch.float8_e5m2, torch.uint8)),
    *(Path("/nope.npy"), Path("/dev/zero"), "s3://"),
]


@pytest.mark.parametrize("folder", [False, True], ids=["memory", "folder"])
@pytest.mark.parametrize("model", [None, np.zeros(500, "f4")], ids=["changes", "weights"])
def test_whatever_clients_send_neither_raises_nor_enters_the_result_nor_stops_a_restart(folder, model, tmp_path):
    settings = {"folder": tmp_path if folder else None, "model": model}
    buffer, x = bz.Aggregator(bz.MultiKrum(1)).buffer(5, **settings), honest()
    for t in range(2):
        for nth, odd in enumerate(ODD):
            buffer.add(odd, f"odd {nth}")
        for m in range(9):
            assert buffer.add(x[m] + t, m) is None
        if folder:
            buffer.close()
            buffer = bz.Aggregator(bz.MultiKrum(1)).buffer(5, **settings)
            assert set(range(9)) <= set(buffer.clients)
        out = buffer.aggregate()
        assert abs(out.update - 3 - t).max() < 8  # 5 standard deviations
        if model is not None:
            buffer.publish(model)


def test_names_of_clients_are_never_paths(tmp_path):
    names = ["../x", "", "/etc/passwd", "é\0", "x" * 10**6, 7, "7", "updates.jsonl", -1, 2**64]
    buffer = MEAN.buffer(1, folder=tmp_path / "state")
    for nth, name in enumerate(names):
        assert buffer.add([nth + 1.0], name) is None
    buffer.close()
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]
    assert set(MEAN.buffer(1, folder=tmp_path / "state").clients) == set(names)
    for name in (10**5000, "\ud800", 1.5, True):
        with pytest.raises(TypeError, match="must be a text or a whole number"):
            MEAN.buffer(1, folder=tmp_path / "other").add([1.0], name)


def test_a_change_of_unsigned_integers_has_a_sign():
    """The median of -2, -1, 0, 1, 2 is 0; counted from 0 to 255 it would be 2."""
    for kind in (np.array, lambda n, dtype: torch.tensor(n, dtype=torch.uint8)):
        model = {"w": np.zeros(2) if kind is np.array else torch.zeros(2), "n": kind([9], dtype=np.uint8)}
        buffer = MEAN.buffer(5, model=model)
        for m in range(5):
            assert buffer.add({"w": model["w"] + 1, "n": kind([7 + m], dtype=np.uint8)}, m) is None
        assert int(buffer.aggregate().update["n"][0]) == 0


# When they send it.


def test_entries_that_grew_too_old_neither_fill_a_buffer_nor_stay_in_it(tmp_path):
    buffer = MEAN.buffer(2, max_staleness=0, folder=tmp_path)
    buffer.add([1.0], "amy"), buffer.add([2.0], "bob")
    buffer._state.version = 1  # as if another judgement had been made while they were added
    assert not buffer.full
    with pytest.raises(bz.TooFewClientsError):
        buffer.aggregate(deadline=0)
    assert not buffer.clients
    assert buffer.rejected.keys() == {"amy", "bob"}
    assert not list(tmp_path.glob("*.safetensors"))


def test_an_older_update_does_not_replace_one_that_is_being_judged(monkeypatch):
    buffer, said = MEAN.buffer(1, staleness=None), []
    buffer.add([1.0], "amy"), buffer.aggregate()
    buffer.add([2.0], "amy", version=1)
    monkeypatch.setattr(
        "bartizan.buffer.run", lambda *a, **b: said.append(buffer.add([3.0], "amy", version=0)) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        buffer.aggregate()
    monkeypatch.undo()
    assert said == ["it is of version 0, and the client's last update of version 1"]
    assert buffer.aggregate().update.tolist() == [2.0]


def test_nothing_is_lost_or_counted_twice_while_threads_add_and_others_judge(tmp_path):
    """Each client sends powers of two, so that the sum of all judgements tells which of them it holds."""
    buffer, seen, lock, done = MEAN.buffer(1, staleness=None, folder=tmp_path), [], threading.Lock(), threading.Event()

    def judge():
        while not (done.is_set() and not len(buffer)):
            try:
                out = buffer.aggregate(deadline=0.01)
            except bz.TooFewClientsError:
                continue
            with lock:
                seen.append(float(out.update[0]) * len(out.clients))

    def send(client):
        for nth in range(20):
            while client in buffer.clients:
                pass
            assert buffer.add([2.0 ** (20 * client + nth)], client) is None

    judges = [threading.Thread(target=judge) for _ in range(2)]
    senders = [threading.Thread(target=send, args=(client,)) for client in range(2)]
    for one in (*judges, *senders):
        one.start()
    for one in senders:
        one.join()
    done.set()
    for one in judges:
        one.join()
    assert sum(seen) == 2**40 - 1


TWICE = "it has sent the same numbers before: an update counts once"


def test_nothing_of_a_result_within_an_epoch_holds_its_seed():
    x, buffer = honest(), bz.Aggregator(bz.ARC(2) >> bz.CAF(2)).buffer(9, epoch=2, seed=3)
    for t in range(2):
        for m in range(9):
            buffer.add(x[m] + t, m)
        seed, out = buffer._state.arrivals.seed, buffer.aggregate()
        if not t:
            shown = pickle.dumps((out, buffer.seeds, buffer.fingerprints)) + repr((out, buffer, vars(out))).encode()
            assert str(seed).encode() not in shown
            assert seed.to_bytes(16, "little").rstrip(b"\0") not in shown
    assert buffer.seeds == [(0, seed)]


def test_attackers_who_fill_a_buffer_alone_can_make_it_old_and_size_above_f_prevents_it():
    """Why the guide says that `size` must be above f, or the server must choose who trains."""
    x, rejected = honest(), {}
    for size in (2, 3):
        buffer = bz.Aggregator(bz.MultiKrum(2)).buffer(size, remember=True, max_staleness=3)
        for m in range(9):
            buffer.add(x[m], m)
        buffer.aggregate()
        slow = buffer.version
        for t in range(6):
            for attacker in (0, 1):
                buffer.add(x[attacker] + t, attacker)
            if buffer.full:
                buffer.aggregate()
        rejected[size] = buffer.add(x[8] + 1, 8, version=slow)
    assert "versions old, where max_staleness is 3" in rejected[2]
    assert rejected[3] is None


# What is done to the folder.


def test_files_of_others_stay_and_those_of_a_killed_server_go(tmp_path):
    others = {"model.safetensors", "notes.json", "2024.json", "0123456789abcdef.safetensors.bak"}
    left = {"0123456789abcdef.safetensors", ".0123456789abcdef.safetensors.0123456789abcdef.part"}
    for name in others | left:
        (tmp_path / name).write_bytes(b"{}")
    MEAN.buffer(2, folder=tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == others | {"updates.jsonl"}


def test_every_flipped_bit_of_the_journal_is_named_or_loses_one_line_that_was_torn(tmp_path):
    buffer = MEAN.buffer(1, folder=tmp_path, remember=True)
    buffer.add([1.0], "amy"), buffer.aggregate(), buffer.add([2.0], "bob"), buffer.close()
    path, silent = tmp_path / "updates.jsonl", set()
    whole, files = path.read_bytes(), {one.name: one.read_bytes() for one in tmp_path.glob("*.safetensors")}
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = MEAN.buffer(1, folder=tmp_path, remember=True)
        except CorruptFileError:
            continue
        assert (found.clients, found.remembered) == ((), {"amy": 0})
        found.close()
        silent.add(bit // 8)
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
    assert silent == {len(whole) - 1}  # the line's end, without which it counts as torn by a kill


def test_lines_of_another_folder_are_named(tmp_path):
    buffer = MEAN.buffer(1, folder=tmp_path / "a", remember=True)
    buffer.add([1.0], "amy"), buffer.aggregate(), buffer.add([2.0], "bob", version=1), buffer.close()
    rows = jsonl.read(tmp_path / "a" / "updates.jsonl", dict, advice="").rows
    of_round = MEAN.round(folder=tmp_path / "b")
    of_round.add([1.0], "amy"), of_round._folder.close()
    wrong = (
        {"version": 9},
        {"file": "../a.safetensors"},
        {"client": []},
        {"shape": "["},
        {"size": None},
        {"shape": "[1,2]"},
    )
    for more in wrong:
        jsonl.rewrite(tmp_path / "a" / "updates.jsonl", [rows[0], {**rows[1], **more}, *rows[2:]])
        with pytest.raises(CorruptFileError, match="can't be read"):
            MEAN.buffer(1, folder=tmp_path / "a", remember=True)
    with pytest.raises(CorruptFileError, match="can't be read"):
        MEAN.buffer(1, folder=tmp_path / "b")
    with pytest.raises(CorruptFileError, match="can't be read"):
        MEAN.round(folder=tmp_path / "a")


@pytest.mark.parametrize("what", ["Appender.append", "rewrite"])
def test_a_full_disk_changes_nothing_and_once_there_is_room_all_goes_on(what, tmp_path, monkeypatch):
    buffer = MEAN.buffer(1, folder=tmp_path, model=np.zeros(1), remember=True)
    buffer.add([1.0], "amy")

    def full(*given, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"bartizan._util.jsonl.{what}", full)
    with pytest.raises(OSError, match="No space left"):
        buffer.add([2.0], "bob") if what != "rewrite" else buffer.aggregate()
    monkeypatch.undo()
    assert (buffer.version, buffer.clients, buffer.remembered) == (0, ("amy",), {})
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    assert buffer.add([2.0], "bob") is None
    assert buffer.aggregate().update.tolist() == [1.5]
    buffer.close()
    assert set(MEAN.buffer(1, folder=tmp_path, remember=True).remembered) == {"amy", "bob"}


def test_a_model_for_which_there_is_no_room_to_spill_is_kept_in_memory(tmp_path, monkeypatch):
    buffer = MEAN.buffer(1, spill=tmp_path, model=np.zeros(1), staleness=None)
    buffer.add(np.ones(1), "amy"), buffer.aggregate()

    def full(*given):
        raise ServerResourceError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("bartizan.updates.spill.Spill.keep", full)
        buffer.publish(np.ones(1))
        with pytest.raises(OSError, match="No space left"):
            buffer.add(np.full(1, 3.0), "amy")
    assert buffer.add(np.full(1, 3.0), "amy") is None
    assert buffer.aggregate().update.tolist() == [2.0]


def test_an_update_is_known_as_sent_before_after_a_restart_also_of_clients_that_are_not_remembered(tmp_path):
    for t in range(3):
        buffer = MEAN.buffer(1, folder=tmp_path)
        assert buffer.add([t + 1.0], "amy") is None
        assert all(buffer.add([s + 1.0], "amy") == TWICE for s in range(t + 1))
        buffer.aggregate(), buffer.close()


def test_a_closed_folder_is_left_alone(tmp_path):
    buffer = MEAN.buffer(1, folder=tmp_path)
    buffer.add([1.0], "amy"), buffer.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RuntimeError, match="was closed"):
        buffer.add([2.0], "bob")
    with pytest.raises(RuntimeError, match="was closed"):
        buffer.aggregate()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_client_that_floods_takes_a_bounded_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("bartizan.sources.update_folder.GROWTH", 2**12)
    buffer = MEAN.buffer(2, folder=tmp_path)
    for nth, client in itertools.product(range(200), ("eve", "amy")):
        buffer.add([nth + 1.0], client) if client == "eve" or not nth else None
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2**14
    buffer.close()
    buffer = MEAN.buffer(2, folder=tmp_path)
    assert set(buffer.clients) == {"eve", "amy"}
    assert buffer.aggregate().update.tolist() == [100.5]

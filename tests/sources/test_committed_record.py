"""The record of committed rounds: `bartizan verify` replays it, and finds what a server or anybody else changed."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import numpy as np
import pytest

import bartizan as bz
from bartizan import cli
from bartizan.attacks.nullspace import hidden_part
from bartizan.errors import TooFewClientsError
from bartizan.sources.committed import committed_round, committed_updates, update_bytes
from bartizan.sources.committed.record import FIRST_LINE, Record, RecordError, entries
from bartizan.sources.committed.replay import replayed
from bartizan.sources.committed.round_messages import (
    Closing,
    Committed,
    Draw,
    Fault,
    Fetch,
    Listing,
    Nonce,
    Opening,
    Result,
    SecondDraw,
    SecondSketch,
    Sketched,
)
from committed_clients import CHEAT, NAMES, F, Loopback, honest, rewritten, with_fields

RULE, SKETCH, P = bz.MultiKrum(F), bz.Rotated(k=64), 3000


def recorded(n_rounds=1, rule=RULE, cheats=(), path=None, record=None):
    """The record of some rounds, and the result of the last one."""
    record = Record(path) if record is None else record
    for number in range(n_rounds):
        updates = honest(P, seed=number)
        opened = bz.Aggregator(rule, SKETCH).committed_round(updates["c0"], expected=NAMES, record=record, audit=0.3)
        out = opened.run(Loopback(updates, cheats))
    return record, out


def problem_of(data):
    with pytest.raises(RecordError) as wrong:
        list(replayed(io.BytesIO(data)))
    return str(wrong.value)


def test_rounds_follow_one_another_and_are_replayed():
    record, out = recorded(3)
    rounds = list(replayed(io.BytesIO(record.read())))
    assert [one.number for one in rounds] == [1, 2, 3]
    assert rounds[-1].head == out.head
    assert not any(one.problem for one in rounds)
    rounds[-1].check_result(out.update)
    for name, update in honest(P, seed=2).items():
        rounds[-1].check_update(name, update)


@pytest.mark.parametrize("rule", [bz.Krum(F), bz.GeometricMedian(), bz.CGE(F), bz.rule("arc >> caf", n_byzantine=F)])
def test_weights_are_replayed_for_every_kind_of_rule(rule):
    record, out = recorded(1, rule)
    (one,) = replayed(io.BytesIO(record.read()))
    one.check_result(out.update)


def test_verify_finds_every_one_of_a_thousand_random_bits_and_names_its_entry():
    record, _ = recorded(2, bz.Krum(F))
    data, rng = record.read(), np.random.default_rng(0)
    ends = np.cumsum([len(FIRST_LINE)] + [len(message.encoded) + 36 for message, _ in entries(io.BytesIO(data))])
    assert ends[-1] == len(data)
    for at in rng.choice(8 * len(data), 1000, replace=False):
        wrong = bytearray(data)
        wrong[at // 8] ^= 1 << at % 8
        entry = int(np.searchsorted(ends, at // 8, side="right"))
        said = problem_of(bytes(wrong))
        assert said.startswith(f"entry {entry} " if entry else "it does not begin"), (at, said)


def opening_of(data):
    return next(entries(io.BytesIO(data)))[0]


def swapped(result):
    (first, w), (second, v), *rest = result.weights
    return with_fields(result, weights=((first, v + 0.01), (second, w), *rest))


CHANGES = {
    "drops a commitment": (
        lambda m: None if isinstance(m, Committed) and m.client == "c3" else m,
        r"Listing\): .*dropped",
    ),
    "changes a seal": (
        lambda m: with_fields(m, seal=bytes(32)) if isinstance(m, Committed) and m.client == "c3" else m,
        r"Listing\): .*dropped or changed",
    ),
    "lists another seal": (
        lambda m: (
            with_fields(m, rows=((m.rows[0][0], bytes(32), bytes(32)), *m.rows[1:])) if isinstance(m, Listing) else m
        ),
        r"Listing\): .*dropped or changed",
    ),
    "opens another nonce": (
        lambda m: with_fields(m, nonce=bytes(32)) if type(m) is Draw else m,
        r"Draw\): the server's nonce",
    ),
    "draws a second seed by a nonce of its choice": (
        lambda m: with_fields(m, nonce=bytes(32)) if type(m) is SecondDraw else m,
        r"SecondDraw\): the server's nonce",
    ),
    "drops a nonce": (
        lambda m: with_fields(m, rows=m.rows[1:]) if type(m) is Draw else m,
        r"Draw\): .*dropped or changed",
    ),
    "changes a client's nonce": (
        lambda m: with_fields(m, nonce=bytes(32)) if isinstance(m, Nonce) else m,
        r"Nonce\): its nonce is not the one",
    ),
    "changes a norm": (
        lambda m: with_fields(m, squared_norm=1.0) if isinstance(m, Sketched) else m,
        r"Sketched\): it did not commit to this update, norm or data size",
    ),
    "swaps a weight": (lambda m: swapped(m) if isinstance(m, Result) else m, r"SecondDraw|Nonce"),
    "changes the root of the result": (
        lambda m: with_fields(m, root=bytes(32)) if isinstance(m, Result) else m,
        r"Nonce\): it answers another Result",
    ),
    "drops a second sketch": (
        lambda m: None if isinstance(m, SecondSketch) else m,
        r"Closing\): there is no second sketch of",
    ),
    "leaves out the second seed": (
        lambda m: None if isinstance(m, (SecondDraw, SecondSketch)) else m,
        r"Closing\): the round was closed without a result that was proven",
    ),
    "leaves a round open": (lambda m: None if isinstance(m, Closing) else m, "the round before was not closed"),
    "skips a round": (
        lambda m: with_fields(m, round=m.round + 1) if isinstance(m, Opening) else m,
        r"Opening\): it opens round 2, and 1 is next",
    ),
    "takes another rule": (
        lambda m: with_fields(m, rule="Krum(n_byzantine=2)") if isinstance(m, Opening) else m,
        "answers another Opening",
    ),
    "opens nothing": (lambda m: None if isinstance(m, Opening) else m, "entry 1 .*no round is open"),
    "adds a message": (lambda m: m if not isinstance(m, Closing) else Fetch(bytes(32), 0, 1), "a Fetch came where"),
}


@pytest.mark.parametrize(("change", "says"), CHANGES.values(), ids=CHANGES)
def test_a_server_that_chains_other_messages_is_named(change, says):
    record, _ = recorded(2)
    with pytest.raises(RecordError, match=says):
        list(replayed(io.BytesIO(rewritten(record.read(), change))))


def test_a_sketch_that_was_changed_gives_other_weights():
    record, _ = recorded(1, bz.GeometricMedian())  # whose weights depend on every number

    def change(message):
        mine = isinstance(message, Sketched) and message.client == "c3"
        return with_fields(message, sketch=message.sketch[::-1]) if mine else message

    assert "the sketches give" in problem_of(rewritten(record.read(), change))


def test_a_server_that_swaps_a_weight_before_it_publishes_it_is_named(monkeypatch):
    own = committed_round.CommittedRound._combined

    def swapping(self, weights, judgement):
        heaviest, lightest = max(weights, key=weights.get), min(weights, key=weights.get)
        return own(self, weights | {heaviest: weights[lightest], lightest: weights[heaviest]}, judgement)

    monkeypatch.setattr(committed_round.CommittedRound, "_combined", swapping)
    record, _ = recorded(1)
    assert "the weight of 'c" in problem_of(record.read())


def test_a_server_that_gives_a_far_client_a_millionth_of_the_weight_is_named(monkeypatch):
    """Weights may differ by what moves the result by a millionth of its length, not by a millionth of themselves."""
    own = committed_round.CommittedRound._combined
    monkeypatch.setattr(
        committed_round.CommittedRound, "_combined", lambda self, w, judgement: own(self, w | {CHEAT: 9e-7}, judgement)
    )
    updates, record = honest(P), Record()
    updates[CHEAT] = updates[CHEAT] * np.float32(1e12)
    opened = bz.Aggregator(RULE, SKETCH).committed_round(updates["c0"], expected=NAMES, record=record)
    assert np.linalg.norm(opened.run(Loopback(updates)).update) > 1e6
    assert "the weight of 'c8' is 9e-07, and the sketches give 0" in problem_of(record.read())


def test_a_client_can_not_make_an_honest_result_look_false():
    """Of float64 updates a second sketch within the server's slack is farther off than rounding explains."""
    updates, record = {name: x.astype(np.float64) for name, x in honest(P).items()}, Record()

    def almost(client, request, reply):
        if not isinstance(request, SecondDraw):
            return reply
        message = SecondSketch.decode(reply)
        return with_fields(message, sketch=message.sketch * (1 + 0.9 * update_bytes.SLACK)).encoded

    opened = bz.Aggregator(bz.GeometricMedian(), SKETCH).committed_round(updates["c0"], expected=NAMES, record=record)
    out = opened.run(Loopback(updates, dict.fromkeys(NAMES[:F], almost)))
    assert not out.quarantined
    (one,) = replayed(io.BytesIO(record.read()))
    one.check_result(out.update)
    with pytest.raises(RecordError, match="its root is another one"):
        one.check_result(out.update * (1 + 1e-4))


def test_the_order_in_which_a_server_records_nonces_does_not_change_the_seed():
    """It knows all of them by then, and could try one order after another."""
    record, _ = recorded(1)
    every = [message for message, _ in entries(io.BytesIO(record.read()))]
    first = next(at for at, message in enumerate(every) if isinstance(message, Nonce))
    every[first : first + len(NAMES)] = every[first : first + len(NAMES)][::-1]
    other = Record()
    for message in every[:-1]:
        other.append(message)
    other.append(with_fields(every[-1], head=other.head))
    seeds = [next(replayed(io.BytesIO(one.read()))).transcript.seed for one in (record, other)]
    assert seeds[0] == seeds[1]


def test_a_server_can_not_publish_results_until_it_likes_one():
    """A second result needs a client that was lost, and each result needs new nonces."""
    record, _ = recorded(1)
    other = Record()
    for message, _ in entries(io.BytesIO(record.read())):
        if isinstance(message, Result):
            other.append(with_fields(message, root=bytes(32)))
        other.append(message)
    assert "no client was lost since the last result" in problem_of(other.read())


def test_a_server_that_goes_on_with_more_than_f_lost_clients_is_named(monkeypatch):
    monkeypatch.setattr(committed_updates, "too_many_lost", lambda rule, transcript: "")
    updates, record = honest(P), Record()
    gone = dict.fromkeys(NAMES[:3], lambda client, request, reply: None if isinstance(request, Fetch) else reply)
    aggregator = bz.Aggregator(n_byzantine=F, sketch=SKETCH)  # which admits the six that are left
    opened = aggregator.committed_round(updates["c0"], expected=NAMES, record=record, audit=1)
    assert len(opened.run(Loopback(updates, gone)).quarantined) == 3
    assert "should have been refused: 3 clients withheld" in problem_of(record.read())


def test_a_server_that_puts_clients_out_for_nothing_changes_no_verdict_unseen():
    """A fault is the server's word: it is in the record with its reason, and the weights must follow from it."""
    record, _ = recorded(1)
    data = rewritten(record.read(), lambda m: Fault("c4", "I do not like it") if isinstance(m, Closing) else m)
    record = Record()
    for message, _ in entries(io.BytesIO(data)):
        record.append(message)
    record.append(Closing(opening_of(data).digest, record.head, ""))
    assert "other clients were judged" in problem_of(record.read())


def test_a_vector_from_the_null_space_of_the_seed_is_found_in_the_result(monkeypatch):
    """The aggregator knows the first seed when it makes the result, and not the second one, which hashes its root."""
    honest_combine, added = committed_round.combine, []

    def combine(updates, weights):
        result = honest_combine(updates, weights)
        hidden = hidden_part(np.ones(P), SKETCH, [opened.transcript.seed]).astype(np.float32)
        added.append(hidden)
        return result + hidden

    monkeypatch.setattr(committed_round, "combine", combine)
    updates, record = honest(P), Record()
    opened = bz.Aggregator(RULE, SKETCH).committed_round(updates["c0"], expected=NAMES, record=record)
    out = opened.run(Loopback(updates))
    (one,) = replayed(io.BytesIO(record.read()))
    with pytest.raises(RecordError, match="its second sketch is not the weighted sum"):
        one.check_result(out.update)
    shown = np.linalg.norm(SKETCH(added[0][None], seed=out.seed))
    assert shown < 1e-3 * np.linalg.norm(added[0])  # the first sketch shows nothing of it
    with pytest.raises(RecordError, match="its root is another one"):
        one.check_result(out.update - added[0])


def test_a_client_with_weight_can_not_cover_a_vector_that_is_longer_than_its_update(monkeypatch):
    """Its second sketch would have another norm than it committed to."""
    record, _ = recorded(1)

    def forged(message):
        return with_fields(message, sketch=3 * message.sketch) if isinstance(message, SecondSketch) else message

    with pytest.raises(RecordError, match="shows a squared norm of"):
        list(replayed(io.BytesIO(rewritten(record.read(), forged))))


def test_rounds_without_a_result_stay_in_the_record(tmp_path):
    path = tmp_path / "record"
    opened = bz.Aggregator(RULE, SKETCH).committed_round(np.zeros(P, np.float32), expected=NAMES, record=path)
    with pytest.raises(TooFewClientsError):
        opened.run(Loopback(honest(P), dict.fromkeys(NAMES[:8], lambda *_: None)))
    record, _ = recorded(path=path)
    record.close()
    with open(path, "rb") as file:
        rounds = list(replayed(file))
    assert "needs at least" in rounds[0].problem
    assert not rounds[1].problem
    assert rounds[0].transcript.failed()["c0"] == "it sent no Committed in time"


def test_a_record_that_was_left_within_a_round_or_an_entry_is_closed_and_continued(tmp_path):
    path = tmp_path / "record"
    record, _ = recorded(path=path)
    bz.Aggregator(RULE, SKETCH).committed_round(np.zeros(P, np.float32), expected=NAMES, record=record)
    with pytest.raises(ValueError, match="written by another server"):
        Record(path)
    record.close()
    with open(path, "ab") as file:
        file.write(b"\x99\x00\x00\x00half")
    record, out = recorded(path=path)
    rounds = list(replayed(io.BytesIO(record.read())))
    assert [bool(one.problem) for one in rounds] == [False, True, False]
    assert "8 bytes of an unfinished entry were dropped" in rounds[1].problem
    assert rounds[-1].head == out.head
    record.close()
    path.write_bytes(b"something else")
    with pytest.raises(RecordError, match="can't be continued: it does not begin"):
        Record(path)


def test_a_changed_size_is_an_error_and_no_torn_entry(tmp_path):
    """A record that is continued loses an entry that was cut short, and never the rounds behind a changed one."""
    path = tmp_path / "record"
    record, _ = recorded(2, path=path)
    record.close()
    data, at, starts = path.read_bytes(), len(FIRST_LINE), []
    for message, _ in entries(io.BytesIO(data)):
        starts.append(at)
        at += len(message.encoded) + 36
    for start in starts:
        for bit in (15, 18, 25, 31):
            wrong = bytearray(data)
            wrong[start + bit // 8] ^= 1 << bit % 8
            path.write_bytes(wrong)
            with pytest.raises(RecordError, match="can't be continued"):
                Record(path)
            assert path.read_bytes() == wrong


def test_a_record_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for place in ("pipe", "link", "."):
        with pytest.raises(OSError, match="not a regular file"):
            Record(tmp_path / place)
        assert cli.main(["verify", str(tmp_path / place)]) == 2


def verify(capsys, *words):
    status = cli.main(["verify", *map(str, words)])
    return status, *capsys.readouterr()


def test_the_command_prints_rounds_and_heads_and_compares_files(tmp_path, capsys):
    path, updates = tmp_path / "record", honest(P, seed=1)
    record, out = recorded(2, path=path, cheats={CHEAT: lambda c, q, r: None if isinstance(q, Draw) else r})
    record.close()
    np.save(tmp_path / "out.npy", out.update)
    np.save(tmp_path / "c1.npy", updates["c1"])
    np.save(tmp_path / "wrong.npy", out.update + np.float32(1e-3))
    files = "--result", tmp_path / "out.npy", "--update", f"c1={tmp_path}/c1.npy"
    status, said, _ = verify(capsys, path, "--head", out.head.hex(), *files)
    assert status == 0
    assert f"head {out.head.hex()}" in said
    assert "c8 is out: it sent no Sketched in time" in said
    assert "the result of round 2" in said
    assert "what c1 committed to in round 2" in said
    for words, message in [
        (("--head", "00" * 32), "no round ends with the head that was pinned"),
        (("--result", tmp_path / "wrong.npy"), "the result is not the one of round 2"),
        (("--update", f"c0={tmp_path}/c1.npy"), "this is not the update of 'c0' in round 2"),
        (("--update", f"c8={tmp_path}/c1.npy"), "there is no sketch of 'c8' in round 2: it sent no Sketched in time"),
        (("--round", 1, "--result", tmp_path / "out.npy"), "not the one of round 1"),
        (("--round", 7, "--result", tmp_path / "out.npy"), "no such round"),
    ]:
        status, _, error = verify(capsys, path, *words)
        assert (status, error.count("\n")) == (1, 1)
        assert message in error
    for words, message in [
        (("--update", "c1"), "must be CLIENT=FILE"),
        (("--result", tmp_path / "missing.npy"), "missing.npy"),
        (("--result", tmp_path / "out.npy", "--reference", tmp_path / "c1.npy"), "another one was given"),
    ]:
        status, _, error = verify(capsys, path, *words)
        assert status == 2
        assert message in error
    assert verify(capsys, tmp_path / "no")[0] == 2


def test_a_reference_is_checked_too():
    model, updates, record = np.full(P, 7, np.float32), honest(P), Record()
    moved = {name: model + x for name, x in updates.items()}
    aggregator = bz.Aggregator(RULE, SKETCH)
    opened = aggregator.committed_round(model, expected=NAMES, reference=model, record=record)
    out = opened.run(Loopback(moved, reference=lambda opening: model))
    (one,) = replayed(io.BytesIO(record.read()))
    one.check_result(out.update, model)
    one.check_update("c0", moved["c0"], model)
    with pytest.raises(ValueError, match="none was given"):
        one.check_result(out.update)


def test_verifying_needs_no_torch(tmp_path):
    path = tmp_path / "record"
    recorded(path=path)[0].close()
    code = "import sys; sys.modules['torch'] = None; from bartizan import cli; sys.exit(cli.main(sys.argv[1:]))"
    assert (
        subprocess.run([sys.executable, "-c", code, "verify", path], capture_output=True, timeout=300).returncode == 0
    )

"""Runs: repeatable, resumable to the bit, and honest about what went wrong."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bartizan import Rotated, cli
from bartizan import records as results
from bartizan.lab import Experiment, run, sweep
from bartizan.lab.data import load
from bartizan.lab.models import build
from bartizan.lab.report import content as report
from bartizan.lab.report.load import load as load_runs
from bartizan.lab.runs.checkpoint import NAME, Checkpoint, CheckpointTimer
from bartizan.lab.runs.progress_display import Display
from bartizan.lab.training.population import Population
from bartizan.records import AnotherRunError, CorruptFileError, locked
from bartizan.sources.committed.transcript import bytes_sent
from image_files import write_idx
from laboratory import SMALL, child, facts, run_until
from places import KINDS, put

torch = pytest.importorskip("torch")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    run(SMALL, folder)
    return folder


def test_a_run_writes_what_the_format_says(whole):
    recorded = results.read(whole)
    first = recorded.run
    assert (first["version"], first["id"], first["name"]) == (1, SMALL.id, "experiment")
    assert Experiment.of(first["config"]) == SMALL == Experiment.from_toml(whole / "experiment.toml")
    assert first["clients"] == list(range(10))
    assert len(first["byzantine"]) == 3
    split, sizes = np.array(first["split"]), np.array(first["sizes"])
    assert split.shape == (10, len(first["classes"]))
    assert split.sum(axis=1).tolist() == sizes.tolist()
    assert first["ratio"] == {"count": 0.3, "data": pytest.approx(sizes[first["byzantine"]].sum() / sizes.sum())}
    assert first["dim"] == 28 * 28 * 10 + 10
    for t, line in enumerate(recorded.rounds, start=1):
        assert line["clients"] == first["clients"]
        assert sum(line["weights"]) == pytest.approx(1)
        assert set(line["seconds"]) == {"train", "sketch", "weigh", "combine"}
        assert line["sketch"] == "Rotated(k=256, mixing=32)"
        assert line["norm"] > 0
        assert line["step"] == 0.1
        assert line["committed_bytes"] == bytes_sent(line["weights"], 4 * first["dim"], 256)
        assert 0 <= int(line["seed"]) < 2**128
        evaluated = {"accuracy", "test_loss", "exact_weights", "read"}
        assert evaluated & set(line) == (evaluated if t % 2 == 0 else set())
    assert len({line["seed"] for line in recorded.rounds}) == 6, "every round has its own projection"
    end = recorded.end
    assert end["status"] == "finished"
    assert end["converged"]
    assert end["best"] == max(line.get("accuracy", 0) for line in recorded.rounds) > 0.3
    assert end["last"] == recorded.rounds[-1]["accuracy"]


def test_two_runs_are_equal_to_the_bit_and_one_of_another_seed_differs(whole, tmp_path):
    run(SMALL, tmp_path / "same")
    assert facts(tmp_path / "same") == facts(whole)
    one, other = results.read(whole).run, run(SMALL.with_settings(["seed=1", "rounds=1"]), tmp_path / "other").run
    assert one["sizes"] != other["sizes"]
    assert one["byzantine"] != other["byzantine"]


@pytest.mark.parametrize(
    "settings",
    [
        ["server.optimiser=momentum", "data.augment=true"],
        ["server.optimiser=prodigy"],
        ["server.optimiser=dog", "data.validation=0.1", "data.resize=14", "data.scaling=symmetric"],
        ["split.kind=client-dirichlet"],
        ["server.optimiser=adagrad-norm"],
        ["rule.name=clipped-clustering", "server.schedule=cosine"],
        ["clients.work=epochs", "clients.batch=100", "clients.participation=0.7", "rule.name=nnm >> mean"],
        ["attack.name=garbage", "rule.name=fltrust"],
        ["attack.name=observer", "sketch.k=1024"],
        ["clients.worker_momentum=0.9", "clients.participation=0.7", "attack.name=alie-over-time"],
        ["model.adapters=3", "rule.name=multi-krum", "clients.work=steps", "clients.worker_momentum=0.5"],
    ],
    ids=" ".join,
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, settings):
    experiment = SMALL.with_settings(["rounds=4", *settings])
    run(experiment, tmp_path / "whole")
    run_until(1, experiment, tmp_path / "parts")
    for round in (2, 3):
        run_until(round, experiment, tmp_path / "parts", resume=True)
    seen = []
    run(experiment, tmp_path / "parts", resume=True, watch=seen.append)
    assert facts(tmp_path / "parts") == facts(tmp_path / "whole")
    assert [line.get("round", line["kind"]) for line in seen] == ["run", 1, 2, 3, 4, "end"], "watch sees all of it"
    parts = results.read(tmp_path / "parts").end["seconds"]
    assert parts > sum(line["seconds"]["train"] for line in results.read(tmp_path / "parts").rounds)


def test_a_resume_takes_as_many_threads_as_the_run_began_with(whole, tmp_path):
    run_until(2, SMALL, tmp_path)
    torch.set_num_threads(2)
    seen = []
    run(SMALL, tmp_path, resume=True, watch=lambda line: seen.append(torch.get_num_threads()))
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
    assert facts(tmp_path) == facts(whole)


def test_a_finished_run_is_not_run_again(whole):
    before, seen = (whole / results.NAME).stat().st_mtime_ns, []
    run(SMALL, whole, watch=seen.append)
    run(SMALL.with_settings(["name=another name"]), whole, resume=True)
    assert (whole / results.NAME).stat().st_mtime_ns == before
    assert len(seen) == 8


def test_what_is_in_the_folder_is_not_written_over_unasked(whole, tmp_path):
    with pytest.raises(AnotherRunError, match=r"another experiment: rule.name is 'krum' there and 'mean' here"):
        run(SMALL.with_settings(["rule.name=mean"]), whole)
    run_until(2, SMALL, tmp_path)
    with pytest.raises(
        AnotherRunError, match=r"stopped after round 2 of 6. Pass --resume to go on with it, or --fresh"
    ):
        run(SMALL, tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    run(SMALL.with_settings(["rule.name=mean", "rounds=1"]), tmp_path, fresh=True)
    assert results.read(tmp_path).run["config"]["rule"]["name"] == "mean"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_that_no_run_wrote_stays(tmp_path):
    mine = tmp_path / "experiment.toml"
    mine.write_text("rounds = 2  # my own")
    for fresh in (False, True):
        with pytest.raises(FileExistsError, match="that no run wrote"):
            run(SMALL, tmp_path, fresh=fresh)
    assert mine.read_text() == "rounds = 2  # my own"


def test_a_finished_run_stays_until_another_can_begin_in_its_place(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "done")
    absent = SMALL.changed({"data.name": "cifar10", "data.folder": str(tmp_path / "nowhere")})
    with pytest.raises((ValueError, OSError), match="cifar10"):
        run(absent, tmp_path / "done", fresh=True)
    assert facts(tmp_path / "done") == facts(whole)


def test_a_run_needs_a_folder_of_its_own_and_no_grid(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is not a folder; results need one"):
        run(SMALL, tmp_path / "file")
    with locked(tmp_path), pytest.raises(AnotherRunError, match="Another process is at work"):
        run(SMALL, tmp_path)
    with pytest.raises(ValueError, match="has a grid"):
        run(SMALL.with_settings(["grid.seed=[0, 1]"]), tmp_path)


@pytest.fixture
def stopped(tmp_path):
    run_until(3, SMALL, tmp_path)
    return tmp_path


def test_any_change_of_a_checkpoint_is_found_and_named_or_changes_nothing(stopped):
    """Half of it, then a bit of every hundredth byte; a few bytes of an archive, such as padding, mean nothing."""
    data = (stopped / NAME).read_bytes()
    whole, refused = Checkpoint.load(stopped), []
    bits = range(0, 8 * len(data), 101 * 8 + 1)
    for bit in bits:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        (stopped / NAME).write_bytes(changed if bit else data[: len(data) // 2])
        try:
            found = Checkpoint.load(stopped)
        except CorruptFileError as wrong:
            refused.append(str(wrong))
            continue
        assert torch.equal(found.server.pop("weights"), whole.server["weights"])
        assert found == replace(whole, server={"optimiser": "sgd", "round": 3})
    assert len(refused) > 0.8 * len(bits)
    for told in refused:
        assert "checkpoint.pt is corrupt" in told
        assert "delete it and pass --resume" in told


def test_a_checkpoint_of_a_stranger_executes_nothing(stopped):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(stopped / "was-here"),)

    torch.save({"id": Hostile()}, stopped / NAME)
    with pytest.raises(CorruptFileError, match="not a checkpoint of this version"):
        Checkpoint.load(stopped)
    assert not (stopped / "was-here").exists()


FORGED = {
    "round -1": ({"round": -1}, "round must be a whole number from 0"),
    "round 99": ({"round": 99}, "does not belong to"),
    "a round of the server's own": ({"server": {"round": 7}}, "does not belong to"),
    "a round of the server's own that is a tensor": ({"server": {"round": torch.ones(2)}}, "server.round must be"),
    "a client that is no text": ({"clients": {"sent": {(): torch.ones(1)}}}, "clients must be the last updates"),
    "lines before the file": ({"lines": -5}, "lines must be a whole number from 0"),
    "a field of nobody": ({"extra": 1}, "extra is no field of it"),
    "seconds that are NaN": ({"seconds": float("nan")}, "seconds must be a number, got nan"),
    "a history of texts": ({"history": ("x",)}, "history must be a number"),
    "diverged by a text": ({"diverged": "yes"}, "diverged must be true or false"),
    "another optimiser": ({"server": {"optimiser": "adam"}}, "of a server with 'adam', not with"),
    "no weights": ({"server": {"weights": None}}, "weights must be a tensor"),
    "weights of another model": ({"server": {"weights": torch.zeros(3)}}, r"weights must be .* got .* shape \(3,\)"),
    "weights of another dtype": ({"server": {"weights": torch.zeros(7850, dtype=torch.int64)}}, "weights must be"),
    "weights in four bytes": ({"server": {"weights": torch.zeros(1).expand(10**13)}}, "weights must be a tensor"),
    "no velocity": ({"server": {"velocity": None}}, "velocity must be a tensor"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_named_with_its_field(name, tmp_path):
    changes, message = FORGED[name]
    momentum = SMALL.with_settings(["server.optimiser=momentum"])
    run_until(1, momentum, tmp_path)
    saved = vars(Checkpoint.load(tmp_path))
    server = saved["server"] | changes.get("server", {})
    torch.save(saved | changes | {"server": server}, tmp_path / NAME)
    with pytest.raises(CorruptFileError, match=rf"checkpoint\.pt .*{message}"):
        run(momentum, tmp_path, resume=True)


def test_a_compressed_checkpoint_is_not_unpacked(stopped):
    with zipfile.ZipFile(stopped / NAME, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10**6))
    with pytest.raises(CorruptFileError, match="its parts are compressed"):
        Checkpoint.load(stopped)


@pytest.mark.parametrize("line", [{"kind": "end"}, {"kind": "end", "status": "\x1b[31m" * 9999, "best": 0.5}], ids=len)
def test_a_finished_run_of_few_fields_is_told_cleanly(line, whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "run")
    first = {"kind": "run", "version": 1, "id": SMALL.id, "clients": [0], "config": {"data": {"folder": ""}}}
    rounds = [{"kind": "round", "round": 1, "clients": [0]}]
    (tmp_path / "run" / results.NAME).write_bytes(b"".join(map(results.encode, [first, *rounds, line])))
    config = tmp_path / "small.toml"
    config.write_text(SMALL.to_toml())
    assert cli.main(["run", str(config), "--out", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert "after 1 rounds" in told
    assert "\x1b" not in told
    assert len(told) < 1000
    with Display({"run": 6}) as progress:
        assert run(SMALL, tmp_path / "run", watch=partial(progress.update, "run")).end


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [results.NAME, NAME])
def test_a_file_of_a_run_that_is_no_regular_file_is_named_and_not_waited_for(kind, name, stopped, tmp_path, capsys):
    config = tmp_path / "small.toml"
    config.write_text(SMALL.to_toml())
    put(kind, stopped / name)
    assert cli.main(["run", str(config), "--out", str(stopped), "--resume"]) == 2
    told = capsys.readouterr().err
    assert name in told
    assert len(told) < 600
    if name == results.NAME:
        assert cli.main(["report", str(stopped)]) == 0
        assert f"not shown: {stopped.name}: " in capsys.readouterr().err


@pytest.mark.parametrize("keep", [None, 0, 30], ids=["deleted", "empty", "cut in the first line"])
def test_a_checkpoint_without_its_lines_is_named_and_kept(stopped, keep):
    lines = stopped / results.NAME
    content = lines.read_bytes()
    lines.unlink()
    if keep is not None:
        lines.write_bytes(content[:keep])
    for resume in (False, True):
        with pytest.raises(CorruptFileError, match=r"results\.jsonl"):
            run(LONGER, stopped, resume=resume)
    assert (stopped / NAME).exists()


def images(folder, count):
    write_idx(folder, counts=(count, count))
    return ["data.name=mnist", f"data.folder={folder}"]


def first_weights(folder, bias):
    model = build("logistic", 10, (1, 28, 28))
    torch.save(model.state_dict() | {"fc.bias": torch.full((10,), float(bias))}, folder / "first.pt")
    return [f"model.weights={folder / 'first.pt'}"]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (images, "on other images of mnist: 200 to train with, here 300"),
        (first_weights, r"from other first weights \(model.weights\): a file of hash"),
    ],
)
def test_a_run_does_not_go_on_with_other_files_of_the_same_name(made, message, tmp_path):
    settings = {}
    for name, content in (("a", 200), ("b", 300)):
        (tmp_path / name).mkdir()
        settings[name] = ["rounds=3", *made(tmp_path / name, content)]
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    on, other = map(SMALL.with_settings, settings.values())
    same = SMALL.with_settings([one.replace(str(tmp_path / "a"), str(tmp_path / "copy")) for one in settings["a"]])
    run_until(1, on, tmp_path / "run")
    for _ in range(2):  # unfinished, then finished
        with pytest.raises(AnotherRunError, match=message):
            run(other, tmp_path / "run", resume=True)
        assert run(same, tmp_path / "run", resume=True).end


def test_a_run_does_not_go_on_with_another_version_of_its_sketch(tmp_path, monkeypatch):
    monkeypatch.setattr(Rotated, "version", 1)
    experiment = SMALL.with_settings(["rounds=3", "sketch.name=rotated"])
    run_until(1, experiment, tmp_path / "run")
    monkeypatch.undo()
    with pytest.raises(AnotherRunError, match="with version 1 of its sketch, here 2: seeds draw other projections"):
        run(experiment, tmp_path / "run", resume=True)


def test_a_classifier_that_was_drawn_anew_is_told_in_the_first_round(tmp_path):
    torch.save(build("logistic", 7, (1, 28, 28)).state_dict(), tmp_path / "seven.pt")
    done = run(SMALL.with_settings(["rounds=2", f"model.weights={tmp_path / 'seven.pt'}"]), tmp_path / "run")
    notes = [line.get("note", "") for line in done.rounds]
    assert notes[0].startswith("fc.weight and fc.bias are drawn anew: seven.pt has 7 classes.")
    assert "drawn" not in notes[1]


def test_a_sample_with_less_than_a_batch_for_each_client_is_shared_out_equally_and_noted():
    n, count = len(Population.of(SMALL).dataset.train), SMALL.clients.count
    unequal = {"kind": "dirichlet", "beta": 0.1}
    sample = Population.of(SMALL.changed({"clients.batch": n // count + 1, "split": unequal}))
    assert set(sample.sizes) <= {n // count, -(-n // count)}
    assert f"fewer than a batch of {n // count + 1}" in sample.note
    assert Population.of(SMALL).note == ""


def test_a_validation_part_is_taken_from_all_clients_and_the_test_set_is_not_looked_at(tmp_path):
    kept, held = (run(SMALL.with_settings([f"data.validation={v}"]), tmp_path / v).run for v in ("0.0", "0.2"))
    assert (sum(kept["sizes"]), sum(held["sizes"])) == (10_000, 8_000)
    assert kept["data"] != held["data"]
    one, other = (Population.of(SMALL.changed({"data.validation": 0.2, "seed": seed})).dataset for seed in (0, 1))
    assert one.digest == other.digest, "the same part for all seeds"
    whole = load()
    assert len(one.test) == 2_000
    images = {pixels.tobytes() for pixels in whole.train.pixels}
    assert all(pixels.tobytes() in images for pixels in one.test.pixels)
    assert np.array_equal(np.sort(np.concatenate([one.train.labels, one.test.labels])), np.sort(whole.train.labels))


def test_a_run_that_can_not_begin_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="mnist"):
        run(SMALL.changed({"data": {"name": "mnist", "folder": str(tmp_path)}}), tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("there", [True, False], ids=["in the folder", "above it"])
def test_a_folder_that_can_not_be_written_to_is_told_before_anything_is_loaded(tmp_path, monkeypatch, there):
    """As root every folder can be written to, so the system's answer is put in its place."""

    def denied(*arguments, **settings):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "tmpa1b2c3"))

    folder = tmp_path if there else tmp_path / "new" / "run"
    monkeypatch.setattr(tempfile, "TemporaryFile", denied)
    monkeypatch.setitem(sys.modules, "bartizan.lab.training.training_loop", None)
    with pytest.raises(PermissionError, match=r"^Results can't be written to .*: Permission denied. Take another"):
        run(SMALL, folder)
    with pytest.raises(PermissionError, match=r"^Results can't be written to"):
        sweep([SMALL.with_settings(["grid.seed=[0, 1]"])], folder)
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_told(tmp_path):
    def full(line):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(MemoryError, match=r"Tried to allocate 2.00 GiB.*take a smaller clients.batch"):
        run(SMALL, tmp_path, watch=full)


def test_without_its_checkpoint_a_run_begins_again(stopped, whole):
    (stopped / NAME).unlink()
    run(SMALL, stopped, resume=True)
    assert facts(stopped) == facts(whole)


def test_lines_behind_the_checkpoint_are_dropped_whatever_they_are(stopped, whole):
    with open(stopped / results.NAME, "ab") as file:
        file.write(b'{"kind":"round","round":4}\n{"kind":"rou')
    run(SMALL, stopped, resume=True)
    assert facts(stopped) == facts(whole)


def test_lines_that_the_checkpoint_knows_of_must_be_there(stopped):
    data = (stopped / results.NAME).read_bytes()
    (stopped / results.NAME).write_bytes(data[:-30])
    with pytest.raises(CorruptFileError, match=r"results\.jsonl has \d+ bytes, and \d+ were written"):
        run(SMALL, stopped, resume=True)
    (stopped / results.NAME).write_bytes(data.replace(b'"loss":', b'"lost":', 1))
    with pytest.raises(CorruptFileError, match=r"results\.jsonl is corrupt in line 2"):
        run(SMALL, stopped, resume=True)


LONGER = SMALL.with_settings(["rounds=30", "evaluation.every=10"])


def test_kill_9_at_any_moment_loses_nothing(tmp_path):
    run(LONGER, tmp_path / "whole")
    seed = random.randrange(1000)
    chance = random.Random(seed)
    for stop in (*sorted(chance.sample(range(0, 29), 4)),):
        with child(LONGER, tmp_path / "parts", every=chance.choice([0.0, 0.02])) as one:
            one.until(stop)
            time.sleep(chance.random() / 50)
            one.process.kill()
    run(LONGER, tmp_path / "parts", resume=True)
    assert facts(tmp_path / "parts") == facts(tmp_path / "whole"), f"seed {seed}"


@pytest.mark.parametrize("save_every", [0.0, 1e9])
@pytest.mark.parametrize("what", ["deleted", "moved", "replaced", "its file deleted"])
def test_a_run_whose_folder_is_deleted_stops(what, save_every, tmp_path):
    folder, rounds = tmp_path / "runs" / "one", []

    def watch(line):
        rounds.append(line.get("round", 0))
        if line.get("round") != 2:
            return
        if what == "its file deleted":
            (folder / results.NAME).unlink()
        elif what == "moved":
            folder.rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(folder.parent)
            if what == "replaced":
                folder.mkdir(parents=True)

    with pytest.raises(FileNotFoundError, match=r"one.* was deleted or moved while its run was writing to it"):
        run(SMALL, folder, watch=watch, save_every=save_every)
    assert rounds == [0, 1, 2]
    assert folder.exists() == (what in ("replaced", "its file deleted"))
    if what == "replaced":
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_checkpoint_of_the_last_round(tmp_path, which):
    with child(LONGER, tmp_path, every=1e9) as one:
        one.until(3)
        os.kill(one.process.pid, which)
        assert one.said() == "KeyboardInterrupt: "
    saved, recorded = Checkpoint.load(tmp_path), results.read(tmp_path)
    assert saved.round == len(recorded.rounds) >= 3
    assert saved.lines == (tmp_path / results.NAME).stat().st_size


@pytest.mark.parametrize("room", [100, 9_000])
def test_a_full_disk_is_told_and_loses_nothing(tmp_path, room):
    """A limit on the size of files stands for the disk: first for the lines, then for the checkpoint."""
    pytest.importorskip("resource")
    if room == 9_000:
        run_until(2, LONGER, tmp_path)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with child(LONGER, tmp_path, room=room) as one:
        told = one.said()
    assert "There is no room left for the results" in told
    assert "make room, then pass --resume" in told
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing half-written is left"
    for name, content in kept.items():
        assert (tmp_path / name).read_bytes().startswith(content)
    run(LONGER, tmp_path, resume=True)
    assert len(results.read(tmp_path).rounds) == 30


def test_checkpoints_are_written_by_time_and_cost_little():
    saved = []
    keeper = CheckpointTimer(lambda: (time.sleep(0.01), saved.append(time.monotonic())), every=0.0)
    for _ in range(40):
        keeper.if_due()
        time.sleep(0.001)
    assert 1 <= len(saved) <= 3, "a save of 10 ms is followed by at least 300 ms of training"


def test_a_round_that_the_rule_refuses_keeps_the_model_and_says_why(tmp_path):
    bulyan = ["rule.name=bulyan", "rule.n_byzantine=1", "clients.byzantine=0.4"]
    experiment = SMALL.with_settings(["attack.name=nan", *bulyan, "rounds=2"])
    run(experiment, tmp_path)
    recorded = results.read(tmp_path)
    for line in recorded.rounds:
        assert line["note"].startswith("The round was refused and the model kept: 4 of 10 clients are out")
        assert sorted(line["quarantined"], key=int) == [str(attacker) for attacker in recorded.run["byzantine"]]
        assert line["weights"] is None
        assert line["step"] == 0
        assert list(line["seconds"]) == ["train"], "the server's work was not done, so it took no time"
    assert recorded.end["converged"] is False


def test_a_round_in_which_the_server_has_no_direction_to_trust_is_refused(tmp_path):
    settings = ["rule.name=fltrust", "attack.name=lie", "clients.trusted=1", "server.step_size=100", "rounds=12"]
    recorded = run(SMALL.with_settings(settings), tmp_path)
    assert any("The server's own update is zero" in line.get("note", "") for line in recorded.rounds)
    assert len(recorded.rounds) == 12


def test_optimised_attackers_search_against_the_servers_own_call(tmp_path, monkeypatch):
    from bartizan.lab.training import training_loop as training

    calls = []

    class Watched(training.Aggregator):
        def __call__(self, updates, **given):
            calls.append((len(updates), None if given.get("sizes") is None else sorted(given["sizes"])))
            return super().__call__(updates, **given)

    monkeypatch.setattr(training, "Aggregator", Watched)
    settings = ["attack.name=optimised-ipm", "rounds=1", "rule.name=mca", "sketch.name=exact"]
    recorded = run(SMALL.with_settings(settings), tmp_path)
    tried = [sizes for n, sizes in calls if sizes is not None]
    assert len(tried) > 5
    assert all(sizes == sorted(recorded.run["sizes"]) for sizes in tried)


@pytest.mark.parametrize("rule", ["mean", "fltrust"])
def test_a_model_that_is_not_finite_any_more_ends_the_run(tmp_path, rule):
    experiment = SMALL.with_settings(["server.step_size=1e38", f"rule.name={rule}"])
    run(experiment, tmp_path)
    recorded = results.read(tmp_path)
    assert recorded.end["status"] == "diverged"
    assert recorded.end["converged"] is False
    assert len(recorded.rounds) < 6
    # Killed between its checkpoint and its last line, it ends the same.
    whole = (tmp_path / results.NAME).read_bytes()
    (tmp_path / results.NAME).write_bytes(whole[: Checkpoint.load(tmp_path).lines])
    again = run(experiment, tmp_path, resume=True)
    assert (again.rounds, again.end["status"]) == (recorded.rounds, "diverged")


def test_the_mean_fails_where_krum_survives(whole, tmp_path):
    run(SMALL.with_settings(["rule.name=mean"]), tmp_path)
    assert results.read(tmp_path).end["best"] < results.read(whole).end["best"] - 0.2
    assert results.read(tmp_path).end["converged"] is False


def chosen_by_krum(tmp_path, attack, sends):
    local = ["model.name=cnn", "clients.work=steps", f"clients.sends={sends}", "rounds=1", "rule.name=krum"]
    recorded = run(SMALL.with_settings([f"attack.name={attack}", *local]), tmp_path / f"{attack}-{sends}")
    (line,) = recorded.rounds
    return next(c for c, w in zip(line["clients"], line["weights"], strict=True) if w), line, recorded.run["byzantine"]


def test_attackers_who_falsify_weights_are_far_away_where_those_who_falsify_changes_are_near(tmp_path):
    picked, _, attackers = chosen_by_krum(tmp_path, "foe", "changes")
    assert picked in attackers
    picked, line, attackers = chosen_by_krum(tmp_path, "foe", "weights")
    assert picked not in attackers
    # None of it touches the honest: Krum gives the same change of the model as against attackers who are elsewhere.
    assert chosen_by_krum(tmp_path, "gaussian", "weights")[1]["norm"] == line["norm"]


def sent_of(attack, sends):
    """The mean honest update and an attacker's of the second round, and the model at first and now."""
    from bartizan.lab.training.training_loop import Training

    local = ["model.name=cnn", "clients.work=steps", f"clients.sends={sends}", "sketch.k=64"]
    training = Training(SMALL.with_settings([f"attack.name={attack}", *local]), "cpu")
    training.round(1)
    attackers = sorted(training.population.byzantine)
    _, _, rows, *_ = training._client_updates(training.population.taking_part(2), 2)
    honest = torch.stack([row for client, row in enumerate(rows) if client not in attackers])
    return honest.mean(dim=0), rows[attackers[0]], training.initial, training.server.weights


def test_a_attacker_who_aims_at_the_sketch_aims_at_changes_whatever_is_sent():
    for sends in ("changes", "weights"):
        mean, sent, initial, weights = sent_of("observer", sends)
        against = torch.nn.functional.cosine_similarity(sent - mean, initial - weights, dim=0)
        assert against < -0.8  # against the course, and not along it
        mean, sent, *_ = sent_of("null-space-mirror", sends)
        assert sent.norm() == pytest.approx(float(mean.norm()), rel=1e-3)


def test_without_an_attack_nobody_is_byzantine_and_the_rule_is_none_the_wiser(tmp_path):
    recorded = run(SMALL.with_settings(["attack.name=none", "rule.name=bulyan", "rounds=1"]), tmp_path)
    assert recorded.run["byzantine"] == []
    assert recorded.run["ratio"] == {"count": 0, "data": 0}
    assert recorded.rounds[0]["note"] == "bulyan has n_byzantine=1, not 3: with 10 clients it can take no more."


def test_with_partial_participation_those_asked_differ_from_round_to_round(tmp_path):
    rounds = run(SMALL.with_settings(["clients.participation=0.5"]), tmp_path).rounds
    assert {(len(line["clients"]), len(line["weights"])) for line in rounds} == {(5, 5)}
    assert len({tuple(line["clients"]) for line in rounds}) > 1


@pytest.mark.parametrize("attack", ["label-flip", "backdoor", "distributed-backdoor", "fang-krum", "optimised-ipm"])
def test_other_kinds_of_attack_run(tmp_path, attack):
    run(SMALL.with_settings([f"attack.name={attack}", "rounds=2"]), tmp_path)
    recorded = results.read(tmp_path)
    assert len(recorded.run["byzantine"]) == 3
    assert ("backdoor" in recorded.rounds[-1]) == ("backdoor" in attack)
    assert recorded.rounds[-1]["loss"] > 0


def test_a_backdoor_succeeds_with_the_mean_and_hardly_with_a_robust_rule_and_the_report_says_so(tmp_path):
    """Bright pullovers are taken for coats in 90% with the mean, in 20% with the other rule, at the same accuracy."""
    given = ["attack.name=semantic-backdoor", "attack.boost=3", "attack.target=4", "attack.brightness=100", "rounds=16"]
    given += ["clients.batch=32", "clients.work=steps", "clients.local=4", "clients.step_size=0.02"]
    mean, robust = (
        run(SMALL.with_settings([*given, f"rule.name={rule}"]), tmp_path / rule[:3]).rounds[-1]
        for rule in ("mean", "nnm >> geometric-median")
    )
    assert mean["backdoor"] > 0.6
    assert robust["backdoor"] < 0.4
    assert abs(mean["accuracy"] - robust["accuracy"]) < 0.1
    found = {cell.rule: cell.backdoor[0] for cell in report.content(load_runs(tmp_path)).cells}
    assert found == {"mean": mean["backdoor"], "nnm >> geometric-median": robust["backdoor"]}


def test_a_backdoor_that_no_test_image_shows_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no such image to test with"):
        run(SMALL.with_settings(["attack.name=semantic-backdoor", "attack.brightness=254"]), tmp_path)


@pytest.mark.parametrize(
    ("attack", "rule", "tolerance"),
    [("lie", "krum", 0.5), ("optimised-ipm", "krum", 0.5), ("fang-trim", "mean", 0.0), ("alie-over-time", "mean", 0.0)],
)
def test_attackers_reach_as_far_whether_clients_send_changes_or_weights(attack, rule, tolerance, tmp_path):
    """To the bit where the attack is computed from changes in both cases; nearly where it shifts what is sent."""
    given = [f"attack.name={attack}", f"rule.name={rule}", "rounds=2", "clients.work=steps", "clients.local=2"]
    norms = [
        [line["norm"] for line in run(SMALL.with_settings([*given, f"clients.sends={sends}"]), tmp_path / sends).rounds]
        for sends in ("changes", "weights")
    ]
    assert norms[1] == pytest.approx(norms[0], rel=tolerance, abs=0)


def test_a_coordinatewise_rule_has_no_weights(tmp_path):
    run(SMALL.changed({"rule": {"name": "median"}, "sketch": {"name": "exact"}, "rounds": 2}), tmp_path)
    assert [line["weights"] for line in results.read(tmp_path).rounds] == [None, None]


def test_the_command_runs_skips_and_refuses(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(SMALL.to_toml())
    arguments = ["run", "e.toml", "--set", "rounds=2"]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    folder = Path("runs/experiment") / SMALL.with_settings(["rounds=2"]).slug
    assert "round    2 of 2  accuracy" in shown
    assert shown.endswith(f"Results: {folder}\nbartizan report {folder}\n")
    assert (folder / results.NAME).exists()
    assert cli.main(arguments) == 0
    assert "was finished before" in capsys.readouterr().out
    assert cli.main(["run", "e.toml", "--out", str(folder)]) == 2
    assert "rounds is 2 there and 6 here" in capsys.readouterr().err


def test_importing_the_laboratory_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import bartizan.lab as f, bartizan.lab.data as d; "
    code += "print(f.Experiment().id, len(d.load().train))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [Experiment().id, "10000"]

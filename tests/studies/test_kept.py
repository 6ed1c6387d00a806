"""Kept runs: each once, small, checked line by line, and compared as their folders are."""

from __future__ import annotations

import json

import pytest

from bartizan import records as results
from paper_runs import cells_of, write
from studies.__main__ import main
from studies.paper import compare, comparison_tables
from studies.paper import kept_runs as kept

CELLS = "rule=krum,attack=lie,b=0.3"


@pytest.fixture
def runs(tmp_path):
    """Two seeds of a cell and its base."""
    folder = tmp_path / "runs"
    base, pdr = cells_of(CELLS)
    for seed, (without, projected) in enumerate([(0.61, 0.62), (0.65, 0.64)]):
        write(folder, base, [0.3, without, 0.4], seed=seed, rounds=3, server=8.0, sizes=[25_000, 25_000])
        write(folder, pdr, [0.3, 0.4, projected], seed=seed, rounds=3, server=0.5, sizes=[25_000, 25_000])
    return folder


@pytest.fixture
def file(runs, tmp_path):
    """The file in which they are kept."""
    kept.keep(runs, tmp_path / "kept.jsonl")
    return tmp_path / "kept.jsonl"


def forge(file, **fields):
    """Leave of a file its first line, with other fields and a checksum that fits."""
    line = json.loads(file.read_text().splitlines()[0])
    del line["crc"]
    file.write_bytes(results.encode({**line, **fields}))


def test_kept_runs_are_compared_as_their_folders_are(runs, tmp_path):
    file = tmp_path / "new" / "kept.jsonl"
    kept.keep(runs, file)
    assert compare.compare(file) == compare.compare(runs)
    assert list(file.parent.iterdir()) == [file]


def test_the_weight_on_attackers_and_what_the_projection_moved_are_kept(tmp_path):
    base, pdr = cells_of(CELLS)
    write(tmp_path / "runs", base, [0.5, 0.6], rounds=2, weights=([0.5, 0.25, 0.25], None))
    write(tmp_path / "runs", pdr, [0.5, 0.6], rounds=2, weights=([0.5, 0.5, 0.0], [0.5, 0.25, 0.25]))
    write(tmp_path / "unknown", base, [0.5], seed=1, rounds=1, weights=([0.5, 0.5], None))
    rewritten(tmp_path / "unknown", lambda lines: lines[0].update(byzantine=None))
    for folder in ("runs", "unknown"):
        kept.keep(tmp_path / folder, tmp_path / "kept.jsonl")
    unknown, without, projected = kept.read(tmp_path / "kept.jsonl")
    assert (without.on_attackers, without.moved, unknown.on_attackers) == (0.25, None, None)
    assert (projected.on_attackers, projected.moved) == (0.5, 0.25)
    line = json.loads((tmp_path / "kept.jsonl").read_text().splitlines()[2])
    assert (line["on_attackers"], line["moved"]) == (0.5, 0.25)  # the keys of files already written


def test_keeping_twice_changes_nothing_and_needs_no_order(runs, file, tmp_path):
    before, other = file.read_bytes(), tmp_path / "other.jsonl"
    file.write_bytes(before + before.splitlines(keepends=True)[0])  # a run that stands there twice
    assert kept.keep(runs, file) == kept.KeepResult(runs=4)
    assert file.read_bytes() == before
    for folder in reversed(results.find(runs)):
        kept.keep(folder, other)
    assert other.read_bytes() == before


def test_a_run_that_was_made_again_takes_the_place_of_the_old_one(runs, file):
    base, _ = cells_of(CELLS)
    write(runs, base, [0.7, 0.7, 0.7], seed=1, rounds=3, sizes=[25_000, 25_000])
    assert kept.keep(runs, file) == kept.KeepResult(runs=4, changed=1)
    assert sorted(run.best for run in kept.read(file)) == [0.61, 0.62, 0.64, 0.7]


def test_a_run_on_a_sample_is_another_run_and_never_shares_a_row(file, tmp_path):
    base, _ = cells_of(CELLS)
    sample = tmp_path / "sample"
    write(sample, base, [0.2, 0.2, 0.2], rounds=3, sizes=[100, 100])
    assert kept.keep(sample, file) == kept.KeepResult(runs=5, new=1)
    rows = compare.compare(file).rows
    assert {(len(row.base), len(row.pdr)) for row in rows} == {(2, 2), (1, 0)}


def test_what_is_not_finished_not_the_papers_or_not_whole_is_told_and_not_kept(runs, tmp_path):
    base, pdr = cells_of("rule=mca,attack=foe,b=0.1")
    write(runs, base, [0.3], rounds=2, end=False)
    write(runs, pdr, [0.3], rounds=1, changes=["attack.factor=-5.0"])
    broken = runs / "broken"
    broken.mkdir()
    (broken / results.NAME).write_text("{}\n")
    done = kept.keep(runs, tmp_path / "kept.jsonl")
    assert (done.runs, done.new, done.unfinished, done.others, len(done.unread)) == (4, 4, 1, 1, 1)
    assert "broken" in done.unread[0]


def test_a_line_is_small_and_names_no_folder_of_anybodys_machine(tmp_path):
    base, _ = cells_of(CELLS)
    write(tmp_path / "runs", base, [0.5123] * 100, data=tmp_path)
    file = tmp_path / "kept.jsonl"
    kept.keep(tmp_path / "runs", file)
    (line,) = file.read_text().splitlines()
    assert len(line) < 4000
    assert str(tmp_path) not in line
    assert json.loads(line)["accuracy"][-1] == [100, 0.5123]


def test_the_commands_keep_compare_and_draw(runs, tmp_path, capsys):
    file, drawn = tmp_path / "kept.jsonl", tmp_path / "points.png"
    assert main(["paper", "keep", str(runs), str(file), "--commit", "abc"]) == 0
    assert "4 runs, of which new: 4, changed: 0." in capsys.readouterr().out
    kept.keep(runs, file)
    assert {run.commit for run in kept.read(file)} == {"abc"}, "until another revision is said"
    assert main(["paper", "compare", str(file), "--plot", str(drawn)]) == 0
    assert "| cifar10-0.6, A, rotated(k=4096) |" in capsys.readouterr().out
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert main(["paper", "compare", str(file), "--plot", "points.doc"]) == 2
    assert "ends in .png or .svg, got 'points.doc'" in capsys.readouterr().err


def test_a_configuration_from_before_a_key_was_there_has_its_default(file):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        del line["crc"], line["protocol"], line["first_weights"], line["config"]["clients"]["sends"]
    file.write_bytes(b"".join(map(results.encode, lines)))
    found = compare.compare(file)
    assert [protocol["clients"]["sends"] for protocol in found.protocols.values()] == ["changes"]
    assert "clients.sends=changes" in comparison_tables.notes(found)[0]


ODD = [("seconds", {}), ("config", None), ("best", "0.5"), ("accuracy", [[1]]), ("version", 9), ("colour", 1)]
ODD += [("kind", "run"), ("protocol", "literal")]  # another than its settings say


@pytest.mark.parametrize(("name", "value"), ODD)
def test_a_kept_line_with_a_field_that_can_not_be_is_one_line_and_status_2(file, capsys, name, value):
    forge(file, **{name: value})
    assert main(["paper", "compare", str(file)]) == 2
    told = capsys.readouterr().err
    assert "line 1, is not as expected" in told
    assert len(told.splitlines()) == 1


def test_a_line_of_none_of_the_papers_cells_stays_behind_the_others(runs, file):
    forge(file, config={})
    assert kept.keep(runs, file) == kept.KeepResult(runs=5, new=4)
    assert kept.read(file)[-1].config["data"]["name"] == "fashion-mnist-mini"
    assert compare.compare(file).others == 1


def rewritten(folder, change):
    """The lines of one run, changed and written again with checksums that fit."""
    (path,) = results.find(folder)
    lines = results.read(path).lines()
    change(lines)
    for line in lines:
        line.pop("crc", None)
    (path / results.NAME).write_bytes(b"".join(map(results.encode, lines)))


CHANGES = {
    "config-none": lambda lines: lines[0].update(config=None),
    "weights-of-another-length": lambda lines: lines[1].update(weights=[0.5], clients=[0, 1]),
    "no-status": lambda lines: lines[-1].pop("status"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_run_with_odd_lines_is_named_and_the_others_are_kept_and_compared(runs, tmp_path, change):
    base, _ = cells_of("rule=mca,attack=foe,b=0.1")
    odd = runs / "odd"
    write(odd, base, [0.5], rounds=1)
    rewritten(odd, change)
    done, found = kept.keep(runs, tmp_path / "kept.jsonl"), compare.compare(runs)
    assert done.runs == 4
    assert len(found.rows) == 1
    for (told,) in (done.unread, found.unread):
        assert str(odd) in told
        assert "NoneType' is not iterable in it" not in told

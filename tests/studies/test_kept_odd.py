"""Kept files and runs that are not what keeping wrote: refused on one line, or named while the others go on."""

from __future__ import annotations

import json

import pytest

from bartizan import cli
from bartizan import records as results
from bartizan.studies.paper import compare, kept
from paper_runs import cells_of, write

CELLS = "rule=krum,attack=lie,b=0.3"


@pytest.fixture
def runs(tmp_path):
    """Two seeds of a cell and its base."""
    folder = tmp_path / "runs"
    for cell, seed in ((cell, seed) for cell in cells_of(CELLS) for seed in (0, 1)):
        write(folder, cell, [0.3, 0.62, 0.4], seed=seed, rounds=3)
    return folder


ODD = {
    "seconds": [{}, None, [], {"server": "1", "run": None}],
    "config": [None, [], "krum", {"clients": 3}, {"seed": "0"}],
    "best": ["0.5", True, [1], 10**400],
    "accuracy": [None, 3, [[1]], [[1, "a"]], [3]],
    "rounds": [None, "3"],
    "machine": [None, ["a"]],
    "notes": [None, [3]],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ODD.items() for value in values])
def test_a_kept_line_with_a_field_that_can_not_be_is_one_line_and_status_2(runs, tmp_path, capsys, name, value):
    file = tmp_path / "kept.jsonl"
    kept.keep(runs, file)
    line = json.loads(file.read_text().splitlines()[0])
    del line["crc"]
    file.write_bytes(results.encode({**line, name: value}))
    status = cli.main(["paper", "compare", str(file)])
    told = capsys.readouterr()
    assert status == 2
    assert "line 1, is not as expected" in told.err
    assert len(told.err.splitlines()) == 1


def test_a_line_of_none_of_the_papers_cells_stays_behind_the_others(runs, tmp_path):
    file = tmp_path / "kept.jsonl"
    kept.keep(runs, file)
    line = json.loads(file.read_text().splitlines()[0])
    del line["crc"]
    file.write_bytes(results.encode({**line, "config": {}}))
    assert kept.keep(runs, file) == kept.Outcome(runs=5, new=4)
    assert kept.read(file)[-1].config["data"]["name"] == "fashion-mnist-mini"
    assert compare.compare(file).strangers == 1


def test_a_changed_line_is_to_be_kept_again_not_its_run_deleted(runs, tmp_path):
    file = tmp_path / "kept.jsonl"
    kept.keep(runs, file)
    file.write_text(file.read_text().replace("0.62", "0.92"))
    with pytest.raises(results.CorruptFileError, match="delete the line and keep the run again"):
        kept.read(file)


def rewritten(folder, change):
    """The lines of one run, changed and written again with checksums that fit."""
    (path,) = results.find(folder)
    lines = results.read(path).lines()
    change(lines)
    for line in lines:
        line.pop("crc", None)
    (path / results.NAME).write_bytes(b"".join(map(results.encode, lines)))


CHANGES = {
    "seconds-a-list": lambda lines: lines[1].update(seconds=[1, 2]),
    "config-a-text": lambda lines: lines[0].update(config="krum"),
    "config-none": lambda lines: lines[0].update(config=None),
    "weights-of-another-length": lambda lines: lines[1].update(weights=[0.5], clients=[0, 1]),
    "accuracy-a-text": lambda lines: lines[1].update(accuracy="0.5"),
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


def test_who_lies_may_be_unknown(tmp_path):
    base, _ = cells_of(CELLS)
    write(tmp_path / "runs", base, [0.5], rounds=1, weights=([0.5, 0.5], None))
    rewritten(tmp_path / "runs", lambda lines: lines[0].update(byzantine=None))
    kept.keep(tmp_path / "runs", tmp_path / "kept.jsonl")
    assert [one.on_liars for one in kept.read(tmp_path / "kept.jsonl")] == [None]


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    assert cli.main(["paper", "keep", str(tmp_path), str(tmp_path / "kept.jsonl")]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_stood_there_twice_stands_there_once(runs, tmp_path):
    file = tmp_path / "kept.jsonl"
    kept.keep(runs, file)
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines(keepends=True)[0])
    assert kept.keep(runs, file) == kept.Outcome(runs=4)
    assert file.read_bytes() == whole

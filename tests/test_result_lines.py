"""Lines of results.jsonl whose checksums fit and whose fields do not: file, line and field are named."""

from __future__ import annotations

import json

import pytest

from bartizan import cli, records
from bartizan.records import CorruptFileError, encode
from report_runs import write_run

RUN = {"kind": "run", "version": 1, "id": "a", "config": {"seed": 0}, "clients": [0, 1, 2], "byzantine": [2]}
ROUND = {"kind": "round", "round": 1, "clients": [0, 1, 2], "weights": [0.5, 0.5, 0.0], "quarantined": {"2": "NaN"}}
END = {"kind": "end", "status": "finished", "converged": True, "best": 0.5, "last": 0.5, "seconds": 1.0}


def written(folder, *lines):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / records.NAME).write_bytes(b"".join(map(encode, lines)))
    return folder


def deep(levels):
    return json.loads("[" * levels + "]" * levels)


FORGED = {
    "many threads": (1, RUN | {"threads": 10**9}, "threads must be a whole number from 1 to 1,024, got 1000000000"),
    "no clients": (1, {key: RUN[key] for key in RUN if key != "clients"}, "clients is missing"),
    "a client as number and text": (1, RUN | {"clients": [0, "0", 1, 2]}, "clients names a client twice"),
    "a client that is a list": (1, RUN | {"clients": [[0]]}, r"clients\[0\] must be a text or a whole number"),
    "an unknown attacker": (1, RUN | {"byzantine": [7]}, "byzantine names 7, which is no client"),
    "a deep config": (1, RUN | {"config": {"a": deep(100)}}, "nested more than 32 levels deep"),
    "a negative size": (1, RUN | {"sizes": [1, 1, -1]}, r"sizes\[2\] must be a whole number from 0"),
    "sizes of other clients": (1, RUN | {"sizes": [1]}, "sizes must have 3 entries, got 1"),
    "a split of unequal rows": (
        1,
        RUN | {"split": [[1], [1], [1, 2]]},
        "each list of split must have 1 entries, got 2",
    ),
    "other classes than the split": (1, RUN | {"split": [[1]] * 3, "classes": ["a", "b"]}, "classes must have 1"),
    "a strange client": (2, ROUND | {"clients": [0, 1, 7]}, "clients names 7"),
    "weights of other clients": (2, ROUND | {"weights": [1.0]}, "weights must have 3 entries, got 1"),
    "a weight that is a text": (2, ROUND | {"weights": [1, "x", 0]}, r"weights\[1\] must be a number, got 'x'"),
    "a stage that is a text": (2, ROUND | {"seconds": {"weigh": "x"}}, r"seconds\.weigh must be a number, got 'x'"),
    "a strange quarantined client": (2, ROUND | {"quarantined": {"7": "NaN"}}, "quarantined names '7'"),
    "a second first line": (2, RUN, "must begin with a line of kind 'run' and have no other"),
    "a kind that is a list": (2, {"kind": ["round"]}, "kind must be one of run, round, end"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_field_is_named_with_its_file_and_line(name, tmp_path):
    number, line, message = FORGED[name]
    lines = [RUN, ROUND, END]
    lines[number - 1] = line
    with pytest.raises(CorruptFileError, match=rf"results\.jsonl, line {number}, is not as expected: .*{message}"):
        records.read(written(tmp_path, *lines))


def test_the_report_names_the_forged_run_and_shows_the_others(tmp_path, capsys):
    written(tmp_path / "runs" / "forged", RUN, ROUND | {"weights": [1.0]})
    write_run(tmp_path / "runs" / "sound", rounds=1, clients=4)
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    told = capsys.readouterr()
    assert f"not shown: forged: {tmp_path / 'runs' / 'forged' / records.NAME}, line 2" in told.err
    assert len(told.err) < 1000


@pytest.mark.parametrize(
    "lines",
    [
        [RUN],
        [{"kind": "run", "version": 1, "clients": ["a"]}, {"kind": "round", "round": 1, "clients": ["a"]}],
        [RUN, ROUND, END],
        [RUN | {"clients": [], "byzantine": None}, {"kind": "round", "round": 1, "clients": []}],
        [RUN | {"threads": 1024, "of a later version": {"a": [1]}}, ROUND | {"weights": None}, {"kind": "end"}],
    ],
    ids=len,
)
def test_sound_lines_are_read_as_they_are(lines, tmp_path):
    assert [{**one, "crc": None} for one in records.read(written(tmp_path, *lines)).lines()] == [
        {**one, "crc": None} for one in lines
    ]


def test_a_report_of_more_rounds_and_clients_than_memory_holds_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bartizan.lab.report.load.MAX_CELLS", 2)
    written(tmp_path / "large", RUN, ROUND)
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "has 1 rounds of 3 clients; a report shows up to 2" in capsys.readouterr().err

"""JSON lines of a run: written lines come back, torn ones are reported, changed ones are named."""

import zlib

import numpy as np
import pytest

from bartizan import records as results
from bartizan._util import jsonl
from bartizan.records import CorruptFileError, Writer


def written(folder, rounds=3, end=True):
    with Writer(folder) as lines:
        lines.write("run", version=results.VERSION, id="a", clients=[0, 1])
        for t in range(1, rounds + 1):
            numbers = {"weights": np.array([0.25, 0.75]), "accuracy": np.float32(0.5), "norm": np.inf}
            lines.write("round", round=t, clients=[0, 1], **numbers)
        if end:
            lines.write("end", status="finished")
        return lines.sync()


def test_written_lines_come_back(tmp_path):
    written(tmp_path)
    run = results.read(tmp_path)
    assert run.run["clients"] == [0, 1]
    assert [line["round"] for line in run.rounds] == [1, 2, 3]
    assert run.rounds[0]["weights"] == [0.25, 0.75]
    assert run.rounds[0]["norm"] is None, "JSON has no infinity"
    assert run.end["status"] == "finished"
    assert not run.torn


def test_a_torn_last_line_is_reported_and_the_rest_is_read(tmp_path):
    written(tmp_path, end=False)
    path = tmp_path / results.NAME
    path.write_bytes(path.read_bytes()[:-9])
    run = results.read(tmp_path)
    assert len(run.rounds) == 2
    assert run.torn.startswith('\'{"kind":"round"')


def test_any_changed_byte_is_found_and_its_line_is_named(tmp_path):
    written(tmp_path, rounds=1)
    path = tmp_path / results.NAME
    good = path.read_bytes()
    for i in range(len(good) - 1):
        path.write_bytes(good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :])
        with pytest.raises(CorruptFileError, match=r"results\.jsonl is corrupt in line \d"):
            results.read(tmp_path)


@pytest.mark.parametrize("line", [b'{"kind":"tale"}', b"[" * 9999 + b"}", b"}"])
def test_a_line_of_another_form_is_named_even_if_its_checksum_fits(tmp_path, line):
    written(tmp_path, rounds=1)
    with open(tmp_path / results.NAME, "ab") as file:
        file.write(line[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(line))
    with pytest.raises(CorruptFileError, match=r"results\.jsonl, line 4, is not as expected"):
        results.read(tmp_path)


def test_a_writer_continues_after_the_bytes_it_is_given(tmp_path):
    keep = written(tmp_path, rounds=2, end=False)
    whole = (tmp_path / results.NAME).read_bytes()
    with open(tmp_path / results.NAME, "ab") as file:
        file.write(b'{"kind":"rou')
    with Writer(tmp_path, keep=keep) as lines:
        lines.write("end", status="finished")
    assert (tmp_path / results.NAME).read_bytes() == whole + results.encode({"kind": "end", "status": "finished"})


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    with Writer(tmp_path) as lines:
        lines.write("run", version=results.VERSION)
        kept = lines.path.read_bytes()

        class Full:
            def __init__(self, file):
                self.file = file

            def __getattr__(self, name):
                return getattr(self.file, name)

            def write(self, line):
                self.file.write(bytes(line[:7]))
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(lines, "_file", Full(lines._file))
        with pytest.raises(OSError, match="No space"):
            lines.write("round", round=1)
    assert lines.path.read_bytes() == kept


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ([], "holds no complete line"),
        ([("round", {"round": 1})], "line 1, .* must begin with a line of kind 'run'"),
        ([("run", {"version": 99})], "version must be 1, got 99"),
        ([("run", {"version": 1, "clients": [0]}), ("round", {"round": 2, "clients": [0]})], "numbered from 1"),
    ],
)
def test_a_file_that_is_no_run_is_refused(tmp_path, kinds, message):
    with Writer(tmp_path) as lines:
        for kind, fields in kinds:
            lines.write(kind, **fields)
    with pytest.raises(CorruptFileError, match=message):
        results.read(tmp_path)


def test_lines_without_a_checksum_are_read_only_where_none_is_required(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + jsonl.encode({"a": 2}) + b'{"a": 3')
    found = jsonl.read(path, lambda row: row["a"], advice="Measure again.", checksum_required=False)
    assert (found.rows, found.torn) == ([1, 2], "'{\"a\": 3'")
    with jsonl.Appender(path, found.size) as lines:
        lines.append({"a": np.inf}, allow_nan=True)
    assert jsonl.read(path, lambda row: row["a"], advice="", checksum_required=False).rows == [1, 2, np.inf]
    with pytest.raises(CorruptFileError, match=r"rows\.jsonl is corrupt in line 1: .* Measure again\."):
        jsonl.read(path, dict, advice="Measure again.")


def test_the_last_line_of_a_file_that_is_written_whole_needs_no_newline_and_a_changed_one_is_found(tmp_path):
    path = tmp_path / "rows.jsonl"
    jsonl.rewrite(path, [{"a": 1}, {"a": 2}])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert [row["a"] for row in jsonl.read(path, dict, advice="", appended=False).rows] == [1, 2]
    path.write_bytes(path.read_bytes().replace(b'"a":1', b'"a":7'))
    with pytest.raises(CorruptFileError, match="corrupt in line 1"):
        jsonl.read(path, dict, advice="", checksum_required=False)

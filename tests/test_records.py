"""Lines of a run: what was written comes back, what was torn is told, what was changed is named."""

import zlib

import numpy as np
import pytest

from bartizan import records as results
from bartizan.records import CorruptFileError, Writer


def written(folder, rounds=3, end=True):
    with Writer(folder) as lines:
        lines.write("run", version=results.VERSION, id="a", clients=[0, 1])
        for t in range(1, rounds + 1):
            lines.write("round", round=t, weights=np.array([0.25, 0.75]), accuracy=np.float32(0.5), norm=np.inf)
        if end:
            lines.write("end", status="finished")
        return lines.settle()


def test_what_was_written_comes_back(tmp_path):
    written(tmp_path)
    run = results.read(tmp_path)
    assert run.run["clients"] == [0, 1]
    assert [line["round"] for line in run.rounds] == [1, 2, 3]
    assert run.rounds[0]["weights"] == [0.25, 0.75]
    assert run.rounds[0]["norm"] is None, "JSON has no infinity"
    assert run.end["status"] == "finished"
    assert not run.torn


def test_a_torn_last_line_is_told_and_the_rest_is_read(tmp_path):
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
def test_a_line_that_no_run_writes_is_named_whatever_its_checksum(tmp_path, line):
    written(tmp_path, rounds=1)
    with open(tmp_path / results.NAME, "ab") as file:
        file.write(line[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(line))
    with pytest.raises(CorruptFileError, match=r"results\.jsonl has a line 4 that no run writes"):
        results.read(tmp_path)


def test_a_writer_goes_on_where_it_was_told_to(tmp_path):
    keep = written(tmp_path, rounds=2, end=False)
    whole = (tmp_path / results.NAME).read_bytes()
    with open(tmp_path / results.NAME, "ab") as file:
        file.write(b'{"kind":"rou')
    with Writer(tmp_path, keep=keep) as lines:
        lines.write("end", status="finished")
    assert (tmp_path / results.NAME).read_bytes() == whole + results.encoded({"kind": "end", "status": "finished"})


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
        ([], "holds no whole line"),
        ([("round", {"round": 1})], "must begin with a line of kind 'run'"),
        ([("run", {"version": 99})], "is of version 99"),
        ([("run", {"version": 1}), ("round", {"round": 2})], "numbered from 1"),
    ],
)
def test_a_file_that_is_no_run_is_refused(tmp_path, kinds, message):
    with Writer(tmp_path) as lines:
        for kind, fields in kinds:
            lines.write(kind, **fields)
    with pytest.raises(CorruptFileError, match=message):
        results.read(tmp_path)

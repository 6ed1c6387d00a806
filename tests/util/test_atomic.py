"""Files appear whole, and what killed writers leave is removed by the next: but nothing of a writer that is alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bartizan._util.atomic import atomic_file, write_whole
from bartizan.updates.files import create_update

LINGERS = """
import sys
from pathlib import Path
import numpy as np
from bartizan._util.atomic import write_whole
from bartizan.updates.files import create_update

def linger(file=None):
    if file is not None:
        file.write(b"half")
        file.flush()
    print("writing", flush=True)
    sys.stdin.read()

path = Path(sys.argv[2])
if sys.argv[1] == "write_whole":
    write_whole(path, linger)
else:
    with create_update(path, np.zeros(1000)) as out:
        out[:] = 1
        linger()
"""


def start(by: str, path: Path) -> subprocess.Popen[str]:
    """A process in the middle of writing."""
    command = [sys.executable, "-c", LINGERS, by, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    return process


def hidden(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir() if one.name.endswith(".part")}


def finish(by: str, path: Path) -> None:
    if by == "write_whole":
        write_whole(path, b"new")
    else:
        with create_update(path, np.zeros(1000)):
            pass


@pytest.mark.parametrize("by", ["write_whole", "create_update"])
def test_what_kill_9_leaves_is_removed_by_the_next_writer_of_the_same_file_alone(by, tmp_path):
    path, other = tmp_path / "next.npy", tmp_path / "other.npy"
    live = start(by, path)
    alive = hidden(tmp_path)
    killed = start(by, path)
    left = hidden(tmp_path) - alive
    try:
        assert len(alive) == len(left) == 1
        killed.send_signal(signal.SIGKILL)
        killed.wait(60)
        finish(by, other)  # another file's writer touches nothing
        assert hidden(tmp_path) == alive | left
        finish(by, path)
        assert hidden(tmp_path) == alive
        before = path.read_bytes()
        live.communicate(timeout=60)
        assert live.returncode == 0
        assert path.read_bytes() != before
        assert hidden(tmp_path) == set()
    finally:
        for process in (live, killed):
            process.kill()
            process.communicate()


def test_a_writer_of_the_same_process_is_alive_too(tmp_path):
    path = tmp_path / "results.json"
    with atomic_file(path) as file:
        write_whole(path, b"first")
        file.write(b"second")
    assert path.read_bytes() == b"second"
    assert hidden(tmp_path) == set()


def test_what_is_no_file_is_neither_opened_nor_waited_for_nor_followed(tmp_path):
    path, elsewhere = tmp_path / "next.npy", tmp_path / "kept"
    elsewhere.write_bytes(b"kept")
    os.mkfifo(tmp_path / f".next.npy.{'0' * 16}.part")
    (tmp_path / f".next.npy.{'1' * 16}.part").symlink_to(elsewhere)
    (tmp_path / f".next.npy.{'2' * 16}.part").mkdir()
    (tmp_path / f".next.npy.{'3' * 16}.partly").write_bytes(b"")
    (tmp_path / ".next.npy.notes.part").write_bytes(b"")
    write_whole(path, b"new")
    assert elsewhere.read_bytes() == b"kept"
    assert hidden(tmp_path) == {*(f".next.npy.{str(n) * 16}.part" for n in range(3)), ".next.npy.notes.part"}
    assert (tmp_path / f".next.npy.{'3' * 16}.partly").exists()

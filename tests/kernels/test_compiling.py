"""A first call compiles, and whoever waits is told."""

from __future__ import annotations

import io
import logging
import os
import pty
import subprocess
import sys

import numba
import pytest

import bartizan.kernels.cpu  # noqa: F401 (from now on it is told)
from bartizan.kernels.compiling import told

CODE = (
    "import logging, sys; logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
    "import numpy as np, bartizan as bz\n"
    "bz.aggregate(np.arange(90, dtype=np.float32).reshape(9, 10), bz.Mean())\n"
)


def run(folder, stderr) -> str:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, stdout=subprocess.PIPE, stderr=stderr, check=True
    )
    return done.stdout.decode()


def test_a_terminal_shows_it_once_and_never_again(tmp_path):
    terminal, ours = pty.openpty()
    shown = []
    for _ in range(2):
        log = run(tmp_path, ours)
        os.write(ours, b"|")
        text = b""
        while not text.endswith(b"|"):
            text += os.read(terminal, 4096)
        shown.append(text.decode())
        assert "compiling" not in log
    assert "bartizan: compiling dot part (once on this machine, then cached)" in shown[0]
    assert "compiling" not in shown[1]


class OnlyWrites:
    """What some servers put in the place of sys.stderr."""

    def write(self, text: str) -> None: ...


def test_a_stderr_that_is_none_stops_no_kernel(monkeypatch, caplog):
    closed = io.StringIO()
    closed.close()
    caplog.set_level(logging.INFO, "bartizan")
    for stderr in (None, OnlyWrites(), closed):
        monkeypatch.setattr(sys, "stderr", stderr)
        with told("a kernel"):
            pass
    assert len(caplog.records) == 3


def test_kernels_of_others_are_compiled_as_ever():
    """Also one that belongs to no module."""
    made: dict = {}
    exec("def plus_one(x): return x + 1", made)
    assert numba.njit(made["plus_one"])(1) == 2


@pytest.mark.slow
def test_elsewhere_the_log_has_it(tmp_path):
    log = run(tmp_path, subprocess.DEVNULL)
    assert f"{logging.getLevelName(logging.INFO)}:bartizan:bartizan: compiling" in log

"""A first call compiles, and whoever waits is told."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys

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


def test_elsewhere_the_log_has_it(tmp_path):
    log = run(tmp_path, subprocess.DEVNULL)
    assert f"{logging.getLevelName(logging.INFO)}:bartizan:bartizan: compiling" in log

"""A first call compiles; it is reported and timed by itself."""

from __future__ import annotations

import io
import logging
import os
import pty
import subprocess
import sys
import time

import numba
import numpy as np
import pytest

import bartizan as bz
import bartizan.kernels.cpu
from bartizan._util.stopwatch import Stopwatch, compile_seconds
from bartizan.kernels import compiling
from bartizan.kernels.compiling import reported
from bartizan.warmup import warm_up
from containers import streamed

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
    assert "bartizan: compiling sum part (once on this machine, then cached)" in shown[0]
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
        with reported("a kernel"):
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
    assert log.count(compiling.LONG) <= 1  # a fast machine compiles them before it is due


def test_a_program_without_a_terminal_warns_once_after_a_while(monkeypatch, caplog):
    monkeypatch.setattr(compiling, "_reported", False)
    for patience, warnings in ((1e9, 0), (-1.0, 1), (-1.0, 1)):
        monkeypatch.setattr(compiling, "REPORT_AFTER_S", patience)
        with reported("a kernel"), reported("what it calls"):
            pass
        assert [record.getMessage() for record in caplog.records].count(compiling.LONG) == warnings


def test_compiling_is_a_stage_of_its_own():
    watch = Stopwatch()
    with reported("a kernel"), reported("what it calls"):
        time.sleep(0.01)
    watch.lap("sketch")
    watch.lap("weigh")
    assert list(watch.laps) == ["sketch", "compile", "weigh"]
    assert watch.laps["compile"] >= 0.01
    assert watch.laps["sketch"] >= 0


def test_after_the_warm_up_usual_calls_compile_nothing():
    warm_up()
    before, x = compile_seconds(), np.random.default_rng(0).normal(size=(20, 300))
    for dtype in (np.float32, np.float64):
        for sketch in (bz.Exact(), bz.Rotated()):
            for rule in (bz.Krum(3), bz.GeometricMedian(), bz.MCA(), bz.Mean(), bz.NNM(3) >> bz.GeometricMedian()):
                assert "compile" not in bz.aggregate(x.astype(dtype), rule, sketch=sketch).seconds
                streamed(bz.Aggregator(rule, sketch), x.astype(dtype))
        for rule in (bz.Median(), bz.TrimmedMean(3), bz.MeaMed(3), bz.NNM(3) >> bz.Median(), bz.Bulyan(3, trim=True)):
            for sizes in (None, np.arange(1, 21)):
                assert "compile" not in bz.aggregate(x.astype(dtype), rule, sizes=sizes).seconds
    assert compile_seconds() == before

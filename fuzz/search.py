"""Sources of cases: random bytes and mutations, and coverage-guided search."""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzz.draw import Draw
from fuzz.monitor import Monitor
from fuzz.mutate import mutated_bytes
from fuzz.surfaces import Surface


def cases(surface: Surface, seed: int) -> Iterator[bytes]:
    """Yield the seeds, then random bytes and mutated seeds in turn, without end."""
    rng = random.Random(seed)
    yield from surface.seeds
    while True:
        yield rng.randbytes(rng.randint(1, min(surface.length, 400)))
        yield mutated_bytes(rng.choice(surface.seeds) + rng.randbytes(rng.choice((0, 0, 20))), Draw(rng.randbytes(24)))


def until(seconds: float, tick: Callable[[], None]) -> Callable[[], bool]:
    """Return a function that says whether the time is over; it calls `tick` once a second and at the end."""
    end, next_tick = time.monotonic() + seconds, 0.0

    def over() -> bool:
        nonlocal next_tick
        now = time.monotonic()
        if now > min(next_tick, end):
            tick()
            next_tick = now + 1
        return now > end

    return over


def at_random(monitor: Monitor, seconds: float, seed: int, tick: Callable[[], None]) -> None:
    """Run random cases until the time is over."""
    over = until(seconds, tick)
    for data in cases(monitor.surface, seed):
        monitor.run(data)
        if over():
            break


def instrumented(modules: tuple[str, ...]) -> Any:
    """Return Atheris after importing these modules under its coverage."""
    import atheris

    with atheris.instrument_imports(include=list(modules), enable_loader_override=False):
        for module in modules:
            __import__(module)
    return atheris


def guided(atheris: Any, monitor: Monitor, seconds: float, seed: int, tick: Callable[[], None]) -> None:
    """Let libFuzzer search for cases that reach new code; it ends the process, so this never returns."""
    over = until(seconds, tick)
    corpus = Path(tempfile.mkdtemp())
    for n, data in enumerate(monitor.surface.seeds):
        (corpus / str(n)).write_bytes(data)

    def run_one(data: bytes) -> None:
        monitor.run(data)
        if over():
            sys.stdout.flush()
            os._exit(0)

    # The monitor handles failures, time and memory: libFuzzer would stop at the first failure.
    flags = [f"-seed={seed}", f"-max_len={monitor.surface.length}", "-timeout=0", "-rss_limit_mb=0", "-detect_leaks=0"]
    flags += ["-handle_xfsz=0"]  # a surface limits the size of files
    flags += [f"-artifact_prefix={corpus}/"]  # it writes slow cases down, else into the current folder
    atheris.Setup([sys.argv[0], *flags, "-verbosity=0", str(corpus)], run_one)
    atheris.Fuzz()

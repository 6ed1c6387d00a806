"""Where cases come from: drawn at random and by mutation, or steered by what of the library they reach."""

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
from fuzz.surface import ACCEPTED, Surface
from fuzz.warp import mutated
from fuzz.watch import Watch


def cases(surface: Surface, seed: int) -> Iterator[bytes]:
    """Random bytes, and seeds with a few of theirs changed, in turn, without end."""
    rng = random.Random(seed)
    yield from surface.seeds
    while True:
        yield rng.randbytes(rng.randint(1, min(surface.length, 400)))
        yield mutated(rng.choice(surface.seeds) + rng.randbytes(rng.choice((0, 0, 20))), Draw(rng.randbytes(24)))


def until(seconds: float, tick: Callable[[], None]) -> Callable[[], bool]:
    """Asked after every case whether the time is over; ticks once a second, and then for the last time."""
    end, next_tick = time.monotonic() + seconds, 0.0

    def over() -> bool:
        nonlocal next_tick
        now = time.monotonic()
        if now > min(next_tick, end):
            tick()
            next_tick = now + 1
        return now > end

    return over


def at_random(watch: Watch, seconds: float, seed: int, tick: Callable[[], None]) -> None:
    """Run cases until the time is over."""
    over = until(seconds, tick)
    for data in cases(watch.surface, seed):
        watch.run(data)
        if over():
            break


def stateful(watch: Watch, seconds: float, seed: int, tick: Callable[[], None]) -> None:
    """Let Hypothesis run the state machine of `Round`; what it finds it makes small by itself."""
    import hypothesis
    from hypothesis.stateful import run_state_machine_as_test

    from fuzz.machine import RoundMachine

    few = hypothesis.settings(
        max_examples=40,
        stateful_step_count=20,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seed += 1

        @hypothesis.seed(seed)
        class Machine(RoundMachine):
            pass

        watch.batch(lambda machine=Machine: run_state_machine_as_test(machine, settings=few), f"seed {seed}".encode())
        watch.outcomes[ACCEPTED] += Machine.runs
        watch.cases += Machine.runs
        tick()


def instrumented(modules: tuple[str, ...]) -> Any:
    """Atheris, with these modules imported so that it sees which of their branches a case takes."""
    import atheris

    with atheris.instrument_imports(include=list(modules), enable_loader_override=False):
        for module in modules:
            __import__(module)
    return atheris


def guided(atheris: Any, watch: Watch, seconds: float, seed: int, tick: Callable[[], None]) -> None:
    """Let libFuzzer look for cases that reach something new; never returns, as libFuzzer ends the process."""
    over = until(seconds, tick)
    known = Path(tempfile.mkdtemp())
    for n, one in enumerate(watch.surface.seeds):
        (known / str(n)).write_bytes(one)

    def one_input(data: bytes) -> None:
        watch.run(data)
        if over():
            sys.stdout.flush()
            os._exit(0)

    # Failures, time and memory are the watch's business: libFuzzer would stop at the first.
    flags = [f"-seed={seed}", f"-max_len={watch.surface.length}", "-timeout=0", "-rss_limit_mb=0", "-detect_leaks=0"]
    atheris.Setup([sys.argv[0], *flags, "-verbosity=0", str(known)], one_input)
    atheris.Fuzz()

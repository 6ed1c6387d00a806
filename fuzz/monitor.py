"""Run cases one by one with limits on time and memory, and keep one example of each kind of failure."""

from __future__ import annotations

import resource
import signal
import sys
import time
import traceback
import tracemalloc
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz.surfaces import ACCEPTED, COMPARED, HOME, REFUSED, RefusedError, Surface, WrongError

ROOT = f"{Path(__file__).parents[1]}/"
TIME_LIMIT = 10.0
"""Seconds that one case may take."""
MEMORY_LIMIT = 2**30
"""Bytes that a process may allocate beyond what it has after warming up."""
TRACED = 64
"""One case in this many is run with every allocation counted."""
MAX_FAILURES = 20
"""Kinds of failures that are kept with their bytes."""


class HangError(BaseException):
    """A case did not end in time; no `except Exception` catches this."""


@dataclass
class Monitor:
    """Counts and failures of the cases of one surface."""

    surface: Surface
    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    crashes: int = 0
    wrong: int = 0
    slowest: float = 0.0
    slowest_case: bytes = b""
    largest_peak: int = 0
    begun_at: int = 0

    def warm(self) -> None:
        """Compile and import what the cases need, then limit the memory of the process."""
        self.surface.warm()
        for seed in self.surface.seeds:
            with suppress(Exception):
                self.surface.case(seed)
        self.begun_at = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with suppress(OSError, ValueError):
            limit = _address_space() + MEMORY_LIMIT
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def run(self, data: bytes) -> bool:
        """Run one case and return whether it passed."""
        self.cases += 1
        traced = self.cases % TRACED == 0
        if traced:
            tracemalloc.start()
        begin = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT)
        passed = True
        try:
            outcome = self.surface.case(data)
            self.outcomes[ACCEPTED] += 1
            self.outcomes[COMPARED] += outcome == COMPARED
        except RefusedError:
            self.outcomes[REFUSED] += 1
        except (Exception, HangError) as error:
            passed = self._failed(error, data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.perf_counter() - begin
        if traced:
            self.largest_peak = max(self.largest_peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        elif seconds > self.slowest:
            self.slowest, self.slowest_case = seconds, data
        return passed

    def _failed(self, error: BaseException, data: bytes) -> bool:
        at = traceback.extract_tb(error.__traceback__)
        ours = next((frame for frame in reversed(at) if frame.filename.startswith(HOME)), at[-1])
        place = f"{ours.filename.removeprefix(ROOT).removeprefix('src/')}:{ours.lineno}"
        if isinstance(error, WrongError):
            self.wrong += 1
            mark = f"wrong: {str(error)[:40]}"
        else:
            self.crashes += 1
            mark = f"crash: {type(error).__name__} at {place}"
        known = self.failures.get(mark)
        if known is None and len(self.failures) >= MAX_FAILURES:
            return False
        if known is None or len(data) < len(known["data"]) // 2:
            self.failures[mark] = {"said": str(error)[:500], "at": place, "data": data.hex()}
        return False

    def report(self) -> dict[str, Any]:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.begun_at
        return {
            "cases": self.cases,
            "outcomes": dict(self.outcomes),
            "crashes": self.crashes,
            "wrong": self.wrong,
            "slowest_seconds": round(self.slowest, 4),
            "slowest_case": self.slowest_case[:400].hex(),
            "largest_peak_bytes": self.largest_peak,
            "process_grew_bytes": max(0, grown) * 1024,
            "failures": self.failures,
        }


def raise_on_alarm() -> None:
    """Let a case that runs out of time raise `HangError`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError(f"still running after {TIME_LIMIT:.0f} s")

    signal.signal(signal.SIGALRM, stop)


def _address_space() -> int:
    """Return the bytes of address space of this process."""
    if sys.platform != "linux":
        raise OSError("known on Linux only")
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()

"""Runs cases one by one, with limits on time and memory, and keeps the failures, each kind once."""

from __future__ import annotations

import resource
import signal
import sys
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz.surface import ACCEPTED, COMPARED, HOME, REFUSED, RefusedError, Surface, WrongError

ROOT = f"{Path(__file__).parents[1]}/"
PATIENCE = 10.0
"""Seconds that one case may take."""
ROOM = 2**30
"""Bytes that a process may take beyond what it has when it is warm."""
LOOKED_AT = 64
"""One case in so many is run again with every allocation counted."""
KEPT = 20
"""Failures of different kinds that are kept with their bytes."""


class HangError(BaseException):
    """A case that did not end in time; no `except Exception` hides it."""


@dataclass
class Watch:
    """What became of the cases of one surface."""

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
        """Compile and import what the cases need, then hold the process to its size."""
        self.surface.warm()
        for seed in self.surface.seeds:
            with suppress(Exception):
                self.surface.case(seed)
        self.begun_at = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_virtual() + ROOM, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def run(self, data: bytes) -> bool:
        """One case; whether it was as it should be."""
        self.cases += 1
        counted = self.cases % LOOKED_AT == 0
        if counted:
            tracemalloc.start()
        begin = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        try:
            told = self.surface.case(data)
            self.outcomes[ACCEPTED] += 1
            self.outcomes[COMPARED] += told == COMPARED
            fine = True
        except RefusedError:
            self.outcomes[REFUSED] += 1
            fine = True
        except WrongError as error:
            fine = self._failed("wrong", error, data)
        except (Exception, HangError) as error:
            fine = self._failed("crash", error, data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        took = time.perf_counter() - begin
        if counted:
            self.largest_peak = max(self.largest_peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        elif took > self.slowest:
            self.slowest, self.slowest_case = took, data
        return fine

    def batch(self, run: Callable[[], None], name: bytes) -> None:
        """Many cases that somebody else draws and counts; one that fails ends the batch."""
        try:
            run()
        except WrongError as error:
            self._failed("wrong", error, name)
        except Exception as error:
            self._failed("crash", error, name)

    def _failed(self, kind: str, error: BaseException, data: bytes) -> bool:
        if kind == "wrong":
            self.wrong += 1
        else:
            self.crashes += 1
        at = traceback.extract_tb(error.__traceback__)
        ours = next((one for one in reversed(at) if one.filename.startswith(HOME)), at[-1])
        place = f"{ours.filename.removeprefix(ROOT).removeprefix('src/')}:{ours.lineno}"
        mark = f"{kind}: {type(error).__name__} at {place}" if kind == "crash" else f"wrong: {str(error)[:40]}"
        known = self.failures.get(mark)
        if known is None and len(self.failures) >= KEPT:
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


def listen() -> None:
    """Let the alarm of a case that hangs be heard."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError(f"still at it after {PATIENCE:.0f} s")

    signal.signal(signal.SIGALRM, stop)


def _virtual() -> int:
    """Bytes of addresses that this process has."""
    if sys.platform != "linux":
        raise OSError("only Linux tells")
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()

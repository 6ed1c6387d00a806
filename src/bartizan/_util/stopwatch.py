"""Measure the stages of a call; the compilation of kernels is a stage of its own."""

from __future__ import annotations

import time

_compiled = 0.0


def add_compile_time(seconds: float) -> None:
    """Count seconds of compiling in this process: every running stopwatch takes them out of its stage."""
    global _compiled
    _compiled += seconds


def compile_seconds() -> float:
    """Return how many seconds this process has compiled kernels so far."""
    return _compiled


class Stopwatch:
    """A stopwatch of consecutive stages; `laps` holds seconds by name, with "compile" where kernels were compiled."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last, self.compiled = time.perf_counter(), _compiled

    def lap(self, name: str) -> None:
        """Add the time since the last lap to this stage."""
        now, compiled = time.perf_counter(), _compiled
        spent, compiling = now - self.last, compiled - self.compiled
        self.laps[name] = self.laps.get(name, 0.0) + max(0.0, spent - compiling)
        if compiling:
            self.laps["compile"] = self.laps.get("compile", 0.0) + compiling
        self.last, self.compiled = now, compiled

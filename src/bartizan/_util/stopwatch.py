"""Measure the stages of a round."""

from __future__ import annotations

import time


class Stopwatch:
    """Records the time since the last lap under a name; laps of the same name are summed."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self.last = self.laps.get(name, 0.0) + now - self.last, now

"""Where the time of a round went."""

from __future__ import annotations

import time


class Stopwatch:
    """Names the time since the last lap; of laps of one name, the sum."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self.last = self.laps.get(name, 0.0) + now - self.last, now

"""A line on the terminal for what takes longer than two seconds."""

from __future__ import annotations

import sys
import time


class Progress:
    """Counts up to `total`; shown from the third second on, where somebody is looking."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self._begun = self._shown = time.monotonic()

    def add(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._begun > 2 and now - self._shown > 0.2:
            self._shown = now
            left = (now - self._begun) * (self.total / max(self.done, 1) - 1)
            line = f"{self.what}: {self.done:,} of {self.total:,}, {left:.0f} s left"
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *gone: object) -> None:
        if self._shown > self._begun:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

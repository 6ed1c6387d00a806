"""How far an experiment is: a line that is rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time


class Course:
    """Counts the cells of one experiment."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.done = name, total, 0
        self._live = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._shown = self._begun if not self._live else 0.0
        self._measured = 0

    def begin(self, what: str) -> None:
        """Say what is being measured."""
        now = time.monotonic()
        if now - self._shown < (0.2 if self._live else 10):
            return
        self._shown = now
        left = "" if not self._measured else f", {self._left(now):.0f} s left"
        line = f"{self.name}: {self.done} of {self.total}{left}, {what}"
        print(
            f"\r\033[K{line[:110]}" if self._live else line, end="" if self._live else "\n", file=sys.stderr, flush=True
        )

    def found(self) -> None:
        """A cell that an earlier run has finished."""
        self.done += 1

    def finished(self) -> None:
        self.done += 1
        self._measured += 1

    def close(self) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _left(self, now: float) -> float:
        return (now - self._begun) / self._measured * (self.total - self.done)

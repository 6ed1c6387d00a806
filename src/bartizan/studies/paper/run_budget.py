"""How much may be run: a time, a number of rounds, or both."""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import dataclass, field

UNITS = {"s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """A time after which nothing new begins, and rounds that all cells are cut to.

    >>> parse("2h,rounds=30")
    Budget(seconds=7200.0, rounds=30)
    """

    seconds: float | None = None
    rounds: int | None = None
    started: float = field(default_factory=time.monotonic, repr=False, compare=False)

    @property
    def spent(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.started >= self.seconds


def parse(text: str) -> Budget:
    """A budget as people write it: 90s, 20min, 2h, rounds=30, or a time and rounds with a comma between."""
    seconds: float | None = None
    rounds: int | None = None
    for part in (part.strip() for part in text.split(",")):
        if of := re.fullmatch(r"rounds=([1-9]\d{0,5})", part):
            rounds = int(of[1])
        elif of := re.fullmatch(r"(\d+\.?\d*) *(s|min|h)", part):
            seconds = float(of[1]) * UNITS[of[2]]
        else:
            raise argparse.ArgumentTypeError(
                f"wanted a time such as 90s, 20min or 2h, or rounds=30, or both with a comma between; got {part!r}"
            )
    return Budget(seconds, rounds)

"""Count the files and calls of the package that one aggregation crosses: `python tools/calls.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import bartizan as bz

HOME = str(Path(bz.__file__).parent)
M, P = 20, 5000


def crossed(call: Callable[[], object]) -> tuple[int, int]:
    """Return how many files of the package a call executes, and how many Python calls it makes in them."""
    files: set[str] = set()
    calls = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(HOME):
            files.add(name)
            calls += 1

    call()  # imports and compiles
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(files), calls


def main() -> None:
    updates = np.random.default_rng(0).normal(size=(M, P)).astype(np.float32)

    def a_round() -> None:
        with bz.Aggregator(bz.Krum(4), "rotated").round(1) as opened:
            for client, update in enumerate(updates):
                opened.add(update, client)
            opened.close()

    cases: dict[str, Callable[[], object]] = {
        "exact Krum": lambda: bz.aggregate(updates, bz.Krum(4), sketch="exact", seed=1),
        "projected geometric median": lambda: bz.aggregate(updates, bz.GeometricMedian(), sketch="rotated", seed=1),
        "a round of 20 clients": a_round,
    }
    for name, call in cases.items():
        files, calls = crossed(call)
        print(f"{name:<28} {files:>4} files {calls:>6,} calls")


if __name__ == "__main__":
    main()

"""Count the files and calls of the package that one aggregation crosses; with --list, name each function."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import bartizan as bz

HOME = str(Path(bz.__file__).parent)
M, P = 20, 5000


def crossed(call: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Return how often one call enters each function of the package, by file and name."""
    entered: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HOME):
            entered[code.co_filename.removeprefix(HOME + "/"), code.co_qualname] += 1

    call()  # imports and compiles
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


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
        entered = crossed(call)
        print(f"{name:<28} {len({file for file, _ in entered}):>4} files {entered.total():>6,} calls")
        if "--list" in sys.argv:
            print(*(f"{count:>8}  {file}  {function}" for (file, function), count in sorted(entered.items())), sep="\n")


if __name__ == "__main__":
    main()

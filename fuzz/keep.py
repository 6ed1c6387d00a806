"""Failures of a campaign made small, to be written as named tests: `python -m fuzz.keep RESULTS.json`.

Bytes are choices among what the campaign has today, and mean something else tomorrow. So no bytes are kept for CI: each
failure becomes a case of tests/test_found.py that says what was sent.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzz import watch
from fuzz.draw import Draw
from fuzz.surface import Surface
from fuzz.table import made
from fuzz.watch import Watch, listen


def shrunk(fails: Callable[[bytes], bool], data: bytes) -> bytes:
    """Shorter and plainer bytes that fail still: parts are cut out, then bytes become 0."""
    step = max(1, len(data) // 2)
    while step:
        at = 0
        while at < len(data):
            shorter = data[:at] + data[at + step :]
            if fails(shorter):
                data = shorter
            else:
                at += step
        step //= 2
    for at, byte in enumerate(data):
        plainer = data[:at] + b"\0" + data[at + 1 :]
        if byte and fails(plainer):
            data = plainer
    return data


def mark_of(surface: Surface, data: bytes) -> str | None:
    """Which failure these bytes show, if any."""
    seen = Watch(surface)
    seen.run(data)
    return next(iter(seen.failures), None)


def choices(surface: Surface, data: bytes) -> list[str]:
    """What these bytes pick, in order, as far as it can be shown."""
    told: list[str] = []
    pick = Draw.pick

    def telling(self: Draw, things: Sequence[Any]) -> Any:
        one = pick(self, things)
        try:
            told.append(repr(one() if getattr(one, "__name__", "") == "<lambda>" else one)[:200])
        except Exception:  # an attacker, or one that wants arguments
            told.append(f"number {things.index(one)} of {len(things)}")
        return one

    Draw.pick = telling  # type: ignore[method-assign]
    try:
        mark_of(surface, data)
    finally:
        Draw.pick = pick  # type: ignore[method-assign]
    return told


def main(results: str) -> None:
    listen()
    watch.PATIENCE = 2.0  # a case that hangs is run often
    told = json.loads(Path(results).read_text())
    for name, one in told["surfaces"].items():
        with tempfile.TemporaryDirectory() as folder:
            surface = made(name, Path(folder))
            for mark, failure in one["failures"].items():
                data = bytes.fromhex(failure.get("data", ""))
                if mark_of(surface, data) != mark:
                    print(f"{name}: {mark}: does not fail again")
                    continue
                small = shrunk(lambda some, mark=mark, on=surface: mark_of(on, some) == mark, data)
                print(f"{name}: {mark}\n  {failure['said']}\n  bytes.fromhex({small.hex()!r}) chooses:")
                print("\n".join(f"    {choice}" for choice in choices(surface, small)))


if __name__ == "__main__":
    main(*sys.argv[1:])

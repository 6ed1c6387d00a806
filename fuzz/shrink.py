"""Shrink the failures of a campaign and show what their bytes choose: `python -m fuzz.shrink RESULTS.json`.

Each failure then becomes a case of tests/test_found.py that says what was sent. Bytes are not kept: they select among
the choices that the campaign has today.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzz import monitor
from fuzz.draw import Draw
from fuzz.monitor import Monitor, raise_on_alarm
from fuzz.surfaces import Surface, build


def shrunk(fails: Callable[[bytes], bool], data: bytes) -> bytes:
    """Return shorter and simpler bytes that still fail: parts are removed, then bytes are set to 0."""
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
        simpler = data[:at] + b"\0" + data[at + 1 :]
        if byte and fails(simpler):
            data = simpler
    return data


def failure_of(surface: Surface, data: bytes) -> str | None:
    """Return the failure that these bytes cause, if any."""
    one = Monitor(surface)
    one.run(data)
    return next(iter(one.failures), None)


def choices(surface: Surface, data: bytes) -> list[str]:
    """Return what these bytes pick, in order, as far as it can be printed."""
    shown: list[str] = []
    pick = Draw.pick

    def recording(self: Draw, things: Sequence[Any]) -> Any:
        picked = pick(self, things)
        try:
            shown.append(repr(picked() if getattr(picked, "__name__", "") == "<lambda>" else picked)[:200])
        except Exception:  # a hostile object, or a function that needs arguments
            shown.append(f"number {things.index(picked)} of {len(things)}")
        return picked

    Draw.pick = recording  # type: ignore[method-assign]
    try:
        failure_of(surface, data)
    finally:
        Draw.pick = pick  # type: ignore[method-assign]
    return shown


def main(results: str) -> None:
    raise_on_alarm()
    monitor.TIME_LIMIT = 2.0  # a case that hangs is run many times
    report = json.loads(Path(results).read_text())
    for name, one in report["surfaces"].items():
        with tempfile.TemporaryDirectory() as folder:
            surface = build(name, Path(folder))
            for mark, failure in one["failures"].items():
                data = bytes.fromhex(failure.get("data", ""))
                if failure_of(surface, data) != mark:
                    print(f"{name}: {mark}: does not fail again")
                    continue
                small = shrunk(lambda some, mark=mark, on=surface: failure_of(on, some) == mark, data)
                print(f"{name}: {mark}\n  {failure['said']}\n  bytes.fromhex({small.hex()!r}) chooses:")
                print("\n".join(f"    {choice}" for choice in choices(surface, small)))


if __name__ == "__main__":
    main(*sys.argv[1:])

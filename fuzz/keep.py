"""Failures of a campaign made small, and kept for CI: `python -m fuzz.keep RESULTS.json tests/corpus`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fuzz import watch
from fuzz.surface import Surface
from fuzz.table import made
from fuzz.watch import Watch, listen, name_of


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


def main(results: str, corpus: str) -> None:
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
                place = Path(corpus) / name / name_of(small)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(small)
                print(f"{name}: {mark}: {len(small)} bytes in {place}")


if __name__ == "__main__":
    main(*sys.argv[1:])

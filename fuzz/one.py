"""One surface in one process: what the campaign starts, `python -m fuzz.one NAME`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
import warnings
from pathlib import Path

from fuzz import engine
from fuzz.surface import Surface
from fuzz.table import guided_by, made
from fuzz.watch import Watch, listen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by", choices=("chance", "coverage", "hypothesis"), default="chance")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    atheris = engine.instrumented(guided_by(options.name)) if options.by == "coverage" else None
    with tempfile.TemporaryDirectory(dir=_fast()) as folder:
        surface: Surface = made(options.name, Path(folder))
        watch = Watch(surface)
        listen()
        watch.warm()
        begin = time.monotonic()

        def tick() -> None:
            told = {**watch.report(), "seconds": round(time.monotonic() - begin, 1)}
            beside = options.out.with_suffix(".part")
            beside.write_text(json.dumps(told))
            os.replace(beside, options.out)

        if options.by == "coverage":
            engine.guided(atheris, watch, options.seconds, options.seed + 1, tick)
        drive = engine.at_random if options.by == "chance" else engine.stateful
        drive(watch, options.seconds, options.seed, tick)


def _fast() -> str | None:
    """Memory that looks like a folder, where there is one: most surfaces read files."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


if __name__ == "__main__":
    main()

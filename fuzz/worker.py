"""Fuzz one surface in one process, as the campaign starts it: `python -m fuzz.worker NAME`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
import warnings
from pathlib import Path

from fuzz import search
from fuzz.monitor import Monitor, raise_on_alarm
from fuzz.surfaces import SURFACES, build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by", choices=("chance", "coverage"), default="chance")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    atheris = search.instrumented(SURFACES[options.name].modules) if options.by == "coverage" else None
    in_memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # most surfaces read files
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        monitor = Monitor(build(options.name, Path(folder)))
        raise_on_alarm()
        monitor.warm()
        begin = time.monotonic()

        def tick() -> None:
            report = {**monitor.report(), "seconds": round(time.monotonic() - begin, 1)}
            partial = options.out.with_suffix(".part")
            partial.write_text(json.dumps(report))
            os.replace(partial, options.out)

        if options.by == "coverage":
            search.guided(atheris, monitor, options.seconds, options.seed + 1, tick)
        search.at_random(monitor, options.seconds, options.seed, tick)


if __name__ == "__main__":
    main()

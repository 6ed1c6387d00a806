"""Run the campaign: every surface in a process of its own, by Hypothesis and, where atheris is installed, by coverage.

`python -m fuzz --minutes 12 --seed 1 --out studies/results/hostile.json` (or `make fuzz`) exits with 1 if any case
failed. A failure is printed with what was drawn and the bytes of a `@reproduce_failure`, and
`python -m fuzz --surface NAME --replay BYTES` runs it again.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from bartizan._util.atomic import write_whole
from bartizan._util.machine import name_of
from fuzz import page
from fuzz.surfaces import SURFACES, build, missing

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
AGGREGATING = {"aggregate", "round", "sizes", "server-faults", "weightless"}
THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SECONDS_BEYOND = 600.0
"""Time that a process may take beyond its own, for compiling, warming up and shrinking, before it counts as hanging."""
PACKAGES = ("bartizan", "numpy", "torch", "numba", "flwr", "nvflare", "hypothesis", "atheris")
NO_REPORT = {"cases": 0, "crashes": 0, "wrong": 0, "slowest_seconds": 0.0, "failures": {}}


def main():
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=12.0, help="for all surfaces together (default 12)")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file for the figures, written whenever a process ends")
    parser.add_argument("--surface", action="append", choices=SURFACES, help="only this one; can be repeated")
    parser.add_argument("--replay", metavar="BYTES", help="run only the failure with these bytes, of one surface")
    options = parser.parse_args()
    names = options.surface or list(SURFACES)
    for name in names:
        if missing(name):
            print(f"{name} is left out: {', '.join(missing(name))} can't be imported", file=sys.stderr)
    names = [name for name in names if not missing(name)]
    in_memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # most surfaces read files
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        if options.replay:
            return replay(*names, options.replay.encode(), Path(folder))
        report = campaign(names, options, Path(folder))
    print(page.section(report))
    for name, found in report["surfaces"].items():
        show(name, found["failures"])
    return 1 if report["crashes"] or report["wrong"] else 0


def replay(name, blob, folder):
    """Run a failure again, and show it if it still fails; return 1 then."""
    from fuzz.search import Search

    search = Search(name, build(name, folder))
    search.replay(blob)
    show(name, search.failures)
    print("It still fails." if search.failures else "It passes.")
    return 1 if search.failures else 0


def show(name, failures):
    for failure in failures.values():
        print(f"\n{name}: {failure['said']}\n{failure['case']}")


def campaign(names, options, folder):
    """Run the surfaces, so many at a time, each for its share of the time, and return the figures."""
    if AGGREGATING & set(names):  # once, and not in every process
        print("Compiling the kernels ...", file=sys.stderr, flush=True)
        import_module("fuzz.aggregate").warm()
    begin, found = time.monotonic(), {}
    seconds = 60 * options.minutes * options.processes / sum(SURFACES[name].share for name in names)
    run = partial(run_one, seconds=seconds, seed=options.seed, threads=max(1, CORES // options.processes), to=folder)
    longest_first = sorted(names, key=lambda name: -SURFACES[name].share)
    pool = ThreadPoolExecutor(options.processes)
    try:
        for name, one in zip(longest_first, pool.map(run, longest_first), strict=True):
            found[name] = one
            report = {"seed": options.seed, "processes": options.processes, **summary(names, found)}
            report["seconds"] = round(time.monotonic() - begin, 1)
            print(f"{name}: {one['cases']:,} cases, {len(one['failures'])} failures", file=sys.stderr, flush=True)
            if options.out:
                write_whole(options.out, json.dumps(report, indent=1) + "\n")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return report


def run_one(name, seconds, seed, threads, to):
    """Run a surface in a process, and return its report."""
    out, seconds = to / f"{name}.json", seconds * SURFACES[name].share
    command = [sys.executable, "-m", "fuzz.search", name, "--seconds", str(seconds), "--seed", str(seed)]
    environment = os.environ | dict.fromkeys(THREADS, str(threads)) | {"TMPDIR": str(to)}
    with open(out.with_suffix(".log"), "w+b") as log:
        settings = {"stdout": log, "stderr": log, "env": environment, "timeout": seconds + SECONDS_BEYOND}
        try:
            ended = subprocess.run([*command, "--out", str(out)], check=False, **settings).returncode
        except subprocess.TimeoutExpired:
            ended = "a time-out"
        report = json.loads(out.read_text()) if out.exists() else NO_REPORT | {"failures": {}}
        if ended:
            log.seek(0)
            said = log.read().decode(errors="replace")[-1500:]
            report["crashes"] += 1
            report["failures"][f"the process ended with {ended}"] = {"said": said, "case": ""}
    return report


def summary(names, found):
    installed = [name for name in PACKAGES if find_spec(name)]
    return {
        **{key: sum(one[key] for one in found.values()) for key in ("cases", "crashes", "wrong")},
        "machine": name_of("cpu"),
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in installed},
        "surfaces": {name: found[name] for name in names if name in found},
    }


if __name__ == "__main__":
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    sys.exit(main())

"""The campaign: every surface in a process of its own, two at a time, first at random and then by coverage.

`python -m fuzz --minutes 12 --seed 1 --out benchmarks/results/hostile.json` (or `make fuzz`). Ends with 1 where
anything failed; the bytes of each failure are in the file, for `python -m fuzz.keep`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bartizan._util.atomic import write_whole
from bartizan._util.machine import name_of
from fuzz.page import summary as summary_of
from fuzz.page import table
from fuzz.table import SURFACES, missing

AT_ONCE = 2
SILENCE = 180.0
"""Seconds without a word from a process, warming up included, after which it hangs where no alarm is heard."""
ADDED = ("cases", "crashes", "wrong", "seconds")
LARGEST = ("slowest_seconds", "largest_peak_bytes", "process_grew_bytes")


@dataclass
class Job:
    """One process: a surface, and where its cases come from."""

    surface: str
    by: str
    seconds: float
    seed: int
    out: Path
    process: subprocess.Popen[bytes] | None = None
    heard: float = 0.0

    def start(self) -> None:
        command = [sys.executable, "-m", "fuzz.one", self.surface, "--seconds", str(self.seconds)]
        command += ["--seed", str(self.seed), "--out", str(self.out), "--by", self.by]
        with open(self.out.with_suffix(".log"), "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.heard = time.monotonic()

    def told(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.out.read_text()))
        except (OSError, ValueError):
            return {}

    def over(self) -> bool:
        """Whether the process has ended; one that says nothing for long is ended."""
        assert self.process is not None
        if self.out.exists():
            self.heard = max(self.heard, time.monotonic() - (time.time() - self.out.stat().st_mtime))
        if self.process.poll() is None and time.monotonic() - self.heard > SILENCE:
            self.process.kill()
            self.process.wait()
        return self.process.poll() is not None

    def result(self) -> dict[str, Any]:
        """What it told; where it did not end by itself, that is a crash, with its last words."""
        assert self.process is not None
        told = self.told() or {"cases": 0, "crashes": 0, "wrong": 0, "seconds": 0.0, "outcomes": {}, "failures": {}}
        if self.process.returncode != 0:
            words = self.out.with_suffix(".log").read_text(errors="replace")[-1500:]
            told["crashes"] += 1
            told["failures"][f"the process ended with {self.process.returncode}"] = {"said": words}
        return told


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=12.0, help="of all surfaces together, two at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--surface", action="append", choices=SURFACES, help="only this one; may be given again")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left behind
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        jobs = planned(options.surface or list(SURFACES), options.minutes * 60, options.seed, Path(folder))
        run(jobs)
        told = summary(jobs, options.seed, time.monotonic() - begin)
    if options.out:
        write_whole(options.out, json.dumps(told, indent=1) + "\n")
    show(told)
    return 1 if told["crashes"] or told["wrong"] else 0


def planned(names: list[str], seconds: float, seed: int, folder: Path) -> list[Job]:
    """The time shared out by the table's parts, and of each part as much to every way of finding cases."""
    for name in names:
        if gone := missing(name):
            print(f"{name} is left out: {', '.join(gone)} can't be imported", file=sys.stderr)
    names = [name for name in names if not missing(name)]
    ways = ["chance", *(["coverage"] if find_spec("atheris") else [])]
    jobs = [(name, by) for name in names for by in (*ways, *(["hypothesis"] if name == "round" else []))]
    whole = sum(SURFACES[name].part for name, _ in jobs)
    return [
        Job(name, by, AT_ONCE * seconds * SURFACES[name].part / whole, seed, folder / f"{n}.json")
        for n, (name, by) in enumerate(jobs)
    ]


def run(jobs: list[Job]) -> None:
    waiting, running = list(jobs), list[Job]()
    live = sys.stderr.isatty()
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(waiting.pop(0))
                running[-1].start()
            time.sleep(0.5)
            for job in [job for job in running if job.over()]:
                running.remove(job)
                print(("\r\x1b[K" if live else "") + line(job), file=sys.stderr, flush=True)
            if live:
                print("\r\x1b[K" + "   ".join(line(job) for job in running), end="", file=sys.stderr, flush=True)
    finally:
        for job in running:
            if job.process is not None:
                job.process.kill()


def line(job: Job) -> str:
    told = job.told()
    bad = told.get("crashes", 0) + told.get("wrong", 0)
    return f"{job.surface} by {job.by}: {told.get('cases', 0):,} cases, {bad} failed"


def summary(jobs: list[Job], seed: int, seconds: float) -> dict[str, Any]:
    surfaces: dict[str, Any] = {}
    for job in jobs:
        told, before = job.result(), surfaces.setdefault(job.surface, {})
        for key in ADDED:
            before[key] = round(before.get(key, 0) + told.get(key, 0), 1)
        for key in LARGEST:
            before[key] = max(before.get(key, 0), told.get(key, 0))
        for word, count in told["outcomes"].items():
            before[word] = before.get(word, 0) + count
        before[f"by {job.by}"] = told["cases"]
        before.setdefault("failures", {}).update(told["failures"])
    names = ("bartizan", "numpy", "torch", "numba", "flwr", "hypothesis", "atheris")
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "processes": AT_ONCE,
        "cases": sum(one["cases"] for one in surfaces.values()),
        "crashes": sum(one["crashes"] for one in surfaces.values()),
        "wrong": sum(one["wrong"] for one in surfaces.values()),
        "machine": name_of("cpu"),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in names},
        "surfaces": surfaces,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def show(told: dict[str, Any]) -> None:
    """What docs/reliability.md has, and the failures."""
    print(f"{summary_of(told)}\n\n{table(told)}")
    for name, one in told["surfaces"].items():
        for mark, failure in one["failures"].items():
            print(f"\n{name}: {mark}\n  {failure['said']}\n  {failure.get('data', '')[:800]}")


if __name__ == "__main__":
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    sys.exit(main())

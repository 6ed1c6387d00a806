"""Run the campaign: every surface in its own process, two at a time, with random and then coverage-guided cases.

`python -m fuzz --minutes 12 --seed 1 --out benchmarks/results/hostile.json` (or `make fuzz`) exits with 1 if any case
failed; the bytes of each failure are in the file, for `python -m fuzz.shrink`.
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
from fuzz import page
from fuzz.surfaces import SURFACES, missing

PROCESSES = 2
SILENCE = 180.0
"""Seconds without a report, warming up included, after which a process is killed as hanging."""
ADDED = ("cases", "crashes", "wrong", "seconds")
LARGEST = ("slowest_seconds", "largest_peak_bytes", "process_grew_bytes")


@dataclass
class Job:
    """One process: a surface and the source of its cases."""

    surface: str
    by: str
    seconds: float
    seed: int
    out: Path
    process: subprocess.Popen[bytes] | None = None
    heard: float = 0.0

    def start(self) -> None:
        command = [sys.executable, "-m", "fuzz.worker", self.surface, "--seconds", str(self.seconds)]
        command += ["--seed", str(self.seed), "--out", str(self.out), "--by", self.by]
        with open(self.out.with_suffix(".log"), "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.heard = time.monotonic()

    def report(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.out.read_text()))
        except (OSError, ValueError):
            return {}

    def over(self) -> bool:
        """Return whether the process has ended; kill it if it has not reported for long."""
        assert self.process is not None
        if self.out.exists():
            self.heard = max(self.heard, time.monotonic() - (time.time() - self.out.stat().st_mtime))
        if self.process.poll() is None and time.monotonic() - self.heard > SILENCE:
            self.process.kill()
            self.process.wait()
        return self.process.poll() is not None

    def result(self) -> dict[str, Any]:
        """Return the last report; a process that did not end by itself counts as a crash."""
        assert self.process is not None
        empty = {"cases": 0, "crashes": 0, "wrong": 0, "seconds": 0.0, "outcomes": {}, "failures": {}}
        report = self.report() or empty
        if self.process.returncode != 0:
            output = self.out.with_suffix(".log").read_text(errors="replace")[-1500:]
            report["crashes"] += 1
            report["failures"][f"the process ended with {self.process.returncode}"] = {"said": output}
        return report

    def __str__(self) -> str:
        report = self.report()
        failed = report.get("crashes", 0) + report.get("wrong", 0)
        return f"{self.surface} by {self.by}: {report.get('cases', 0):,} cases, {failed} failed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=12.0, help="for all surfaces together, two at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--surface", action="append", choices=SURFACES, help="only this one; can be repeated")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left behind
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        jobs = planned(options.surface or list(SURFACES), options.minutes * 60, options.seed, Path(folder))
        run(jobs)
        report = summary(jobs, options.seed, time.monotonic() - begin)
    if options.out:
        write_whole(options.out, json.dumps(report, indent=1) + "\n")
    print(f"{page.summary(report)}\n\n{page.table(report)}")
    for name, one in report["surfaces"].items():
        for mark, failure in one["failures"].items():
            print(f"\n{name}: {mark}\n  {failure['said']}\n  {failure.get('data', '')[:800]}")
    return 1 if report["crashes"] or report["wrong"] else 0


def planned(names: list[str], seconds: float, seed: int, folder: Path) -> list[Job]:
    """Divide the time by the shares of the surfaces, equally among the sources of cases."""
    for name in names:
        if packages := missing(name):
            print(f"{name} is left out: {', '.join(packages)} can't be imported", file=sys.stderr)
    names = [name for name in names if not missing(name)]
    sources = ["chance", *(["coverage"] if find_spec("atheris") else [])]
    jobs = [(name, by) for name in names for by in (*sources, *(["hypothesis"] if name == "round" else []))]
    total = sum(SURFACES[name].share for name, _ in jobs)
    return [
        Job(name, by, PROCESSES * seconds * SURFACES[name].share / total, seed, folder / f"{n}.json")
        for n, (name, by) in enumerate(jobs)
    ]


def run(jobs: list[Job]) -> None:
    waiting, running = list(jobs), list[Job]()
    live = sys.stderr.isatty()
    try:
        while waiting or running:
            while waiting and len(running) < PROCESSES:
                running.append(waiting.pop(0))
                running[-1].start()
            time.sleep(0.5)
            for job in [job for job in running if job.over()]:
                running.remove(job)
                print(("\r\x1b[K" if live else "") + str(job), file=sys.stderr, flush=True)
            if live:
                print("\r\x1b[K" + "   ".join(map(str, running)), end="", file=sys.stderr, flush=True)
    finally:
        for job in running:
            if job.process is not None:
                job.process.kill()


def summary(jobs: list[Job], seed: int, seconds: float) -> dict[str, Any]:
    surfaces: dict[str, Any] = {}
    for job in jobs:
        report, total = job.result(), surfaces.setdefault(job.surface, {})
        for key in ADDED:
            total[key] = round(total.get(key, 0) + report.get(key, 0), 1)
        for key in LARGEST:
            total[key] = max(total.get(key, 0), report.get(key, 0))
        for outcome, count in report["outcomes"].items():
            total[outcome] = total.get(outcome, 0) + count
        total[f"by {job.by}"] = report["cases"]
        total.setdefault("failures", {}).update(report["failures"])
    packages = ("bartizan", "numpy", "torch", "numba", "flwr", "hypothesis", "atheris")
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "processes": PROCESSES,
        **{key: sum(one[key] for one in surfaces.values()) for key in ("cases", "crashes", "wrong")},
        "machine": name_of("cpu"),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
        "surfaces": surfaces,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    sys.exit(main())

"""Run the campaign: every surface in processes of its own, with random and coverage-guided cases.

`python -m fuzz --minutes 12 --seed 1 --out studies/results/hostile.json` (or `make fuzz`) exits with 1 if any case
failed; the bytes of each failure are in the file, for `python -m fuzz.shrink`. With `--cases 2000000` it goes on with
other seeds until so many have been run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bartizan._util.atomic import write_whole
from bartizan._util.machine import name_of
from fuzz import page
from fuzz.surfaces import SURFACES, missing

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SILENCE = 300.0
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
    threads: int
    process: subprocess.Popen[bytes] | None = None
    heard: float = 0.0

    def start(self) -> None:
        command = [sys.executable, "-m", "fuzz.worker", self.surface, "--seconds", str(self.seconds)]
        command += ["--seed", str(self.seed), "--out", str(self.out), "--by", self.by]
        with open(self.out.with_suffix(".log"), "wb") as log:
            limits = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self.threads))
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | limits)
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
    parser.add_argument("--minutes", type=float, default=12.0, help="for all surfaces together (default 12)")
    parser.add_argument("--cases", type=int, default=0, help="go on until so many have been run")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file for the figures, written whenever a process ends")
    parser.add_argument("--surface", action="append", choices=SURFACES, help="only this one; can be repeated")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left behind
    names, seconds = available(options.surface or list(SURFACES)), options.minutes * 60
    if {"aggregate", "round"} & set(names):  # once, and not in every process
        print("Compiling the kernels ...", file=sys.stderr, flush=True)
        import_module("fuzz.aggregate").warm()
    begin, done, report = time.monotonic(), list[Job](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        while not report or 0 < report["cases"] < options.cases:
            if report:
                seconds *= min(1.0, max(0.05, 1.1 * (options.cases / report["cases"] - 1)))
            jobs = planned(names, seconds, options.processes, options.seed + 1000 * len(done), Path(folder))
            for job in run(jobs, options.processes):
                done.append(job)
                report = summary(done, options.seed, options.processes, time.monotonic() - begin)
                print(f"{job}; {report['cases']:,} in all, of {len(jobs)} processes", file=sys.stderr, flush=True)
                if options.out:
                    write_whole(options.out, json.dumps(report, indent=1) + "\n")
    print(f"{page.summary(report)}\n\n{page.section(report)}")
    for name, one in report["surfaces"].items():
        for mark, failure in one["failures"].items():
            print(f"\n{name}: {mark}\n  {failure['said']}\n  {failure.get('data', '')[:800]}")
    return 1 if report["crashes"] or report["wrong"] else 0


def available(names: list[str]) -> list[str]:
    """Return the surfaces whose packages are installed, and say which are left out."""
    for name in names:
        if packages := missing(name):
            print(f"{name} is left out: {', '.join(packages)} can't be imported", file=sys.stderr)
    return [name for name in names if not missing(name)]


def planned(names: list[str], seconds: float, processes: int, seed: int, folder: Path) -> list[Job]:
    """Divide the time of all processes by the shares of the surfaces, equally among the sources of cases.

    What is more than a third of the time of one process is divided among several, with other seeds, so that all end
    at about the same time.
    """
    sources = ["chance", *(["coverage"] if find_spec("atheris") else [])]
    pairs = [(name, by) for name in names for by in sources]
    total = sum(SURFACES[name].share for name, _ in pairs)
    jobs = []
    for name, by in pairs:
        own = processes * seconds * SURFACES[name].share / total
        parts = max(1, math.ceil(own / (seconds / 3))) if processes > 2 else 1
        for _ in range(parts):
            number = seed + 1000 * len(jobs)
            jobs.append(Job(name, by, own / parts, number, folder / f"{number}.json", max(1, CORES // processes)))
    return sorted(jobs, key=lambda job: -job.seconds)


def run(jobs: list[Job], processes: int) -> Iterator[Job]:
    """Run the jobs, so many processes at a time, and yield each when it is over."""
    waiting, running = list(jobs), list[Job]()
    live = sys.stderr.isatty()
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                running.append(waiting.pop(0))
                running[-1].start()
            time.sleep(0.5)
            for job in [job for job in running if job.over()]:
                running.remove(job)
                print("\r\x1b[K" if live else "", end="", file=sys.stderr)
                yield job
            if live:
                print("\r\x1b[K" + "   ".join(map(str, running))[:150], end="", file=sys.stderr, flush=True)
    finally:
        for job in running:
            if job.process is not None:
                job.process.kill()


def summary(jobs: list[Job], seed: int, processes: int, seconds: float) -> dict[str, Any]:
    surfaces: dict[str, Any] = {}
    for job in jobs:
        report, total = job.result(), surfaces.setdefault(job.surface, {})
        for key in ADDED:
            total[key] = round(total.get(key, 0) + report.get(key, 0), 1)
        for key in LARGEST:
            total[key] = max(total.get(key, 0), report.get(key, 0))
        for outcome, count in report["outcomes"].items():
            total[outcome] = total.get(outcome, 0) + count
        total[f"by {job.by}"] = total.get(f"by {job.by}", 0) + report["cases"]
        total.setdefault("failures", {}).update(report["failures"])
    surfaces = {name: surfaces[name] for name in SURFACES if name in surfaces}
    packages = ("bartizan", "numpy", "torch", "numba", "flwr", "nvflare", "atheris")
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "processes": processes,
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

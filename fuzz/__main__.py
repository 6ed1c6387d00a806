"""Run the campaign: every surface in a process of its own, by Hypothesis and, where atheris is installed, by coverage.

`python -m fuzz --minutes 12 --seed 1 --out studies/results/hostile.json` (or `make fuzz`) exits with 1 if any case
failed. With `--cases 2000000` it goes on with other seeds until so many have been run. A failure is printed with what
was drawn and the bytes of a `@reproduce_failure`, and `python -m fuzz --surface NAME --replay BYTES` runs it again.
"""

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
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import import_module, metadata
from pathlib import Path

from bartizan._util.atomic import write_whole
from bartizan._util.machine import name_of
from fuzz import page
from fuzz.surfaces import SURFACES, build, missing

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SECONDS_BEYOND = 600.0
"""Time that a process may take beyond its own, for compiling, warming up and shrinking, before it counts as hanging."""
ADDED = ("cases", "crashes", "wrong", "seconds", "accepted", "compared", "refused", "by coverage")
LARGEST = ("slowest_seconds", "largest_peak_bytes")
PACKAGES = ("bartizan", "numpy", "torch", "numba", "flwr", "nvflare", "hypothesis", "atheris")


def main():
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=12.0, help="for all surfaces together (default 12)")
    parser.add_argument("--cases", type=int, default=0, help="go on until so many have been run")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file for the figures, written whenever a process ends")
    parser.add_argument("--surface", action="append", choices=SURFACES, help="only this one; can be repeated")
    parser.add_argument("--replay", metavar="BYTES", help="run only the failure with these bytes, of one surface")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left behind
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
    print(f"{page.summary(report)}\n\n{page.section(report)}")
    for name, one in report["surfaces"].items():
        show(name, one["failures"])
    return 1 if report["crashes"] or report["wrong"] else 0


def campaign(names, options, folder):
    """Run the surfaces, again with other seeds if more cases are wanted, and return the figures."""
    if {"aggregate", "round"} & set(names):  # once, and not in every process
        print("Compiling the kernels ...", file=sys.stderr, flush=True)
        import_module("fuzz.aggregate").warm()
    begin, seconds, done, report = time.monotonic(), options.minutes * 60, [], {}
    while not report or 0 < report["cases"] < options.cases:
        if report:
            seconds *= min(1.0, max(0.05, 1.1 * (options.cases / report["cases"] - 1)))
        jobs = planned(names, seconds, options.processes, options.seed + 1000 * len(done))
        for name, found in run(jobs, options.processes, folder):
            done.append((name, found))
            report = {
                "seed": options.seed,
                "seconds": round(time.monotonic() - begin, 1),
                "processes": options.processes,
            }
            report |= summary(done)
            said = f"{name}: {found.get('cases', 0):,} cases, {len(found['failures'])} failures"
            print(f"{said}; {report['cases']:,} in all, of {len(jobs)} processes", file=sys.stderr, flush=True)
            if options.out:
                write_whole(options.out, json.dumps(report, indent=1) + "\n")
    return report


def replay(name, blob, folder):
    """Run a failure again, and show it if it still fails; return 1 then."""
    from fuzz.engine import Monitor, raise_on_alarm

    raise_on_alarm()
    monitor = Monitor(name, build(name, folder))
    monitor.replay(blob)
    show(name, monitor.failures)
    print("It still fails." if monitor.failures else "It passes.")
    return 1 if monitor.failures else 0


def show(name, failures):
    for mark, failure in failures.items():
        print(f"\n{name}: {mark}\n{failure['said']}\n{failure['case']}")


def planned(names, seconds, processes, seed):
    """Return a surface, its seconds and its seed per process: the time of all is divided by the surfaces' shares.

    What is more than a third of the time of one process is divided among several, so that all end at the same time.
    """
    total, jobs = sum(SURFACES[name].share for name in names), []
    for name in names:
        own = processes * seconds * SURFACES[name].share / total
        parts = max(1, math.ceil(own / (seconds / 3))) if processes > 2 else 1
        jobs += [(name, own / parts, seed + 1000 * (len(jobs) + part)) for part in range(parts)]
    return sorted(jobs, key=lambda job: -job[1])


def run(jobs, processes, folder):
    """Run the jobs, so many processes at a time, and yield each surface with its report when its process is over."""
    running = []
    limits = dict.fromkeys(
        ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(max(1, CORES // processes))
    )

    def run_one(name, seconds, seed):
        out = folder / f"{seed}.json"
        command = [sys.executable, "-m", "fuzz.engine", name, "--seconds", str(seconds), "--seed", str(seed)]
        with open(out.with_suffix(".log"), "w+b") as log:
            environment = os.environ | limits | {"TMPDIR": str(folder)}
            process = subprocess.Popen([*command, "--out", str(out)], stdout=log, stderr=log, env=environment)
            running.append(process)
            try:
                process.wait(seconds + SECONDS_BEYOND)
            except subprocess.TimeoutExpired:
                process.kill()
            report = json.loads(out.read_text()) if out.exists() else {"failures": {}}
            if code := process.wait():  # it did not end by itself
                report["crashes"] = report.get("crashes", 0) + 1
                log.seek(0)
                said = log.read().decode(errors="replace")[-1500:]
                report["failures"][f"the process ended with {code}"] = {"said": said, "case": ""}
        return name, report

    with ThreadPoolExecutor(processes) as pool:
        try:
            for one in as_completed([pool.submit(run_one, *job) for job in jobs]):
                yield one.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()


def summary(done):
    surfaces = {name: {"failures": {}} for name in SURFACES if name in dict(done)}
    for name, report in done:
        total = surfaces[name]
        total |= {key: round(total.get(key, 0) + report.get(key, 0), 1) for key in ADDED}
        total |= {key: max(total.get(key, 0), report.get(key, 0)) for key in LARGEST}
        total["failures"] |= report["failures"]
    return {
        **{key: sum(one[key] for one in surfaces.values()) for key in ("cases", "crashes", "wrong")},
        "machine": name_of("cpu"),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "surfaces": surfaces,
    }


def _version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    sys.exit(main())

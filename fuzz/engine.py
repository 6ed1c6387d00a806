"""Run the cases of one surface, drawn by Hypothesis or guided by coverage, within limits on time and memory.

Hypothesis shrinks what fails, also what atheris finds, and prints how to run it again; a surface stops at its first
failure. The campaign starts this module in processes of its own: `python -m fuzz.engine NAME`.
"""

import argparse
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, given, reproduce_failure, seed, settings
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.errors import DidNotReproduce, HypothesisWarning

from bartizan._util.atomic import write_whole
from fuzz.surfaces import ACCEPTED, HOME, REFUSED, SURFACES, RefusedError, WrongError, build

SECONDS_PER_CASE = 10.0
BYTES_PER_PROCESS = 2**30
"""Memory that a process may allocate beyond what it has after warming up."""
CASES_PER_TRACE = 64
"""One case in this many is run with every allocation counted."""
CASES_PER_RUN = 100
"""Cases that Hypothesis runs by one seed."""
BYTES_PER_CASE = 4096
"""Largest number of bytes from which atheris lets a case be drawn."""


class HangError(BaseException):
    """A case did not end in time; no `except Exception` catches this."""


class Monitor:
    """Counts and failures of the cases of one surface."""

    def __init__(self, name, surface, out=None):
        self.name, self.surface, self.out, self.database = name, surface, out, InMemoryExampleDatabase()
        self.outcomes, self.failures = Counter(), {}
        self.cases = self.guided_cases = self.largest_peak = 0
        self.slowest, self.written, self.begun = 0.0, 0.0, time.monotonic()

    def test(self, **options):
        """Return the surface as a test of Hypothesis."""

        def run(**case):
            self._run(case)

        run.__name__ = self.name.replace("-", "_")
        options = {"phases": [Phase.generate, Phase.shrink], "database": self.database, "deadline": None} | options
        options |= {"suppress_health_check": list(HealthCheck), "print_blob": True}
        return settings(**options)(given(**self.surface.cases)(run))

    def search(self, number, **options):
        """Let Hypothesis run cases by this seed, and keep what fails, shrunk."""
        self._keep(seed(number)(self.test(**options)))

    def replay(self, blob):
        """Run the case of a `@reproduce_failure` again; nothing is kept if it passes."""
        self._keep(reproduce_failure(hypothesis.__version__, blob)(self.test()))

    def _keep(self, test):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HypothesisWarning)  # of long texts
                test()
        except DidNotReproduce:
            pass
        except Exception as error:
            for one in getattr(error, "exceptions", [error]):
                case = "\n".join(getattr(one, "__notes__", []))[:4000]
                self.failures[_mark(one)] = {"said": str(one)[:500], "case": case}

    def guided(self, seconds, number):
        """Let atheris look for cases that reach new code; it ends the process, so this never returns."""
        import atheris

        corpus, chance = Path(tempfile.mkdtemp()), random.Random(number)
        run, end, before = self.test().hypothesis.fuzz_one_input, time.monotonic() + seconds, self.cases

        def run_one(data):
            drawn = None
            try:
                drawn = run(data)
            except Exception:  # which is in the database now, to be shrunk
                self._keep(self.test(phases=[Phase.reuse, Phase.shrink]))
            self.guided_cases = self.cases - before
            if self.failures or time.monotonic() > end:
                self.write()
                os._exit(0)
            return drawn

        for n in range(64):
            (corpus / str(n)).write_bytes(run_one(chance.randbytes(BYTES_PER_CASE)) or b"")
        # The monitor handles failures, time and memory: libFuzzer would stop at the first failure.
        flags = [f"-seed={number + 1}", f"-max_len={BYTES_PER_CASE}", "-len_control=0", "-timeout=0", "-verbosity=0"]
        flags += ["-rss_limit_mb=0", "-detect_leaks=0", "-handle_xfsz=0"]  # a surface limits the size of files
        flags += [f"-artifact_prefix={corpus}/"]  # it writes slow cases down, else into the current folder
        atheris.Setup([sys.argv[0], *flags, str(corpus)], run_one)
        atheris.Fuzz()

    def _run(self, case):
        self.cases += 1
        if traced := self.cases % CASES_PER_TRACE == 0:
            tracemalloc.start()
        begin = time.perf_counter()
        try:
            with _time_limit():
                self.outcomes.update({ACCEPTED, self.surface.check(**case)})
        except RefusedError:
            self.outcomes[REFUSED] += 1
        finally:
            if traced:
                self.largest_peak = max(self.largest_peak, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
            else:
                self.slowest = max(self.slowest, time.perf_counter() - begin)
            if time.monotonic() > self.written + 1:
                self.write()

    def write(self):
        """Write the figures so far, if they are wanted in a file."""
        self.written = time.monotonic()
        if self.out is not None:
            write_whole(self.out, json.dumps(self.report()))

    def report(self):
        wrong = sum(mark.startswith("wrong") for mark in self.failures)
        return {
            **{"cases": self.cases, "crashes": len(self.failures) - wrong, "wrong": wrong, **self.outcomes},
            **{"slowest_seconds": round(self.slowest, 4), "largest_peak_bytes": self.largest_peak},
            **{"seconds": round(time.monotonic() - self.begun, 1), "by coverage": self.guided_cases},
            "failures": self.failures,
        }


def _mark(error):
    """Return a name for this kind of failure."""
    if isinstance(error, WrongError):
        return f"wrong: {str(error)[:40]}"
    at = traceback.extract_tb(error.__traceback__)
    ours = next((frame for frame in reversed(at) if frame.filename.startswith(HOME)), at[-1])
    return f"crash: {type(error).__name__} at {'/'.join(Path(ours.filename).parts[-3:])}:{ours.lineno}"


@contextmanager
def _time_limit():
    """Raise TimeoutError if a case does not end in time, after any `except Exception` of the library."""

    def stop(*_):
        raise HangError(f"still running after {SECONDS_PER_CASE:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_CASE)
    try:
        yield
    except HangError as error:
        raise TimeoutError(str(error)).with_traceback(error.__traceback__) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _limit_memory():
    with suppress(OSError, ValueError):  # known on Linux only
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + BYTES_PER_PROCESS
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=10.0, help="half of them guided by coverage, with atheris")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if by_coverage := find_spec("atheris") is not None:
        import atheris

        packages = [f"bartizan.{one}" for one in SURFACES[options.name].packages.split()]
        with atheris.instrument_imports(include=packages, enable_loader_override=False):
            for module in (*packages, f"fuzz.{SURFACES[options.name].build.partition(':')[0]}"):
                import_module(module)
    surface = build(options.name, options.out.with_suffix(""))
    Monitor(options.name, surface).search(options.seed, max_examples=50)  # imports and compiles
    monitor = Monitor(options.name, surface, options.out)
    _limit_memory()
    while not monitor.failures and time.monotonic() < monitor.begun + options.seconds / (1 + by_coverage):
        options.seed += 1
        monitor.search(options.seed, max_examples=CASES_PER_RUN)
    if by_coverage and not monitor.failures:
        monitor.guided(monitor.begun + options.seconds - time.monotonic(), options.seed)
    monitor.write()


if __name__ == "__main__":
    main()

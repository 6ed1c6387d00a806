"""Search one surface for cases that fail: `python -m fuzz.search NAME`, as the campaign starts it.

Hypothesis draws the cases, shrinks what fails and replays it; atheris drives the same test by `fuzz_one_input`. Here
they get limits on time and memory, and are counted. A surface stops at its first failure.
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
import warnings
from collections import Counter
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, given, reproduce_failure, seed, settings
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.errors import DidNotReproduce, HypothesisWarning

from bartizan._util.atomic import write_whole
from fuzz.surfaces import ACCEPTED, REFUSED, SURFACES, RefusedError, WrongError, build

SECONDS_PER_CASE = 10.0
BYTES_PER_PROCESS = 2**30
"""Memory that a process may allocate beyond what it has after warming up."""
CASES_PER_SEED = 100
BYTES_PER_CASE = 4096
"""Largest number of bytes from which atheris lets a case be drawn."""


class HangError(BaseException):
    """A case did not end in time; no `except Exception` of the library catches this."""


class Search:
    """A surface as a test of Hypothesis, with the outcomes and the failures of its cases."""

    def __init__(self, name, surface, out=None):
        self.name, self.surface, self.out, self.database = name, surface, out, InMemoryExampleDatabase()
        self.outcomes, self.failures = Counter(), {}
        self.cases, self.guided_cases, self.slowest, self.begun = 0, 0, 0.0, time.monotonic()

    def test(self, **options):
        """Return the surface as a test."""

        def run(**case):
            self._run(case)

        run.__name__ = self.name.replace("-", "_")
        options = {"phases": [Phase.generate, Phase.shrink], "database": self.database, "deadline": None} | options
        options |= {"suppress_health_check": list(HealthCheck), "print_blob": True}
        return settings(**options)(given(**self.surface.cases)(run))

    def by_seed(self, number, **options):
        """Let Hypothesis draw cases by this seed, and keep what fails, shrunk."""
        self._keep(seed(number)(self.test(**options)))

    def replay(self, blob):
        """Run the case of a `@reproduce_failure` again; nothing is kept if it passes."""
        self._keep(reproduce_failure(hypothesis.__version__, blob)(self.test()))

    def by_coverage(self, seconds, number):
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
        # Failures, time and memory are handled here: libFuzzer would stop at the first failure.
        flags = [f"-seed={number + 1}", f"-max_len={BYTES_PER_CASE}", "-len_control=0", "-timeout=0", "-verbosity=0"]
        flags += ["-rss_limit_mb=0", "-detect_leaks=0", "-handle_xfsz=0"]  # a surface limits the size of files
        flags += [f"-artifact_prefix={corpus}/"]  # it writes slow cases down, else into the current folder
        atheris.Setup([sys.argv[0], *flags, str(corpus)], run_one)
        atheris.Fuzz()

    def _run(self, case):
        def stop(*_):
            raise HangError(f"still running after {SECONDS_PER_CASE:.0f} s")

        self.cases, begin, before = self.cases + 1, time.perf_counter(), signal.signal(signal.SIGALRM, stop)
        try:
            signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_CASE)
            self.outcomes.update({ACCEPTED, self.surface.check(**case)})
        except RefusedError:
            self.outcomes[REFUSED] += 1
        except HangError as error:
            raise TimeoutError(str(error)).with_traceback(error.__traceback__) from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            self.slowest = max(self.slowest, time.perf_counter() - begin)
            if self.cases % 256 == 0:
                self.write()

    def _keep(self, test):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HypothesisWarning)  # of long texts
                test()
        except DidNotReproduce:
            pass
        except Exception as error:
            for one in getattr(error, "exceptions", [error]):
                case, kind = "\n".join(getattr(one, "__notes__", []))[:4000], type(one).__name__
                at = "".join(traceback.format_tb(one.__traceback__, -2))
                self.failures[f"{kind}: {str(one)[:40]}"] = {"said": f"{at}{kind}: {str(one)[:500]}", "case": case}

    def write(self):
        """Write the figures so far, if they are wanted in a file."""
        if self.out is None:
            return
        wrong = sum(name.startswith(WrongError.__name__) for name in self.failures)
        counts = {"cases": self.cases, "crashes": len(self.failures) - wrong, "wrong": wrong, **self.outcomes}
        counts |= {"slowest_seconds": round(self.slowest, 4), "seconds": round(time.monotonic() - self.begun, 1)}
        write_whole(self.out, json.dumps(counts | {"by coverage": self.guided_cases, "failures": self.failures}))


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
    Search(options.name, surface).by_seed(options.seed, max_examples=50)  # imports and compiles
    search = Search(options.name, surface, options.out)
    with suppress(OSError, ValueError):  # known on Linux only
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + BYTES_PER_PROCESS
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    while not search.failures and time.monotonic() < search.begun + options.seconds / (1 + by_coverage):
        options.seed += 1
        search.by_seed(options.seed, max_examples=CASES_PER_SEED)
    if by_coverage and not search.failures:
        search.by_coverage(search.begun + options.seconds - time.monotonic(), options.seed)
    search.write()


if __name__ == "__main__":
    main()

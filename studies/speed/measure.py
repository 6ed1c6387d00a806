"""Check the answers of several engines on one problem, then time their calls by turns, each after a read."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median

import numpy as np

from bartizan import __version__
from bartizan._util import machine
from bartizan._util.types import Floats
from bartizan.measure.sketches import Norms
from studies.speed import peak_memory as memory
from studies.speed.engines import Answer, Engine, Job, rule_of
from studies.speed.problem import Problem
from studies.speed.speed_rows import SpeedRow

PAUSE = 0.01
WARM_UP_DIM = 5000  # coordinates to warm up on: what is compiled depends on types, not on sizes
TRIAL_DIVISOR, MAX_LIMITS = 64, 10  # engines that would take 10 limits, by a 64th of the coordinates, are not run
SHORT_SECONDS, SHORT_REPEATS = 0.02, 9  # of a call that is repeated, so that waits for a core do not count
FACTOR = 1.05  # how much farther from the honest mean than the definition, or an honest client, an answer may be
Notice = Callable[[str], None]


@dataclass(frozen=True)
class Verdict:
    """A judgement of an answer, and why; errors are relative to the honest spread."""

    ok: bool
    judged: str
    definition_error: float | None = None
    mean_error: float | None = None


@dataclass
class Entry:
    """One engine under measurement."""

    engine: Engine
    job: Job
    verdict: Verdict
    extra: int | None = None
    first: tuple[float, float] | None = None  # seconds of the first call, and of the read before it
    times: list[tuple[float, float]] = field(default_factory=list)

    def fits(self, repeats: int, limit: float) -> bool:
        """Return whether so many calls do not exceed the limit of seconds."""
        return self.first is not None and repeats * self.first[0] <= limit


def rows(
    problem: Problem, rule: str, engines: Sequence[Engine], repeats: int, limit: float, notice: Notice
) -> Iterator[SpeedRow]:
    """Check every engine that has the rule, then time them by turns (A B A B), each call after one read."""
    notice(f"{rule}: the definition, in float64")
    defined = problem.defined(rule_of(rule, problem.byzantine))
    entries = []
    for engine in engines:
        job = engine.job(rule, problem)
        if job is None:
            continue
        notice(f"{rule}: warming up and checking {engine.label}")
        entries.append(_checked(problem, rule, engine, job, defined, limit))
    for turn in range(repeats):
        for entry in entries:
            if entry.fits(turn + 1, limit):
                notice(f"{rule}: timing {entry.engine.label}, {turn + 1} of {repeats}")
                entry.times.append(_timed(problem, entry.job))
    for entry in entries:
        yield _row(problem, rule, entry)


def one_read(problem: Problem) -> float:
    """Return the seconds to sum all numbers with torch; without torch, or in 16 bits, their squares with our kernel.

    After a pause, since threads of the previous call may still be spinning.
    """
    time.sleep(PAUSE)
    if problem.device == "cuda" or ("16" not in problem.dtype and importlib.util.find_spec("torch")):
        return _fastest(Job(lambda _: Answer(problem.tensor().sum())), problem.device)
    return _fastest(Job(lambda _: Answer(Norms().measure(problem.updates, 0))), problem.device)


def _fastest(job: Job, device: str) -> float:
    """Return the seconds of a call, or of the fastest of several if it is short: waking threads does not count."""
    best, updates = float("inf"), job.prepare()
    for _ in range(1 + SHORT_REPEATS):
        best = min(best, machine.timed(partial(job.run, updates), device)[1])
        if best > SHORT_SECONDS:
            break
        updates = job.prepare()  # anew: some libraries take their input apart
    return best


def _checked(problem: Problem, rule: str, engine: Engine, job: Job, defined: Floats, limit: float) -> Entry:
    expected = float("inf")
    try:
        _small_run(problem, rule, engine, WARM_UP_DIM)  # compiles
        if problem.dim >= TRIAL_DIVISOR * WARM_UP_DIM:
            # Twice, for threads of BLAS that wait for a busy core can take a second for nothing.
            expected = TRIAL_DIVISOR * min(
                _small_run(problem, rule, engine, problem.dim // TRIAL_DIVISOR) for _ in range(2)
            )
            if expected > MAX_LIMITS * limit:
                return Entry(engine, job, Verdict(False, f"not run: it would take about {expected:,.0f} s a call"))
        one_read(problem)
        updates = job.prepare()
        read = one_read(problem)
        (answer, seconds), extra = memory.watched(
            lambda: machine.timed(lambda: job.run(updates), problem.device), problem.device
        )
        first = seconds, read
        if seconds > MAX_LIMITS * expected:  # a GPU has just compiled kernels for more than 2^31 numbers
            first = _timed(problem, job)
    except Exception as failure:  # another library may fail in any way, which is a result
        return Entry(engine, job, Verdict(False, f"{type(failure).__name__}: {failure}"))
    if extra is not None:
        extra = max(0, extra - memory.size_of(answer.update))
    return Entry(engine, job, judged(problem, engine, answer, defined), extra, first)


def _small_run(problem: Problem, rule: str, engine: Engine, dim: int) -> float:
    """Return the seconds of a call on the first coordinates only."""
    job = engine.job(rule, problem.narrowed(dim))
    if job is None:
        return 0.0
    updates, run = job.prepare(), job.run
    return machine.timed(lambda: run(updates), problem.device)[1]


def _timed(problem: Problem, job: Job) -> tuple[float, float]:
    """Return the seconds of a call, and of the read before it."""
    read = one_read(problem)
    return _fastest(job, problem.device), read


def _row(problem: Problem, rule: str, entry: Entry) -> SpeedRow:
    times = entry.times or ([entry.first] if entry.first else [])
    seconds = [spent for spent, _ in times]
    reads = [spent / read for spent, read in times]
    return SpeedRow(
        engine=entry.engine.name,
        rule=rule,
        sketch=entry.engine.sketch,
        clients=problem.clients,
        byzantine=problem.byzantine,
        dim=problem.dim,
        dtype=problem.dtype,
        device=problem.device,
        seconds=median(seconds) if times else None,
        seconds_min=min(seconds, default=None),
        seconds_max=max(seconds, default=None),
        reads=median(reads) if times else None,
        reads_min=min(reads, default=None),
        reads_max=max(reads, default=None),
        read_seconds=median(read for _, read in times) if times else None,
        repeats=len(times),
        extra_bytes=entry.extra,
        **asdict(entry.verdict),
        machine=machine.name_of(problem.device),
        version=__version__,
    )


def judged(problem: Problem, engine: Engine, answer: Answer, defined: Floats) -> Verdict:
    """Judge an answer: an exact engine must meet the definition, `defined`; others may instead be as close to
    the honest mean as an honest client.

    If the engine returns weights, they must combine to its update, whatever the sketch.
    """
    if tuple(answer.update.shape) != (problem.dim,):
        return Verdict(False, f"wrong shape: {tuple(answer.update.shape)}")
    tolerance = 1e-2 if "16" in problem.dtype else 1e-4
    to_definition, to_mean = (problem.distance(answer.update, point) for point in (defined, problem.mean))
    if not np.isfinite(to_mean):
        return Verdict(False, "not finite")

    def verdict(ok: bool, why: str) -> Verdict:
        return Verdict(ok, why, to_definition, to_mean)

    if (w := answer.weights) is not None:
        if w.shape != (problem.clients,) or (w < 0).any() or w.sum() > 1 + 1e-9:
            return verdict(False, "the weights are not one per client, none negative, with a sum of at most 1")
        if (off := problem.distance(answer.update, problem.combined(w))) > tolerance:
            return verdict(False, f"the update is {off:.2g} spreads from what its own weights make")
    if to_definition <= tolerance:
        return verdict(True, "meets the definition")
    if engine.exact:
        return verdict(False, f"{to_definition:.2g} spreads from the definition")
    bound = FACTOR * max(1.0, problem.distance(defined, problem.mean))
    if to_mean <= bound:
        return verdict(True, "as close to the honest mean as an honest client")
    return verdict(False, f"{to_mean:.2g} spreads from the honest mean, wanted {bound:.2g} at most")

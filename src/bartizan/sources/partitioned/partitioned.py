"""One aggregation of clients that are divided among workers, in three steps.

Each worker sketches its own clients: M_i x k numbers go up. The caller decides once for all, by `defense`. Each worker
sums its own clients with their weights: one sum a worker goes up, by a tree.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy.typing as npt

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan._util.stopwatch import Stopwatch
from bartizan._util.text import quoted
from bartizan.aggregate import Aggregator
from bartizan.judge.judge import Verdict, decide, effective_sketch
from bartizan.judge.quarantine import until_read
from bartizan.judge.recheck import RECHECK_SKETCH
from bartizan.measure import Exact, Rotated, Sketch
from bartizan.measure.base import StreamingSketch
from bartizan.measure.geometry import GramStats, client_sizes
from bartizan.result import Aggregation
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sources.partitioned.all_parts import AllParts
from bartizan.sources.partitioned.own_clients import Reading
from bartizan.sources.partitioned.workers import Workers, workers_of
from bartizan.updates import Updates, parse_updates
from bartizan.updates.column_pass import as_bytes
from bartizan.updates.files import create_update, max_bytes_like, open_update
from bartizan.updates.stores import TIMEOUT


def aggregate(
    parts: Any,
    rule: Rule | CoordinateWise | str,
    *,
    sketch: Sketch | str = "auto",
    seed: int | None = None,
    sizes: npt.ArrayLike | None = None,
    reference: Any = None,
    trusted: Any = None,
    history: tuple[float, ...] = (),
    strict: bool = False,
    engine: Any = None,
    recheck: bool = False,
    out: Any = None,
    memory: int | str | None = None,
    timeout: float = 3600.0,
) -> Aggregation[Any]:
    """One robust update from clients whose whole updates are on many workers; only sketches and sums travel.

    Weights, scores and quarantined clients are those of one `bartizan.aggregate` call with the same seed and the
    clients of all parts in their order, to the bit in host memory; the update is the same up to rounding. Workers are
    trusted, clients are not.

    Args:
        parts: One part a worker: a list of updates (or a 2-D array), a future or object reference of such a list, or a
            list of futures, of paths, or of functions without arguments, which the worker opens or calls each time that
            it reads the client. With a process group, the part of this rank alone.
        rule: As in `bartizan.aggregate`. For coordinate-wise stages (`Median`, `Bulyan`) the workers exchange
            columns: all numbers of the clients that are used travel once.
        sketch: A projection or its name; "auto" is `Rotated()`. `Exact()` is refused for rules that need distances.
        seed: As in `bartizan.aggregate`.
        sizes: The clients' data sizes, in order of the parts. With a process group, those of this rank's clients.
        reference: As in `bartizan.aggregate`; sent to each worker.
        trusted: As in `bartizan.aggregate`; sent to each worker.
        history: As in `bartizan.aggregate`.
        strict: Raise on the first client that can't take part, instead of quarantining it.
        engine: Runs the workers: a Dask `Client`, ``"ray"``, a torch.distributed process group (every rank makes the
            call; the first one decides), or None: this process takes one part after another.
        recheck: Sketch the selected clients again, with a seed drawn after the first sketch, as `Round` does: for
            clients that may still write what the workers open, and might learn the first seed.
        out: Where the update goes. None: to the caller. A container of arrays: into these. A `pathlib.Path` that ends
            in .npy or .safetensors: into that file of the caller. "workers": it stays on a worker, and the result's
            `update` is a Dask future or a Ray reference; in a process group every rank gets it.
        memory: The most memory for the updates that a worker opens at a time.
        timeout: Seconds in which all workers must answer a step (a process group has its own). A store may
            send a worker no bytes for as long, and at most 60 s.

    >>> import bartizan as bz
    >>> parts = [[[1.0, 2.0], [1.1, 2.1]], [[0.9, 1.9], [float("nan"), 0.0], [70.0, -70.0]]]
    >>> out = aggregate(parts, bz.GeometricMedian(), sketch=bz.Rotated(k=64))
    >>> out.update.round().tolist(), list(out.quarantined)
    ([1.0, 2.0], [3])
    """
    aggregator = Aggregator(rule, sketch)
    rule = aggregator.rule
    auto = Rotated() if rule.needs_distances else Exact()
    chosen = aggregator.sketch if isinstance(aggregator.sketch, Sketch) else auto
    seed = fresh_seed() if seed is None else checked_seed(seed)
    effective = _streaming(rule, chosen)
    points = {"reference": reference, "trusted": trusted}
    if memory is not None:
        as_bytes(memory)
    if isinstance(rule, Rule):
        rule.check_trusted(trusted is not None)
    for name, point in points.items():
        if point is not None:  # report its faults before the workers begin
            parse_updates([point], **{name: point})

    def caller(workers: Workers, sizes: npt.ArrayLike | None) -> Aggregation[Any]:
        watch = Stopwatch()
        reading = Reading(effective, seed, memory, min(timeout, TIMEOUT), max_bytes_like(reference))
        every = AllParts(workers, reading, points)
        clients, sketched = every.inspect(strict)
        S = client_sizes(sizes, clients.n_sent)
        stats = effective.stats_from(clients, sketched, seed)
        del sketched
        with _target(out, clients) as target:
            if not isinstance(target, str):
                clients.prepared(target, points, 0, None)  # report its faults before the weights are decided

            def closed(clients: Updates, stats: GramStats) -> tuple[Verdict, Any]:
                verdict = decide(
                    rule,
                    clients,
                    stats,
                    sketch=chosen,
                    sizes=S,
                    seed=seed,
                    history=history,
                    strict=strict,
                    watch=watch,
                    recheck_sketch=RECHECK_SKETCH if recheck else None,
                )
                return verdict, every.combined(clients.without(verdict.quarantined), verdict, target)

            verdict, update = until_read(clients, stats, strict, closed)
        watch.lap("combine")
        update = open_update(out) if isinstance(out, Path) else update
        return Aggregation.of(update, verdict, range(clients.n_sent), watch.laps)

    if _is_group(engine):
        from bartizan.sources.partitioned.torch_workers import on_ranks

        return on_ranks(engine, parts, sizes, caller, everywhere=isinstance(out, str))
    return caller(workers_of(engine, parts, timeout), sizes)


def _is_group(engine: Any) -> bool:
    """Whether this is a process group; imports nothing, since its owner has imported torch already."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and isinstance(engine, dist.ProcessGroup)


def _target(out: Any, clients: Updates) -> AbstractContextManager[Any]:
    """Where the update is written: the caller's arrays, a new file, or "workers" as it is."""
    if isinstance(out, str) and out != "workers":
        raise ValueError(f'out must be None, arrays, a pathlib.Path or "workers"; got {quoted(out)}.')
    return create_update(out, clients.like) if isinstance(out, Path) else nullcontext(out)


def _streaming(rule: Rule | CoordinateWise, sketch: Sketch) -> StreamingSketch:
    """The sketch that workers take of their clients."""
    effective = effective_sketch(rule, sketch)
    if not isinstance(effective, StreamingSketch):
        raise ValueError(
            f"{rule!r} needs the distances of all pairs of clients, and {sketch!r} would send every update to every "
            f"worker. Use a projection, such as Rotated(k=4096)."
        )
    return effective

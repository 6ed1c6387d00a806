"""One aggregation of clients that are divided among workers, in three steps.

Each worker sketches its own clients: M_i x k numbers go up. The caller judges once for all. Each worker
sums its own clients with their weights: one sum per worker goes up, by a tree.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan._util.stopwatch import Stopwatch
from bartizan.aggregate import Aggregator, run, sketch_of
from bartizan.judge.judge import RECHECK_SKETCH
from bartizan.measure import Sketch
from bartizan.measure.client_sizes import client_sizes
from bartizan.measure.sketches import StreamingSketch, settled
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.source import Aggregation
from bartizan.sources.partitioned.partitioned_updates import PartitionedUpdates, refusal
from bartizan.sources.partitioned.steps import ReadPlan
from bartizan.sources.partitioned.workers import Workers, workers_of
from bartizan.updates import parse_updates
from bartizan.updates.column_pass import as_bytes
from bartizan.updates.files import create_update, max_bytes_like, open_update
from bartizan.updates.stores import TIMEOUT


def aggregate(
    parts: Any,
    rule: Rule | CoordinateWise | str | None = None,
    *,
    n_byzantine: int | None = None,
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
    """Return one robust update from clients whose updates are on many workers; only sketches and sums travel.

    Weights, scores and quarantined clients are those of one `bartizan.aggregate` call with the same seed and the
    clients of all parts in their order, to the bit in host memory; the update is the same up to rounding. Workers are
    trusted, clients are not.

    Args:
        parts: One part per worker: a list of updates (or a 2-D array), a future or object reference of such a list, or
            a list of futures, of paths, or of functions without arguments, which the worker opens or calls each time
            that it reads the client. With a process group, the part of this rank alone.
        rule: As in `bartizan.aggregate`. A coordinate-wise last stage (`Median`, `Bulyan(trim=True)`) is refused: it
            needs the values of all clients in one place.
        n_byzantine: As in `bartizan.aggregate`: without a rule it takes the default rule.
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
            in .npy or .safetensors: into that file of the caller.
        memory: The most memory for the updates that a worker opens at a time.
        timeout: Seconds in which all workers must answer a step (a process group has its own). A store may
            send a worker no bytes for as long, and at most 60 s.

    >>> import bartizan as bz
    >>> parts = [[[1.0, 2.0], [1.1, 2.1]], [[0.9, 1.9], [float("nan"), 0.0], [70.0, -70.0]]]
    >>> out = aggregate(parts, bz.GeometricMedian(), sketch=bz.Rotated(k=64))
    >>> out.update.round().tolist(), list(out.quarantined)
    ([1.0, 2.0], [3])
    """
    watch, aggregator = Stopwatch(), Aggregator(rule, "auto", n_byzantine=n_byzantine)
    chosen = settled(sketch_of(sketch), aggregator.rule.needs_distances, lambda: False)
    if problem := refusal(aggregator.rule, chosen):
        raise ValueError(problem)
    assert isinstance(aggregator.rule, Rule)
    assert isinstance(chosen, StreamingSketch)
    aggregator.rule.check_trusted(trusted is not None)
    points = {"reference": reference, "trusted": trusted}
    if memory is not None:
        as_bytes(memory)
    for name, point in points.items():
        if point is not None:  # report its faults before the workers begin
            parse_updates([point], **{name: point})
    seed = fresh_seed() if seed is None else checked_seed(seed)
    plan = ReadPlan(chosen, seed, memory, min(timeout, TIMEOUT), max_bytes_like(reference))

    def caller(workers: Workers, sizes: npt.ArrayLike | None) -> Aggregation[Any]:
        source = PartitionedUpdates(workers, plan, points, strict=strict)
        if sizes is not None:
            source.roster = replace(source.roster, sizes=client_sizes(sizes, source.roster.n_sent))
        with create_update(out, source.like) if isinstance(out, Path) else nullcontext(out) as target:
            source.write_to(target)  # reports its faults before the weights are decided
            result = run(source, aggregator, history=history, recheck=RECHECK_SKETCH if recheck else None, watch=watch)
        return replace(result, update=open_update(out)) if isinstance(out, Path) else result

    if _is_group(engine):
        from bartizan.sources.partitioned.torch_workers import on_ranks

        return on_ranks(engine, parts, sizes, caller)
    return caller(workers_of(engine, parts, timeout), sizes)


def _is_group(engine: Any) -> bool:
    """Return whether this is a process group, without an import, since its owner has imported torch already."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and isinstance(engine, dist.ProcessGroup)

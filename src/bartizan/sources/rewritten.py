"""Combine what was measured: find clients whose files were rewritten between the first reading and the last."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.errors import LostUpdatesError
from bartizan.judge.quarantine import ODDS
from bartizan.judge.recheck import TRUSTED, Recheck
from bartizan.kernels.rows import Rows
from bartizan.measure.base import Projection, Sketch, SketchedRows, StreamingSketch
from bartizan.measure.exact import Exact, Norms
from bartizan.measure.geometry import GramStats, norm_limit
from bartizan.measure.probes import PROBES, Probes
from bartizan.rules.base import Decision
from bartizan.updates import ColumnPass, Noise, UpdateRows, Updates, combine
from bartizan.updates.columns import GRANULE, HostRows, Row
from bartizan.updates.files import max_bytes_like, open_paths
from bartizan.updates.layout import Layout, is_array
from bartizan.updates.updates import Blocks

REWRITTEN = "its file changed between measuring and summing"
DEVIATIONS = 16  # of a probe: rounding errors of a sum make larger ones with a probability below 1e-6
FLOAT32_SUMS = 16 * 2.0**-24  # relative error of a sketch that is summed in float32, an upper bound for whole folds
NO_SQUARE = 1e-150  # lengths below have no square
COPIED = 2**21  # bytes of a block of copies


@dataclass(frozen=True, eq=False)
class Measured:
    """What one sketch showed of the clients when they were read first: linear in their updates, about the reference.

    Exact rules take secret `Probes` in the same reading. Projections need none: the sketch of the result must be the
    weighted sum of the clients' sketches. Who knows the seed of a projection can change a file in its null space. That
    shows in the norm of the result, as it does in a client's own, and is bounded as there. A round compares with the
    sketch of its recheck too, whose seed nobody knows.
    """

    sketch: StreamingSketch
    seed: int
    place: Mapping[int, int]
    """The row of each client."""
    sketches: Floats
    squared_norms: Floats

    @classmethod
    def again(cls, recheck: Recheck | None) -> list[Measured]:
        """What the second sketch of a round showed, whose seed nobody could know."""
        # Tiny updates were read times a power of two, which not all of their digits survive.
        if recheck is None or not recheck.readings or any(stats.unit != 1 for stats in recheck.stats.values()):
            return []
        clients = [client for client in recheck.readings if client != TRUSTED]
        read = [recheck.readings[client] for client in clients]
        sketches = np.array([part.sketches[at] for part, at in read])
        squared_norms = np.array([part.squared_norms[at] for part, at in read])
        return [cls.of(recheck.sketch, recheck.seed, clients, SketchedRows(sketches, squared_norms))]

    @classmethod
    def of(cls, sketch: StreamingSketch, seed: int, clients: Sequence[int], read: SketchedRows) -> Measured:
        place = {client: row for row, client in enumerate(clients)}
        return cls(sketch, seed, place, read.sketches, read.squared_norms)

    def agrees(
        self, clients: Sequence[int], factors: Floats, found: SketchedRows, rounding: float, layout: Layout
    ) -> bool:
        """Whether these are the sketch and the squared norm of the clients' sum with these factors, up to rounding.

        `rounding` is a bound of the distance between the exact sum and its rounded numbers. What moves the sum by more
        than 16 times that, or twice for projections, and 16 times the sketches' own errors, is found, but with a small
        probability: four probes all miss a change of c times as much in one coordinate with one below (1 / c)^4.
        """
        rows = [self.place[client] for client in clients]
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = factors @ self.sketches[rows]
            lengths = np.abs(factors) @ np.sqrt(self.squared_norms[rows])
            off = float(_distance(self.sketch, found.sketches[0] - wanted))
            length = float(np.sqrt(found.squared_norms[0]))
            # A projection keeps the norm of rounding errors, which are half of `rounding` at most.
            errors = 2 if isinstance(self.sketch, Projection) else DEVIATIONS
            slack = errors * rounding + DEVIATIONS * _accuracy(layout) * (lengths + length)
            if not off <= slack:  # True for NaN
                return False
        if not isinstance(self.sketch, Projection) or length <= 64 * slack:
            return length < np.inf
        least, most = self.sketch.norm_ratio_range(ODDS)
        shown = float(found.sketches[0] @ found.sketches[0]) / length**2
        return 0.99 * least <= shown <= 1.01 * most


def measure(sketch: Sketch, clients: Updates, seed: int) -> tuple[GramStats, list[Measured]]:
    """The Gram statistics of the clients, and what the files among them must still show when they are summed."""
    if not clients.rewritable:
        return sketch.gram_stats(clients, seed), []
    if isinstance(sketch, Exact):
        gram_of = sketch.gram
        probes, found = Probes(wide=True), np.zeros((len(clients.all_rows), PROBES))
        stats = sketch.gram_stats(clients, seed, partial(probes.add_gram, found))
        read = SketchedRows(found, stats.squared_norms)

        def gram_about(row: int) -> tuple[Floats, Floats]:
            again = np.zeros_like(found)
            return gram_of(clients, row, partial(probes.add_gram, again)), again

        stats = replace(stats, about=_compared(clients, probes, read, gram_about))
        return stats, [Measured.of(probes, seed, clients.clients, read)]
    sketch = probed(sketch)
    assert isinstance(sketch, StreamingSketch)
    return stats_and_measured(sketch, clients, sketch.sketch_rows(clients, seed), seed)


def stats_and_measured(
    sketch: StreamingSketch, clients: Updates, read: SketchedRows, seed: int
) -> tuple[GramStats, list[Measured]]:
    """The same from sketches that were taken before."""
    stats = sketch.stats_from(clients, read, seed)
    if not clients.rewritable:
        return stats, []

    def gram_about(row: int) -> tuple[Floats, Floats]:
        again: Floats = sketch.sketch_rows(clients, seed, clients.all_rows.take([row])).sketches
        return clients.all_rows.inner_products(again), again

    if not stats.norms_only:
        stats = replace(stats, about=_compared(clients, sketch, read, gram_about))
    return stats, [Measured.of(sketch, seed, clients.clients, read)]


def _compared(
    clients: Updates, sketch: Sketch, read: SketchedRows, gram_about: Callable[[int], tuple[Floats, Floats]]
) -> Callable[[int], Floats]:
    """`about` for `GramStats`, which raises LostUpdatesError for files that show something else there than before.

    Sketches about row m are those about the reference minus that of m, up to the digits for which clients are read
    again. Where most differ, the file that has changed is that of m.
    """
    M, lengths = len(clients), np.sqrt(read.squared_norms[: len(clients)])
    usable = read.squared_norms[:M] <= norm_limit(clients.layout.widest)
    told: set[int] = set()

    @lru_cache(maxsize=4)  # as clients leave the round, the same row is asked for again
    def about(row: int) -> Floats:
        gram, again = gram_about(row)
        if row < M:
            with np.errstate(over="ignore", invalid="ignore"):
                off = _distance(sketch, again - (read.sketches - read.sketches[row]))[:M]
                slack = DEVIATIONS * _accuracy(clients.layout) * (lengths + lengths[row]) + NO_SQUARE
                moved = usable & ~(off <= slack)
            blamed = [row] if moved[row] or 2 * moved.sum() > usable.sum() else np.flatnonzero(moved).tolist()
            found = clients.rewritable.intersection(clients.clients[at] for at in blamed) - told
            if found:
                told.update(found)
                raise LostUpdatesError(dict.fromkeys(sorted(found), REWRITTEN))
        return gram

    return about


def opened_paths(updates: Any, reference: Any) -> tuple[Any, frozenset[int]]:
    """The updates, each path or address opened, and which of them are local files, which clients may still rewrite."""
    if is_array(updates):
        return updates, frozenset()
    if isinstance(updates, (Iterator, ValuesView)):
        updates = list(updates)
    files = enumerate(updates) if isinstance(updates, (list, tuple)) else ()
    rewritable = frozenset(at for at, update in files if may_be_rewritten(update))
    return open_paths(updates, max_bytes=max_bytes_like(reference)), rewritable


def may_be_rewritten(update: Any) -> bool:
    """Whether an update, as it was passed, is read from files in place, not from copies."""
    return issubclass(type(update), Path)  # not isinstance, which a class can override


def probed(sketch: Sketch) -> Sketch:
    """The sketch itself, or norms with probes where it only takes norms."""
    return Probes() if isinstance(sketch, Norms) else sketch


def combine_measured(clients: Updates, decision: Decision, noise: Noise, measured: Sequence[Measured]) -> Any:
    """Combine the clients; raise LostUpdatesError for those whose files are not what was measured.

    A result that could have come from other numbers is discarded, and each client is read again, in copies, which are
    both measured and summed: whatever is written meanwhile, the second result is made of what was measured.
    """
    weights, stage = decision.weights, decision.coordinate_stage
    if not (clients.rewritable and clients.rewritable.intersection(clients.clients)):
        return combine(clients, weights, stage, noise)
    used = np.flatnonzero(weights) if stage is None else stage.used(len(clients))
    used = used if len(used) < len(clients) else np.arange(len(clients))
    measured = [one for one in measured if all(clients.clients[row] in one.place for row in used)]
    try:
        if stage is None:
            return combine(clients, weights, stage, noise, partial(_check_sum, clients, weights, measured))
        combination = Combination(clients, measured, used)
        return combine(replace(clients, watch=combination.watch), weights, stage, noise, combination.check)
    except NotMeasuredError:
        copies = MeasuredCopies(clients, measured, used if len(used) else np.array([0]))
        return combine(replace(clients, watch=copies.watch), weights, stage, noise, copies.check)


class NotMeasuredError(Exception):
    """The result is not made of the numbers that were measured."""


def _check_sum(clients: Updates, weights: Floats, measured: Sequence[Measured], floats: Sequence[Any]) -> None:
    """Raise NotMeasuredError unless the result shows what the clients' weighted sum must show."""
    rows = np.flatnonzero(weights)
    used = [clients.clients[row] for row in rows]
    own = HostRows.of([Row(tuple(floats), ())], clients.layout)
    quiet = ColumnPass(clients.column_pass.spare)
    result = replace(clients, rows=own, clients=(0,), integers=((),), trusted=None, column_pass=quiet)
    about_zero = None
    for one in measured:
        found = one.sketch.sketch_part(result, one.seed)
        if about_zero is None:
            centred = result.reference is not None
            bare = replace(result, reference=None, origin=None)
            squares = Norms().sketch_part(bare, 0) if centred else found
            about_zero = float(np.sqrt(squares.squared_norms[0]))
        if not one.agrees(used, weights[rows], found, _rounding(clients, about_zero), clients.layout):
            raise NotMeasuredError


def _distance(sketch: Sketch, difference: Array) -> Array:
    """The distance between sketches: of projections the norm, of probes, which have no common scale, the largest."""
    if isinstance(sketch, Projection):
        return np.asarray(np.linalg.norm(difference, axis=-1))
    return np.abs(difference).max(axis=-1, initial=0.0)


def _accuracy(layout: Layout) -> float:
    """A bound of the relative error of sketches and probes."""
    return max(FLOAT32_SUMS if layout.widest == np.float32 else 0.0, 2.0**-53 * (16 + math.sqrt(layout.dim)))


def _rounding(clients: Updates, length: float) -> float:
    """How far rounding to the coarsest of the dtypes can move a result of this norm; tiny numbers lose all digits."""
    unit, least = 0.0, 0.0
    for entry in clients.layout.float_entries:
        if entry.dtype == "bfloat16":
            unit, least = max(unit, 2.0**-8), max(least, 2.0**-133)
        else:
            info = np.finfo(entry.dtype)
            unit, least = max(unit, float(info.eps)), max(least, float(info.smallest_subnormal))
    return unit * length + least * float(np.sqrt(clients.layout.dim))


class Combination:
    """A secret combination of the rows that a coordinate-wise stage is made of, taken from the copies that it sorts."""

    def __init__(self, clients: Updates, measured: Sequence[Measured], used: Array) -> None:
        self.clients, self.measured = clients, measured
        self.used = [clients.clients[row] for row in used]
        generator = np.random.default_rng()  # fresh entropy: nobody could know the factors
        factors = generator.uniform(1, 2, len(used)) * generator.choice([-1.0, 1.0], len(used))
        self.factors = factors.astype(clients.layout.widest)
        self.found = [SketchedRows(np.zeros((1, one.sketches.shape[1])), np.zeros(1)) for one in measured]
        self.complete, self.origin = True, 0.0

    def watch(self, _: UpdateRows, blocks: Blocks) -> Blocks:
        from bartizan.kernels import cpu

        factors = self.factors
        for start, block in blocks:
            assert isinstance(block, Rows)
            total = np.zeros(block.width, block.dtype)
            seen: list[int] = []

            def see(
                low: int, values: Array, columns: int, order: Array | None, total: Array = total, seen: Any = seen
            ) -> None:
                columns = min(len(values) // len(factors), columns)
                cpu.add_strip(values, factors if order is None else factors[order], total[low : low + columns])
                seen.append(columns)

            yield start, replace(block, seen=see)
            self.complete &= sum(seen) == block.width  # a rule's own kernel may show nothing
            origin = self.clients.origin_at(start, start + block.width)
            if origin is not None:
                total -= factors.sum(dtype=np.float64) * origin
                with np.errstate(over="ignore"):
                    self.origin += float(np.square(origin, dtype=np.float64).sum())
            for one, found in zip(self.measured, self.found, strict=True):
                one.sketch.add(Rows.of(total[None]), None, start, one.seed, found.sketches, found.squared_norms)

    def check(self, _: Sequence[Any]) -> None:
        layout = self.clients.layout
        info, lengths = np.finfo(layout.widest), float(np.abs(self.factors).sum()) * math.sqrt(self.origin)
        rounding = float(info.eps) * lengths + float(info.smallest_subnormal) * math.sqrt(layout.dim)
        for one, found in zip(self.measured, self.found, strict=True):
            if not (self.complete and one.agrees(self.used, self.factors, found, rounding, layout)):
                raise NotMeasuredError


class MeasuredCopies:
    """Copies of the rows, block by block, which are measured again and handed on to be combined.

    The sketches need wide blocks, and what is combined narrow ones. So a row is copied twice, and both copies must have
    the same digest.
    """

    def __init__(self, clients: Updates, measured: Sequence[Measured], used: Array) -> None:
        self.clients, self.measured = clients, measured
        self.used = [clients.clients[row] for row in used]
        self.changed: set[int] = set()

    def check(self, _: Sequence[Any]) -> None:
        if self.changed:
            raise LostUpdatesError(dict.fromkeys(sorted(self.changed), REWRITTEN))

    def watch(self, rows: UpdateRows, _: Blocks) -> Blocks:
        assert isinstance(rows, HostRows)
        clients = self.used
        every = range(len(rows))
        found = [
            SketchedRows(np.zeros((len(rows), one.sketches.shape[1])), np.zeros(len(rows))) for one in self.measured
        ]
        unit = max(one.sketch.unit for one in self.measured)
        narrow = max(GRANULE, COPIED // (rows.dtype.itemsize * len(rows)) // GRANULE * GRANULE)
        dim = self.clients.layout.dim
        for begin in range(0, dim, unit):
            end = min(begin + unit, dim)
            digests = [self._measure(rows.take([row]), row, begin, end, narrow, found) for row in every]
            for nth, start in enumerate(range(begin, end, narrow)):
                copies = np.empty((len(rows), min(start + narrow, end) - start), rows.dtype)
                for row in every:
                    self._copy(rows.take([row]), start, copies[row : row + 1])
                    if _digest(copies[row]) != digests[row][nth]:
                        self._blame(clients[row])
                yield start, Rows.of(copies)
        for one, again in zip(self.measured, found, strict=True):
            for row, client in enumerate(clients):
                first = one.place.get(client)
                if first is None:  # read, at a weight of 0
                    continue
                same = np.array_equal(one.sketches[first], again.sketches[row])
                if isinstance(one.sketch, Projection):
                    same = same and one.squared_norms[first] == again.squared_norms[row]
                if not same:
                    self._blame(client)

    def _measure(
        self, row: HostRows, at: int, begin: int, end: int, narrow: int, found: Sequence[SketchedRows]
    ) -> list[bytes]:
        """Add a copy of these columns of a row to its sketches; return the digests of its narrow blocks."""
        copy = np.empty((1, end - begin), row.dtype)
        self._copy(row, begin, copy)
        origin = self.clients.origin_at(begin, end)
        for one, again in zip(self.measured, found, strict=True):
            granule = max(GRANULE, one.sketch.multiple_of)
            most = one.sketch.widest_block(trusted=self.clients.trusted is not None) or end - begin + granule
            step = max(granule, most // granule * granule)  # the blocks of the first reading
            for low in range(0, end - begin, step):
                part = slice(low, min(low + step, end - begin))
                about = None if origin is None else origin[part]
                sums = again.sketches[at : at + 1], again.squared_norms[at : at + 1]
                one.sketch.add(Rows.of(copy[:, part]), about, begin + low, one.seed, *sums)
        return [_digest(copy[0, low : low + narrow]) for low in range(0, end - begin, narrow)]

    def _copy(self, row: HostRows, start: int, out: Array) -> None:
        stop = start + out.shape[1]
        row.part(start, stop).copy_into(out)
        self.clients.column_pass.release(self.clients.layout, row.arrays, start, stop)

    def _blame(self, client: int) -> None:
        if client in self.clients.rewritable:
            self.changed.add(client)


def _digest(numbers: Array) -> bytes:
    return hashlib.blake2b(numbers.view(np.uint8).data, digest_size=16).digest()

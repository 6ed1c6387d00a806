"""Combine what was measured: find clients whose files were rewritten between the first reading and the last."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.errors import LostClients
from bartizan.kernels.rows import Rows
from bartizan.measure.measurements import Measurements
from bartizan.measure.probes import PROBES, Probes
from bartizan.measure.sketches import ColumnSketch, Exact, Norms, Projection, Sketch, StreamingSketch
from bartizan.rules.base import Decision
from bartizan.sources.witness import Witness, rounding_of_sum
from bartizan.updates import ColumnPass, Noise, UpdateRows, Updates, combine
from bartizan.updates.columns import GRANULE, HostRows, Row
from bartizan.updates.updates import Blocks

REWRITTEN = "its file changed between measuring and summing"
COPIED = 2**21  # bytes of a block of copies


class Witnesses:
    """The first measurements of one round by each sketch and seed, kept where clients may rewrite their files."""

    def __init__(self, clients: Updates) -> None:
        self.clients = clients
        self.seen: dict[tuple[Any, int], Witness] = {}
        self.probes: dict[Any, Probes] = {}
        self.told: set[int] = set()

    def probing(self, sketch: Sketch) -> StreamingSketch:
        """The sketch that is compared: the same if it projects, else secret probes."""
        if isinstance(sketch, Projection):
            return sketch
        wide = not isinstance(sketch, StreamingSketch)
        return self.probes.setdefault(sketch, Probes(wide=wide))

    def keep(self, sketch: Sketch, shown: Measurements, measured: Measurements | None = None) -> Measurements:
        """Keep what clients showed to the probing sketch; return their measurements, its norms if not given."""
        new, key = Witness(self.probing(sketch), shown), (sketch, shown.seed)
        self.seen[key] = self.seen[key].with_more(new) if key in self.seen else new
        if measured is not None or isinstance(sketch, Projection):
            return measured or shown
        return replace(shown, sketches=shown.sketches[:, :0], sketch=sketch)

    def measure(self, sketch: ColumnSketch, clients: Updates, seed: int) -> Measurements:
        """Measure clients, and keep what they showed."""
        return self.keep(sketch, *self._measured(sketch, clients, seed))

    def measure_about(self, sketch: ColumnSketch, clients: Updates, seed: int, client: int) -> Measurements:
        """Measure clients about one of them; raise LostClients for those whose files have changed meanwhile."""
        rows = self.clients.rows.take([self.clients.clients.index(client)])
        shown, measured = self._measured(sketch, clients, seed, rows)
        moved = self.seen[sketch, seed].moved(clients.layout, client, shown)
        found = clients.rewritable.intersection(moved) - self.told
        if found:
            self.told.update(found)
            raise LostClients(dict.fromkeys(sorted(found), REWRITTEN))
        return measured or shown  # norms alone are never asked for about a client

    def _measured(
        self, sketch: ColumnSketch, clients: Updates, seed: int, about: UpdateRows | None = None
    ) -> tuple[Measurements, Measurements | None]:
        """Return the measurements by the probing sketch, and by the rule's sketch if that is another one."""
        probing = self.probing(sketch)
        if not isinstance(sketch, Exact):
            return probing.measure(clients, seed, about), None
        assert isinstance(probing, Probes)
        found = np.zeros((len(clients.all_rows), PROBES))
        measured = sketch.measure(clients, seed, about, partial(probing.add_gram, found))
        return replace(measured, sketches=found, gram=None, trusted_dots=None), measured

    def combine(self, clients: Updates, decision: Decision, noise: Noise) -> Any:
        """Combine the clients; raise LostClients for those whose files are not what was measured.

        A result that could have come from other numbers is discarded, and each client is read again, in copies, which
        are both measured and summed: whatever is written meanwhile, the second result is made of what was measured.
        """
        weights, stage = decision.weights, decision.coordinate_stage
        used = np.flatnonzero(weights) if stage is None else stage.used(len(clients))
        used = used if len(used) < len(clients) else np.arange(len(clients))
        seen = [one for one in self.seen.values() if all(clients.clients[row] in one.place for row in used)]
        try:
            if stage is None:
                return combine(clients, weights, stage, noise, partial(_check_sum, clients, weights, seen))
            combination = Combination(clients, seen, used)
            return combine(replace(clients, watch=combination.watch), weights, stage, noise, combination.check)
        except NotMeasuredError:
            copies = MeasuredCopies(clients, seen, used if len(used) else np.array([0]))
            return combine(replace(clients, watch=copies.watch), weights, stage, noise, copies.check)


def may_be_rewritten(update: Any) -> bool:
    """Return whether an update, as it was passed, is read from files in place, not from copies."""
    return issubclass(type(update), Path)  # not isinstance, which a class can override


def _nothing(witness: Witness, rows: int) -> Measurements:
    """Sums of no numbers, for a witness's sketch to add to."""
    k = witness.measured.sketches.shape[1]
    return Measurements(tuple(range(rows)), np.zeros(rows), np.zeros((rows, k)))


class NotMeasuredError(Exception):
    """The result is not made of the numbers that were measured."""


def _check_sum(clients: Updates, weights: Floats, measured: Sequence[Witness], floats: Sequence[Any]) -> None:
    """Raise NotMeasuredError unless the result's sketch is, up to rounding, the clients' weighted sum of sketches."""
    rows = np.flatnonzero(weights)
    used = [clients.clients[row] for row in rows]
    own = HostRows.of([Row(tuple(floats), ())], clients.layout)
    quiet = ColumnPass(clients.column_pass.spare)
    result = replace(clients, rows=own, clients=(0,), integers=((),), trusted=None, column_pass=quiet)
    about_zero = None
    for one in measured:
        found = one.sketch.measure(result, one.seed)
        if about_zero is None:
            centred = result.reference is not None
            bare = replace(result, reference=None, origin=None)
            squares = Norms().measure(bare, 0) if centred else found
            about_zero = float(np.sqrt(squares.squared_norms[0]))
        if not one.agrees(used, weights[rows], found, rounding_of_sum(clients, about_zero), clients.layout):
            raise NotMeasuredError


class Combination:
    """A secret combination of the rows that a coordinate-wise stage is made of, taken from the copies that it sorts."""

    def __init__(self, clients: Updates, measured: Sequence[Witness], used: Array) -> None:
        self.clients, self.measured = clients, measured
        self.used = [clients.clients[row] for row in used]
        generator = np.random.default_rng()  # fresh entropy: nobody could know the factors
        factors = generator.uniform(1, 2, len(used)) * generator.choice([-1.0, 1.0], len(used))
        self.factors = factors.astype(clients.layout.widest)
        self.found = [_nothing(one, 1) for one in measured]
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

    def __init__(self, clients: Updates, measured: Sequence[Witness], used: Array) -> None:
        self.clients, self.measured = clients, measured
        self.used = [clients.clients[row] for row in used]
        self.changed: set[int] = set()

    def check(self, _: Sequence[Any]) -> None:
        if self.changed:
            raise LostClients(dict.fromkeys(sorted(self.changed), REWRITTEN))

    def watch(self, rows: UpdateRows, _: Blocks) -> Blocks:
        assert isinstance(rows, HostRows)
        clients = self.used
        every = range(len(rows))
        found = [_nothing(one, len(rows)) for one in self.measured]
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
                same = np.array_equal(one.measured.sketches[first], again.sketches[row])
                if isinstance(one.sketch, Projection):
                    same = same and one.measured.squared_norms[first] == again.squared_norms[row]
                if not same:
                    self._blame(client)

    def _measure(
        self, row: HostRows, at: int, begin: int, end: int, narrow: int, found: Sequence[Measurements]
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

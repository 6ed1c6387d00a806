"""Updates that arrive one by one: each is measured on arrival, and kept until all are judged."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan._util.text import short
from bartizan.errors import server_error
from bartizan.measure import Projection, Sketch
from bartizan.measure.geometry import norm_limit
from bartizan.measure.measurements import Measurements, distance_bytes
from bartizan.measure.probes import Probes
from bartizan.measure.sketches import Norms, Rotated, StreamingSketch, settled
from bartizan.source import WHOLE, AnyRule, Reading, Roster
from bartizan.sources.local import LocalUpdates, roster_of
from bartizan.updates import ColumnPass, Progress, Updates, parse_updates
from bartizan.updates.column_pass import UNLIMITED, as_bytes
from bartizan.updates.layout import Layout, Unreadable, as_numpy, like_leaf, on_gpu, plain_and_leaves, rebuild
from bartizan.updates.parse import ParsedUpdate, alone, parse_one, reason_of

MAX_LAYOUTS = 64  # kept for the next client: each may send another


@dataclass(frozen=True)
class StoredUpdate:
    """One client's update as a round keeps it, in memory or mapped, with its sketch."""

    update: Any
    """The parsed update; the update itself where it must be parsed again at close."""
    size: float
    layout: Layout | None = None
    measured: Measurements | None = None
    rewritable: bool = False
    """True if it stays in files that its client may rewrite."""
    reason: str | None = None
    """The reason for quarantine, as far as the update alone shows it."""


class Arrivals:
    """Measures the updates of one round as they come, in any thread, by one sketch and seed."""

    def __init__(
        self,
        rule: AnyRule,
        sketch: Sketch | str,
        seed: int | None,
        points: dict[str, Any],
        strict: bool,
        memory: int | str | None,
    ) -> None:
        for name, point in points.items():  # report their faults now, not with the first client
            parse_updates([point], **{name: point})
        self.rule, self.points, self.strict = rule, points, strict
        # The number of clients is not known yet, and sketching while other updates arrive costs next to no time.
        self.sketch = settled(sketch, rule.needs_distances, lambda: False)
        self.seed = fresh_seed() if seed is None else checked_seed(seed)
        self.probing = Probes() if isinstance(self.sketch, Norms) else self.sketch
        self._memory = None if memory is None else as_bytes(memory)
        self._server_rows: tuple[Layout, dict[str, Any]] | None = None
        self._layouts: dict[Any, Layout] = {}
        if isinstance(self.sketch, Norms | Rotated):
            load_kernels(self.sketch, tuple(points))

    def forget(self) -> None:
        """Drop the server's own updates."""
        self.points, self._server_rows = {}, None

    def measured(self, update: Any, size: float, rewritable: bool) -> StoredUpdate:
        """Measure one update in its own layout; whether that is the round's is known when the round is closed."""
        if len(self._layouts) > MAX_LAYOUTS:
            self._layouts = {}
        try:
            # Parsed only once: the client's own container may answer differently the next time.
            parsed = update if type(update) is ParsedUpdate else parse_one(update, self._layouts)
        except Exception as error:  # a client's container may raise anything
            return StoredUpdate(None, size, reason=reason_of(error))
        layout, sketch = parsed.layout, self.probing if rewritable else self.sketch
        if not (layout.dim and isinstance(sketch, StreamingSketch)):  # other clients' updates may hold floats
            return StoredUpdate(parsed, size, layout, rewritable=rewritable)
        column_pass = UNLIMITED if self._memory is None else ColumnPass(self._memory)
        try:
            points = self._points_like(parsed, column_pass) if self.points else {}
        except ValueError:  # the reference and the trusted update were checked when the round was opened
            reason = "its names, shapes or kinds of numbers are not those of the reference or the trusted update"
            return StoredUpdate(parsed, size, layout, rewritable=rewritable, reason=reason)
        own = alone(parsed, column_pass, **points)
        measured = sketch.measure(own, self.seed)
        fit = (own.rows.on_gpu and not self.strict) or measured.squared_norms[0] <= norm_limit(layout.widest)
        return StoredUpdate(parsed, size, layout, measured, rewritable, None if fit else own.fault(0))

    def renewed(self, one: StoredUpdate) -> StoredUpdate:
        """Return an update that may have been measured by another seed as measured by this one, from its bytes."""
        if one.measured is None or one.measured.seed == self.seed:
            return one
        return self.measured(one.update, one.size, one.rewritable)

    def _points_like(self, parsed: ParsedUpdate, column_pass: ColumnPass) -> dict[str, Any]:
        """Return the reference and the trusted update in this layout, kept for the next client that has it."""
        known = self._server_rows
        if known is None or not (known[0] is parsed.layout or known[0] == parsed.layout):
            own = parse_updates([parsed.plain], **self.points, column_pass=column_pass).with_contiguous_reference()
            # Nothing of the client's update is kept.
            known = parsed.layout, {"reference": own.reference, "trusted": own.trusted, "origin": own.origin}
            self._server_rows = known
        return known[1]

    def source(
        self,
        stored: Sequence[StoredUpdate],
        ids: Sequence[Any],
        failed: Mapping[Any, str],
        recheck: Projection | None = None,
        out: Any = None,
        progress: Progress | None = None,
    ) -> ArrivedUpdates:
        """Return the updates that arrived as a source, in this order."""
        column_pass = ColumnPass.of(self._memory, progress)
        updates = [one.update for one in stored]
        clients = parse_updates(updates, **self.points, strict=self.strict, column_pass=column_pass)
        clients = replace(clients, rewritable=frozenset([at for at, one in enumerate(stored) if one.rewritable]))
        sizes = np.array([one.size for one in stored])
        roster = roster_of(clients, ids=ids, sizes=sizes, failed=dict(failed), strict=self.strict)
        size, unit = self.sketch.working_set()
        if size and recheck is not None:
            size += recheck.k
        clients = clients if out is None else clients.with_target(out, self.points)
        M, per_pair = len(clients.all_rows), self.rule.bytes_per_pair
        clients.limit_memory(
            size, unit, distances=distance_bytes(M, size, per_pair) if self.rule.needs_distances else 0
        )
        return ArrivedUpdates(clients, roster, self, stored)


class ArrivedUpdates(LocalUpdates):
    """Updates of this process that were measured when they arrived."""

    def __init__(self, updates: Updates, roster: Roster, arrivals: Arrivals, stored: Sequence[StoredUpdate]) -> None:
        super().__init__(updates, roster)
        self.arrivals, self.stored = arrivals, stored
        if self.witnesses is not None and isinstance(arrivals.probing, Probes):
            self.witnesses.probes[arrivals.sketch] = arrivals.probing

    def settle(self, rule: AnyRule, sketch: Sketch | str, seed: int | None) -> tuple[Sketch, int]:
        """Return the sketch and the seed that were settled before the first update arrived."""
        return self.arrivals.sketch, self.arrivals.seed

    def measure(self, sketch: Sketch, seed: int, reading: Reading = WHOLE) -> Measurements:
        probing = self.arrivals.sketch if self.witnesses is None else self.arrivals.probing
        if reading.clients is not None or not isinstance(probing, StreamingSketch):
            return super().measure(sketch, seed, reading)
        if self.updates.column_pass.watched:
            self._begin(seed)
        own, (k, _) = self.updates, probing.working_set()
        parts = []
        for row, client in enumerate(own.clients):
            measured = self.stored[client].measured
            # Entries may be in another order; and beside files, norms in memory were not probed.
            if measured is None or self.stored[client].layout != own.layout or measured.sketches.shape[1] != k:
                measured = probing.measure(own.only([row]), seed)
            parts.append(replace(measured, clients=(client,)))
        shown = Measurements.joined(parts)
        if self.witnesses is None:
            return shown
        return self.witnesses.keep(sketch, shown)


@lru_cache
def load_kernels(sketch: Norms | Rotated, points: tuple[str, ...]) -> None:
    """Measure one number, so that kernels are compiled before the first client waits and a deadline runs."""
    one: Any = [np.ones(1, np.float32)]
    like_points: dict[str, Any] = dict.fromkeys(points, one)
    sketch.measure(parse_updates([one], **like_points), 0)


def copied(update: Any) -> Any:
    """Copy an update into plain containers, before any number is read; `Unreadable` if that can't be done."""
    try:
        plain, leaves = plain_and_leaves(update)
        Layout.of(leaves)
        arrays = {path: leaf.clone() if on_gpu(leaf) else np.asarray(as_numpy(leaf)) for path, leaf in leaves.items()}
    except Exception as error:  # a client's container may raise anything
        return Unreadable(reason_of(error))
    try:
        copies = {path: array.copy() if type(array) is np.ndarray else array for path, array in arrays.items()}
    except MemoryError as full:
        size = sum(leaf.nbytes for leaf in leaves.values())
        what = f"There is no memory for a copy of an update of {size:,} bytes"
        raise server_error(OSError(errno.ENOMEM, short(full)), what) from full
    try:
        return rebuild(plain, lambda path, leaf: like_leaf(copies[path], leaf))
    except Exception as error:  # and so may its tensors
        return Unreadable(reason_of(error))

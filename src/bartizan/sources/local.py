"""Updates in the memory and the files of this process, or on its GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan._util.types import Floats
from bartizan.errors import TooFewClientsError
from bartizan.measure import Exact, Sketch
from bartizan.measure.client_sizes import client_sizes, shares_of, sizes_of
from bartizan.measure.measurements import Measurements, distance_bytes, rows_pay
from bartizan.measure.sketches import ColumnSketch, exact_is_faster, settled, usual_projection
from bartizan.source import WHOLE, AnyRule, Combined, Judgement, Reading, Roster
from bartizan.sources.rewritten import Witnesses, may_be_rewritten
from bartizan.updates import ColumnPass, Noise, Progress, Updates, combine, parse_updates
from bartizan.updates.build import sum_and_norms
from bartizan.updates.column_pass import UNLIMITED
from bartizan.updates.files import max_bytes_like, open_paths, open_point
from bartizan.updates.layout import Unreadable, is_array
from bartizan.updates.parse import InspectedUpdates, as_list

STATE_DICT_ADVICE = (
    "A state dict is one client's update: pass a list of several, or a dict by client id: {'amy': state_dict}."
)


class LocalUpdates:
    """Parsed updates, which this process reads in place."""

    def __init__(self, updates: Updates, roster: Roster | None = None) -> None:
        self.updates = updates
        self.roster = roster or roster_of(updates)
        self.witnesses = Witnesses(updates) if updates.rewritable else None
        self._first_seed: int | None = None
        self._sums_early = False
        self._sum: tuple[Floats, Any] | None = None
        """The sum of all clients by these weights, made while they were measured."""

    def refuses(self, rule: AnyRule, sketch: Sketch) -> str | None:
        if isinstance(sketch, ColumnSketch):
            return None
        return (
            f"{sketch!r} does not sketch whole updates: use Exact() or a projection such as Rotated(k=4096); adapters "
            "go to bartizan.lora.aggregate, or with adapters=LoRA(...) to a strategy."
        )

    def settle(self, rule: AnyRule, sketch: Sketch | str, seed: int | None) -> tuple[Sketch, int]:
        own = self.updates
        size = len(own.clients), own.layout.dim, "cuda" if own.rows.on_gpu else "cpu"
        usual = usual_projection(*size[:2])
        chosen = settled(sketch, rule.needs_distances, lambda: exact_is_faster(*size), usual)
        if own.column_pass.spare is not None:
            k, unit = chosen.working_set()
            pairs = distance_bytes(len(own.all_rows), k or own.layout.dim, rule.bytes_per_pair)
            own.limit_memory(k, unit, distances=pairs if rule.needs_distances else 0)
        self._sums_early = rule.weighs_by_size and not (
            own.on_gpu or own.column_pass.watched or own.watch or own.trusted or own.target or self.witnesses
        )
        return chosen, fresh_seed() if seed is None else checked_seed(seed)

    def measure(self, sketch: Sketch, seed: int, reading: Reading = WHOLE) -> Measurements:
        clients, about, scale = reading
        assert isinstance(sketch, ColumnSketch)
        updates = self._updates(clients, scale)
        if updates.column_pass.watched:
            self._begin(seed)
        if self._sums_early and clients is None and scale is None:
            return self._summed(updates, sketch, seed)
        witnesses = self.witnesses if scale is None else None
        if witnesses is not None:
            if about is None:
                return witnesses.measure(sketch, updates, seed)
            return witnesses.measure_about(sketch, updates, seed, about)
        centre = None
        if about is not None:
            every = self._updates(None, scale)
            centre = every.rows.take([every.clients.index(about)])
        M, p = len(self.updates.clients), updates.layout.dim
        if isinstance(sketch, Exact) and rows_pay(M, p) and not (updates.on_gpu or self.witnesses):
            return sketch.rows(updates, seed, centre)
        return sketch.measure(updates, seed, centre)

    def _summed(self, updates: Updates, sketch: ColumnSketch, seed: int) -> Measurements:
        """Measure norms, and in the same read sum all clients by the weights that they get if none is quarantined."""
        sizes = None if self.roster.sizes is None else self.roster.sizes[list(updates.clients)]
        try:
            weights = shares_of(sizes, len(updates))
        except ValueError:  # of a client that may yet be quarantined
            return sketch.measure(updates, seed)
        floats, norms = sum_and_norms(updates, weights)
        self._sum = weights, floats
        return Measurements(updates.clients, norms, np.empty((len(norms), 0)), sketch=sketch, seed=seed)

    def _begin(self, seed: int) -> None:
        """Name the stage that progress reports: a reading by another seed than the first is a recheck."""
        if self._first_seed is None:
            self.updates.column_pass.begin("sketch")
            self._first_seed = seed
        elif seed != self._first_seed:
            self.updates.column_pass.begin("recheck")

    def explain(self, clients: Sequence[int]) -> dict[int, str]:
        rows = {client: row for row, client in enumerate(self.updates.clients)}
        return {client: self.updates.fault(rows[client]) for client in clients}

    def combine(self, judgement: Judgement) -> Combined:
        updates, decision = self._updates(judgement.clients), judgement.decision
        noise = Noise(decision.noise, judgement.seed)
        if self.witnesses is not None and updates.rewritable.intersection(updates.clients):
            return Combined(self.witnesses.combine(updates, decision, noise))
        floats = None
        if self._sum is not None and updates is self.updates and np.array_equal(decision.weights, self._sum[0]):
            floats = self._sum[1]
        return Combined(combine(updates, decision.weights, decision.coordinate_stage, noise, floats=floats))

    def _updates(self, clients: Sequence[int] | None, scale: float | None = None) -> Updates:
        """Return the updates of these clients, or of all that fit."""
        own = self.updates
        if clients is not None and len(clients) < len(own.clients):
            row_of = {client: row for row, client in enumerate(own.clients)}
            own = own.only([row_of[client] for client in clients])
        return own if scale is None else own.scaled(scale)


def open_updates(
    updates: Any,
    *,
    sizes: Any = None,
    reference: Any = None,
    trusted: Any = None,
    strict: bool = False,
    out: Any = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> LocalUpdates:
    """Open the updates in any container that `aggregate` takes; check every argument and read no number."""
    ids = list(updates) if isinstance(updates, Mapping) else None
    if ids is not None:
        updates = clients_by_id(updates)
        sizes = sizes_of(ids, sizes) if isinstance(sizes, Mapping) else sizes
    points = {} if reference is None and trusted is None else open_points(reference=reference, trusted=trusted)
    rewritable: frozenset[int] = frozenset()
    if not isinstance(updates, np.ndarray):
        updates, rewritable = opened_paths(updates, points.get("reference"))
    column_pass = UNLIMITED if memory is None and progress is None else ColumnPass.of(memory, progress)
    clients = parse_updates(updates, **points, strict=strict, column_pass=column_pass)
    if rewritable:
        clients = replace(clients, rewritable=rewritable)
    if out is not None:
        clients = clients.with_target(out, points)
    S = None if sizes is None else client_sizes(sizes, clients.n_sent)
    return LocalUpdates(clients, roster_of(clients, ids=ids, sizes=S, strict=strict))


def open_points(**points: Any) -> dict[str, Any]:
    """Return the server's own updates, opened if they are paths or addresses."""
    return {name: open_point(point) for name, point in points.items() if point is not None}


def roster_of(updates: Updates, **more: Any) -> Roster:
    """Return the roster of updates that were parsed."""
    layout = updates.layout
    return Roster(updates.n_sent, layout.dim, layout.widest, updates.quarantined, on_gpu=updates.rows.on_gpu, **more)


def opened_paths(updates: Any, reference: Any) -> tuple[Any, frozenset[int]]:
    """Open paths and addresses among the updates; return also which are local files, which clients may rewrite."""
    if is_array(updates):
        return updates, frozenset()
    if isinstance(updates, (Iterator, ValuesView)):
        updates = list(updates)
    files = enumerate(updates) if isinstance(updates, (list, tuple)) else ()
    rewritable = frozenset(at for at, update in files if may_be_rewritten(update))
    return open_paths(updates, max_bytes=max_bytes_like(reference)), rewritable


def clients_by_id(updates: Mapping[Any, Any]) -> list[Any]:
    """Return the updates in the order of the dict; raise if they are more likely the entries of a state dict.

    All are parsed but paths, which clients may still rewrite: `aggregate` opens those itself.

    A minority of the clients must not be able to end a round, so a state dict is known by torch's metadata, or by that
    no form is shared by more than half of its values. One of equal shapes passes: its entries are averaged as if each
    was one client's whole update. That shows at once: the result is one array, and its `clients` are the entries.
    """
    if hasattr(updates, "_metadata"):  # torch gives it to every state dict
        raise TypeError(f"Wanted several clients' updates, got one state dict of torch. {STATE_DICT_ADVICE}")
    sent = as_list(list(updates.values()))
    inspected = InspectedUpdates.of(open_paths(sent))
    out = inspected.unreadable
    if inspected.parsed:
        out = inspected.quarantined(inspected.common_layout(None))
    if 2 * len(out) >= len(sent):
        raise TooFewClientsError(
            f"A dict is read as clients by id, of whom more than half must send one form; of {len(sent)} values "
            f"{len(sent) - len(out)} have the commonest. {STATE_DICT_ADVICE}",
            out,
        )
    return [
        one if issubclass(type(one), Path) else inspected.parsed.get(client, Unreadable(out.get(client, "")))
        for client, one in enumerate(sent)
    ]

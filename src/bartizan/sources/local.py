"""Updates in the memory and the files of this process, or on its GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from dataclasses import replace
from typing import Any

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan.measure import Sketch
from bartizan.measure.base import ColumnSketch
from bartizan.measure.choose import exact_is_faster, settled
from bartizan.measure.client_sizes import client_sizes, sizes_of
from bartizan.measure.measurements import Measurements
from bartizan.source import AnyRule, Combined, Judgement, Roster
from bartizan.sources.rewritten import Witnesses, may_be_rewritten
from bartizan.updates import ColumnPass, Noise, Progress, Updates, combine, parse_updates
from bartizan.updates.by_id import clients_by_id
from bartizan.updates.files import max_bytes_like, open_paths, open_point
from bartizan.updates.layout import is_array


class LocalUpdates:
    """Updates that were parsed, whose numbers this process reads where they are."""

    def __init__(self, updates: Updates, roster: Roster | None = None) -> None:
        self.updates = updates
        self.roster = roster or roster_of(updates)
        self.witnesses = Witnesses(updates) if updates.rewritable else None
        self._first_seed: int | None = None

    def refuses(self, rule: AnyRule, sketch: Sketch) -> str | None:
        if isinstance(sketch, ColumnSketch):
            return None
        return (
            f"{sketch!r} does not sketch whole updates: use Exact() or a projection such as Rotated(k=4096); adapters "
            "go to bartizan.lora.aggregate, or with adapters=LoRA(...) to a strategy."
        )

    def settle(self, rule: AnyRule, sketch: Sketch | str, seed: int | None) -> tuple[Sketch, int]:
        own = self.updates
        size = len(own), own.layout.dim, "cuda" if own.on_gpu else "cpu"
        chosen = settled(sketch, rule.needs_distances, lambda: exact_is_faster(*size))
        own.limit_memory(*chosen.working_set(), distances=rule.needs_distances)
        return chosen, fresh_seed() if seed is None else checked_seed(seed)

    def measure(
        self,
        sketch: Sketch,
        seed: int,
        *,
        clients: Sequence[int] | None = None,
        about: int | None = None,
        scale: float | None = None,
    ) -> Measurements:
        assert isinstance(sketch, ColumnSketch)
        updates = self._updates(clients, scale)
        self._begin(seed)
        witnesses = self.witnesses if scale is None else None
        if about is None:
            return sketch.measure(updates, seed) if witnesses is None else witnesses.measure(sketch, updates, seed)
        if witnesses is not None:
            return witnesses.measure_about(sketch, updates, seed, about)
        every = self._updates(None, scale)
        return sketch.measure(updates, seed, every.rows.take([every.clients.index(about)]))

    def _begin(self, seed: int) -> None:
        """Tell the progress of a reading, which is a recheck if it is by another seed than the first."""
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
        return Combined(combine(updates, decision.weights, decision.coordinate_stage, noise))

    def _updates(self, clients: Sequence[int] | None, scale: float | None = None) -> Updates:
        """The updates of these clients, or of all that fit."""
        own = self.updates
        if clients is not None and len(clients) < len(own):
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
    """The updates in any container that `aggregate` takes; every argument is checked, and no number read."""
    ids = list(updates) if isinstance(updates, Mapping) else None
    if ids is not None:
        updates = clients_by_id(updates)
        sizes = sizes_of(ids, sizes) if isinstance(sizes, Mapping) else sizes
    points = {"reference": open_point(reference), "trusted": open_point(trusted)}
    updates, rewritable = opened_paths(updates, points["reference"])
    clients = parse_updates(updates, **points, strict=strict, column_pass=ColumnPass.of(memory, progress))
    if rewritable:
        clients = replace(clients, rewritable=rewritable)
    S = None if sizes is None else client_sizes(sizes, clients.n_sent)
    return LocalUpdates(clients.with_target(out, points), roster_of(clients, ids=ids, sizes=S, strict=strict))


def roster_of(updates: Updates, **more: Any) -> Roster:
    """The roster of updates that were parsed."""
    layout = updates.layout
    return Roster(updates.n_sent, layout.dim, layout.widest, updates.quarantined, on_gpu=updates.on_gpu, **more)


def opened_paths(updates: Any, reference: Any) -> tuple[Any, frozenset[int]]:
    """The updates, each path or address opened, and which of them are local files, which clients may still rewrite."""
    if is_array(updates):
        return updates, frozenset()
    if isinstance(updates, (Iterator, ValuesView)):
        updates = list(updates)
    files = enumerate(updates) if isinstance(updates, (list, tuple)) else ()
    rewritable = frozenset(at for at, update in files if may_be_rewritten(update))
    return open_paths(updates, max_bytes=max_bytes_like(reference)), rewritable

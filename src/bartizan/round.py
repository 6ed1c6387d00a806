"""A round whose updates come one by one: each is read as it arrives, so that closing costs only weigh and combine."""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan._util.stopwatch import Stopwatch
from bartizan.errors import BadClientError, TooFewClientsError
from bartizan.geometry import GramStats, norm_limit
from bartizan.rules.base import Rule
from bartizan.sketch import Rotated, Sketch
from bartizan.sketch.base import StreamingSketch
from bartizan.sketch.sketched_rows import SketchedRows
from bartizan.updates.budget import arrays_of, prepared
from bartizan.updates.column_pass import ColumnPass, Progress, as_bytes
from bartizan.updates.files import Unreadable, opened_one
from bartizan.updates.layout import Layout, as_numpy, like_leaf, on_gpu, rebuild, taken
from bartizan.updates.spill import Spill
from bartizan.updates.updates import Updates, why

if TYPE_CHECKING:
    from bartizan.aggregate import Aggregation, Aggregator


@dataclass(frozen=True)
class Arrival:
    """What a round keeps of one client: the update, in memory or mapped, and what was read of it."""

    update: Any
    size: float
    layout: Layout | None = None
    reading: SketchedRows | None = None
    reason: str | None = None


class Round:
    """Updates of one round, added as they arrive, from any thread and in any order.

    `add` sketches an update and keeps the sketch; of the update itself it keeps a reference, which must not be written
    to before the round is closed (network code that reuses its buffers: pass ``copy=True``), or a file in the folder
    `spill`. `close` weighs and combines: the result is (in host memory to the bit, unless `close` finds somebody out)
    that of one call with the updates in the order of their clients' ids, and the result's own `sketch` and `seed`. Who
    never came is absent. With `Exact` nothing can be read before all are there: it happens at `close`;
    ``sketch="auto"`` is `Rotated` here.

    The projection's seed is drawn when the round opens, and told by its result. Whoever learns it before the round is
    closed could send what the projection does not show, so `close` looks at the chosen once more, with a sketch whose
    seed is drawn then: at most one more read. Where that was a look at all of them (the rule names no number of
    attackers, or gives everybody weight), they are weighed by it, and the result tells its seed and sketch.
    ``recheck=False`` is for those who are sure of their secret, or want the seed that they give to decide all.

    >>> from bartizan import Aggregator, Krum, Rotated
    >>> aggregator = Aggregator(Krum(n_byzantine=1), sketch=Rotated(k=64))
    >>> with aggregator.round() as r:
    ...     for client in ("eve", "bob", "amy", "dan", "cal"):
    ...         r.add([1.0, 2.0] if client != "eve" else [90.0, 7.0], client, size=100)
    ...     out = r.close()
    >>> out.clients, out.update.tolist()
    (('amy', 'bob', 'cal', 'dan', 'eve'), [1.0, 2.0])
    """

    def __init__(
        self,
        aggregator: Aggregator,
        seed: int | None = None,
        *,
        reference: Any = None,
        trusted: Any = None,
        history: tuple[float, ...] = (),
        strict: bool = False,
        spill: str | os.PathLike[str] | None = None,
        copy: bool = False,
        memory: int | str | None = None,
        recheck: bool = True,
    ) -> None:
        if isinstance(aggregator.rule, Rule):
            aggregator.rule.check_trusted(trusted is not None)
        for name, point in (("reference", reference), ("trusted", trusted)):
            if point is not None:  # what is wrong with it should not wait for the first client
                Updates.of([point], **{name: point})
        self._aggregator = aggregator
        # Who will come is not known yet, and reading updates while others are on their way costs next to nothing.
        self._sketch = aggregator.sketch if isinstance(aggregator.sketch, Sketch) else Rotated()
        self._effective_sketch = aggregator.effective_sketch(self._sketch)
        self._seed = fresh_seed() if seed is None else checked_seed(seed)
        self._points = {"reference": reference, "trusted": trusted}
        self._history, self._strict, self._copy = history, strict, copy
        self._recheck = recheck
        self._memory = None if memory is None else as_bytes(memory)
        self._arrivals: dict[Any, Arrival] = {}
        self._coming: set[Any] = set()
        self._changed = threading.Condition()
        self._state = "open"
        self._result: Aggregation | None = None
        self._vouched: tuple[Layout, dict[str, Any]] | None = None
        self._spill = None if spill is None else Spill(spill)

    def add(self, update: Any, client: Hashable, size: float = 1) -> str | None:
        """Take in one client's update, or the `pathlib.Path` of its file, with its data size.

        Gives the reason where it is clear already that the update can't take part, else None. Under ``strict`` that is
        a BadClientError, and the client may send again.
        """
        if isinstance(size, bool) or not (math.isfinite(size) and size > 0):
            raise ValueError(f"client {client!r}: size must be a positive number, got {size!r}.")
        with self._arriving(client):
            on_disk = isinstance(update, Path)
            if on_disk:
                update = opened_one(update)
            arrival = self._received(update, float(size))
            if arrival.reason is not None and self._strict:
                raise BadClientError(client, arrival.reason)
            if arrival.layout is None:
                arrival = replace(arrival, update=Unreadable(arrival.reason or ""))
            elif self._spill is not None and not on_disk:
                arrival = replace(arrival, update=self._spill.keep(arrival.update, client))
            elif self._copy and not on_disk:
                arrival = replace(arrival, update=_copied(arrival.update))
            with self._changed:
                self._arrivals[client] = arrival
            return arrival.reason

    def close(self, *, out: Any = None, progress: Progress | None = None) -> Aggregation:
        """Weigh and combine what has arrived, once adds that have begun are done; again, the same result.

        If that raises, the round stays open: it may be that more clients are to come. `out` and `progress` are as in
        `aggregate`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state != "closing")
            if self._result is not None:
                return self._result
            if self._state == "discarded":
                raise RuntimeError("This round was left without being closed: its updates are gone. Open another one.")
            self._state = "closing"
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._coming)
            self._result = self._closed(out, progress)
        finally:
            with self._changed:
                self._state = "open" if self._result is None else "closed"
                self._changed.notify_all()
        self._let_go()
        return self._result

    @property
    def clients(self) -> tuple[Any, ...]:
        """Who has been added, in order of arrival."""
        with self._changed:
            return tuple(self._arrivals)

    @property
    def quarantined(self) -> dict[Any, str]:
        """Who can't take part, as far as that is clear before the round is closed."""
        with self._changed:
            return {client: come.reason for client, come in self._arrivals.items() if come.reason is not None}

    def __len__(self) -> int:
        return len(self._arrivals)

    def __repr__(self) -> str:
        return f"<Round of {self._aggregator!r}, {self._state}, {len(self)} clients>"

    def __enter__(self) -> Round:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._state != "closing")
            if self._result is None:
                self._state = "discarded"
            self._changed.wait_for(lambda: not self._coming)
        self._let_go()

    def _let_go(self) -> None:
        if self._result is not None:
            # Who came stays known, so that a late twin is told so.
            self._arrivals = {
                client: replace(come, update=None, reading=None) for client, come in self._arrivals.items()
            }
        else:
            self._arrivals = {}
        self._vouched = None
        self._points = {}
        if self._spill is not None:
            self._spill.clear()

    @contextmanager
    def _arriving(self, client: Any) -> Iterator[None]:
        """While it is taken in, a client can't be added again, and the round can't be closed."""
        try:
            sane = hash(client) is not None and client == client  # arrays have no hash, and no one answer to ==
        except TypeError:
            raise TypeError(f"A client's id must be hashable, such as a number or a text; got {client!r}.") from None
        if not sane:
            raise ValueError(f"A client's id must equal itself; got {client!r}.")
        with self._changed:
            if self._state != "open":
                raise RuntimeError(f"client {client!r} came too late: the round is {self._state}.")
            if client in self._arrivals or client in self._coming:
                raise ValueError(f"client {client!r} has sent an update in this round already; each counts once.")
            self._coming.add(client)
        try:
            yield
        finally:
            with self._changed:
                self._coming.discard(client)
                self._changed.notify_all()

    def _received(self, update: Any, size: float) -> Arrival:
        """Read an update by itself, in its own layout; whether that is the round's is known when all have come."""
        try:
            alone = Updates.of([update])
        except TooFewClientsError as unfit:
            return Arrival(update, size, reason=unfit.quarantined[0])
        except ValueError:  # it holds no floats: the others may
            return self._without_floats(update, size)
        update = alone.like  # in plain containers: whatever its own would say the next time counts for nothing
        effective_sketch = self._effective_sketch
        if not isinstance(effective_sketch, StreamingSketch):
            return Arrival(update, size, alone.layout)
        alone = replace(alone, column_pass=ColumnPass.of(self._memory, None))
        try:
            alone = self._with_points(alone)
        except ValueError:  # the fault of the update, as the points were looked at when the round was opened
            reason = "its names, shapes or kinds of numbers are not those of the reference or the trusted update"
            return Arrival(update, size, alone.layout, reason=reason)
        reading = effective_sketch.sketch_part(alone, self._seed)
        fit = reading.squared_norms[0] <= norm_limit(alone.columns.widest)
        return Arrival(update, size, alone.layout, reading, None if fit else alone.fault(0))

    def _without_floats(self, update: Any, size: float) -> Arrival:
        try:
            plain, leaves = taken(update)
            return Arrival(plain, size, Layout.of(leaves))
        except Exception as unfit:  # a container may do anything when it is looked at again
            return Arrival(update, size, reason=why(unfit))

    def _with_points(self, alone: Updates) -> Updates:
        """With the reference and the trusted update in its layout, which are looked at once for all of one layout."""
        if all(point is None for point in self._points.values()):
            return alone
        known = self._vouched
        if known is None or known[0] != alone.layout:
            seen = Updates.of([alone.like], **self._points, column_pass=alone.column_pass).with_reference_at_hand()
            # Only the points: of the update nothing is held.
            known = alone.layout, {"reference": seen.reference, "trusted": seen.trusted, "origin": seen.origin}
            self._vouched = known
        return replace(alone, **known[1])

    def _closed(self, out: Any, progress: Progress | None) -> Aggregation:
        watch = Stopwatch()
        if not self._arrivals:
            raise TooFewClientsError("No client's update was added to this round.")
        ids = in_order(list(self._arrivals))
        come = [self._arrivals[client] for client in ids]
        aggregator = self._aggregator
        try:
            column_pass = ColumnPass.of(self._memory, progress, written=() if out is None else arrays_of(out))
            updates = [arrival.update for arrival in come]
            clients = Updates.of(updates, **self._points, strict=self._strict, column_pass=column_pass)
            clients = prepared(clients, self._effective_sketch, out, recheck=self._recheck)
            column_pass.begin("sketch")
            result = aggregator.finish(
                clients,
                self._look(clients, come),
                np.array([arrival.size for arrival in come]),
                self._sketch,
                watch,
                seed=self._seed,
                history=self._history,
                strict=self._strict,
                recheck=self._recheck,
            )
        except BadClientError as bad:
            raise BadClientError(ids[bad.client], bad.reason) from None
        except TooFewClientsError as too_few:
            named = {ids[client]: reason for client, reason in too_few.quarantined.items()}
            raise TooFewClientsError(too_few.problem, named) from None
        named = {ids[client]: reason for client, reason in result.quarantined.items()}
        return replace(result, quarantined=named, clients=tuple(ids))

    def _look(self, clients: Updates, come: list[Arrival]) -> GramStats:
        """From what was read on arrival; those in another order of entries than most are read again, in theirs."""
        effective_sketch = self._effective_sketch
        if not isinstance(effective_sketch, StreamingSketch):
            return effective_sketch.gram_stats(clients, self._seed)
        readings = []
        for row, client in enumerate(clients.clients):
            arrival = come[client]
            if arrival.reading is None or arrival.layout != clients.layout:
                readings.append(effective_sketch.sketch_part(clients.only([row]), self._seed))
            else:
                readings.append(arrival.reading)
        return effective_sketch.stats_from(clients, SketchedRows.stacked(readings), self._seed)


def in_order(ids: list[Any]) -> list[Any]:
    """Ids sorted, first by type, so that the order of arrival is forgotten; kept as they came where none is defined."""
    try:
        ordered = sorted(ids, key=lambda client: (_kind(client), client))
        if all(_kind(a) != _kind(b) or a < b for a, b in pairwise(ordered)):
            return ordered
    except TypeError:
        pass
    warnings.warn(
        "These clients' ids have no order, so the result may depend on which came first (in its last digits, and where "
        "a rule breaks ties). Use numbers or texts.",
        stacklevel=4,
    )
    return ids


def _kind(client: Any) -> str:
    return "number" if isinstance(client, (int, float, np.number)) else type(client).__name__


def _copied(update: Any) -> Any:
    return rebuild(update, lambda _, leaf: leaf.clone() if on_gpu(leaf) else like_leaf(as_numpy(leaf).copy(), leaf))

"""A round whose updates arrive one by one: each is sketched on arrival, and `close` only weighs and combines."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from operator import lt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from bartizan._util.stopwatch import Stopwatch
from bartizan._util.text import quoted, short
from bartizan.aggregate import run
from bartizan.errors import BadClientError, NamedErrors, TooFewClientsError, nobody_left
from bartizan.judge.judge import recheck_sketch
from bartizan.measure.client_sizes import SIZE_RANGE, is_size
from bartizan.source import Aggregation
from bartizan.sources.arriving import Arrivals, StoredUpdate, copied
from bartizan.sources.local import open_points
from bartizan.sources.rewritten import may_be_rewritten
from bartizan.updates import Progress
from bartizan.updates.files import is_place, max_bytes_like, opened
from bartizan.updates.layout import Unreadable
from bartizan.updates.spill import Spill

if TYPE_CHECKING:
    from bartizan.aggregate import Aggregator
    from bartizan.sources.update_folder import UpdateFolder

U = TypeVar("U")


class Round(Generic[U]):
    """Updates of one round, added as they arrive, from any thread and in any order.

    `add` sketches an update and keeps the sketch; of the update itself it keeps a reference, which must not be written
    to before the round is closed (network code that reuses its buffers: pass ``copy=True``), or a file in the folder
    `spill`, or in `folder`: there the next round finds the updates of one whose process was killed. `close` weighs and
    combines. Unless the recheck quarantines a client, the result is that of one call with the updates in the order of
    their clients' ids and the result's own `sketch` and `seed`, in host memory to the bit.
    Clients that were asked and sent nothing go to `fail`, or are `expected` by `close`, which waits for them until its
    `deadline`. They count with the quarantined ones: the rule then runs with the largest `n_byzantine` that it admits
    for the rest (`Aggregation.n_byzantine`), or the round is refused with a TooFewClientsError (docs/reliability.md).
    `Exact` can't read updates one by one: all are read at `close`; ``sketch="auto"`` is `Rotated` here.

    The seed of the projection is drawn when the round opens, and is part of its result. A client that learns it before
    the round is closed could send an update that the projection does not show. So `close` sketches the selected
    clients again, with a seed that is drawn then: at most one more read. Where all clients were sketched again (the
    rule names no number of attackers, or gives every client weight), they are weighed by the second sketch, and the
    result holds its seed and sketch. ``recheck=False`` is for callers who keep the seed secret, or who want the seed
    that they pass to decide everything.

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
        folder: str | os.PathLike[str] | None = None,
        copy: bool = False,
        memory: int | str | None = None,
        recheck: bool = True,
    ) -> None:
        aggregator.rule.check_trusted(trusted is not None)
        self._aggregator, self._history, self._strict, self._copy = aggregator, history, strict, copy
        points = open_points(reference=reference, trusted=trusted)
        self._max_bytes = max_bytes_like(points.get("reference"))
        self._arrivals = Arrivals(aggregator.rule, aggregator.sketch, seed, points, strict, memory)
        self._recheck = recheck
        self._stored: dict[Any, StoredUpdate] = {}
        self._failed: dict[Any, str] = {}
        self._adding: set[Any] = set()
        self._changed = threading.Condition()
        self._state = "open"
        self._result: Aggregation[U] | None = None
        self._spill = None if spill is None else Spill(spill)
        self._folder: UpdateFolder | None = None
        if folder is not None:
            from bartizan.sources.update_folder import UpdateFolder

            self._folder = UpdateFolder(Path(folder).expanduser())
            self._folder.sweep()
            for row in self._folder.rows:
                stored = self._arrivals.measured(*self._folder.opened(row), False)
                self._stored[row["client"]] = stored

    def add(self, update: U | Path | str, client: Hashable, size: float = 1) -> str | None:
        """Add one client's update, or its `pathlib.Path` or address ("s3://..."), with its data size.

        Returns the reason if the update can't take part, as far as it shows by itself, else None. Under ``strict`` that
        is a BadClientError, and the client may send again. On a GPU the work is only enqueued: NaN and Inf show at
        `close`, unless the round is strict.
        """
        if not is_size(size):
            raise ValueError(f"client {quoted(client, 60)}: size must be {SIZE_RANGE}, got {quoted(size, 60)}.")
        if self._folder is not None:
            self._folder.check_id(client)
        with self._begin_add(client):
            on_disk = is_place(update)
            held = opened(update, max_bytes=self._max_bytes) if on_disk else update
            rewritable = on_disk and may_be_rewritten(update)
            if rewritable if self._folder is not None else self._copy and not on_disk:
                held, rewritable = copied(held), False
            stored = self._arrivals.measured(held, float(size), rewritable)
            if stored.reason is not None and self._strict:
                raise BadClientError(client, stored.reason)
            kept = None
            if stored.layout is None:
                stored = replace(stored, update=Unreadable(stored.reason or ""))
            elif self._folder is not None:
                stored, kept = self._folder.keep(stored, client)
            elif self._spill is not None and not on_disk:
                stored = replace(stored, update=self._spill.keep(stored.update, client))
            with self._changed:
                if client not in self._adding:
                    raise RuntimeError(f"client {quoted(client, 60)} came too late: {self._failed[client]}.")
                if self._folder is not None and kept is not None:
                    self._folder.add(kept, client=client, size=float(size))
                self._stored[client] = stored
            return stored.reason

    def fail(self, client: Hashable, reason: str) -> None:
        """Record that a client was asked and sent no update: an error, no answer in time, a lost connection.

        A call of `add` that is still running for this client then raises RuntimeError in its own thread: it came too
        late, and nothing of it enters the result.
        """
        check_id(client)
        with self._changed:
            self._check_new(client, failing=True)
            self._adding.discard(client)
            self._failed[client] = short(reason)
            self._changed.notify_all()

    def close(
        self,
        *,
        expected: Iterable[Hashable] = (),
        deadline: float | None = None,
        out: Any = None,
        progress: Progress | None = None,
    ) -> Aggregation[U]:
        """Weigh and combine the updates added so far, after running calls of `add` have returned.

        If that raises, the round stays open for more clients, but not for those that `expected` counted as failed. A
        closed round returns the same result again. `out` and `progress` are as in `aggregate`.

        Args:
            expected: The clients that were asked. Those that were neither added nor failed count as failed.
            deadline: Seconds from now, in which the round stays open until all `expected` clients are there and no call
                of `add` is running. After them a client whose `add` is still running has failed, as by `fail`, also
                if too few clients are left and this raises. None waits for running calls alone, however long they take.
        """
        if isinstance(expected, (str, bytes)) or not isinstance(expected, Iterable):
            raise TypeError(f"expected must be a list of clients' ids, got {quoted(expected)}.")
        expected = list(expected)
        for client in expected:
            check_id(client)
        if deadline is not None and not (isinstance(deadline, Real) and deadline >= 0):
            raise ValueError(f"deadline must be a number of seconds, 0 or more, got {quoted(deadline)}.")

        def missing() -> list[Any]:
            return [one for one in expected if one not in self._stored and one not in self._failed]

        def complete() -> bool:
            return self._state in ("closed", "discarded") or not (self._adding or missing())

        with self._changed:
            if deadline is not None:
                self._changed.wait_for(complete, min(deadline, threading.TIMEOUT_MAX))
            self._changed.wait_for(lambda: self._state != "closing")
            if self._result is not None:
                return self._result
            if self._state == "discarded":
                raise RuntimeError("This round was left without being closed: its updates are gone. Open another one.")
            if deadline is not None:
                self._failed |= dict.fromkeys(self._adding, "its update was still being added at the deadline")
                self._adding.clear()
            self._state = "closing"
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._adding)
                self._failed |= dict.fromkeys(missing(), "it sent no update in time")
            self._result = self._closed(out, progress)
        finally:
            with self._changed:
                self._state = "open" if self._result is None else "closed"
                self._changed.notify_all()
        self._release()
        return self._result

    @property
    def clients(self) -> tuple[Any, ...]:
        """The clients that were added, in order of arrival."""
        with self._changed:
            return tuple(self._stored)

    @property
    def quarantined(self) -> dict[Any, str]:
        """Clients that cannot take part, with the reasons that are known so far."""
        with self._changed:
            return {client: one.reason for client, one in self._stored.items() if one.reason is not None}

    @property
    def failed(self) -> dict[Any, str]:
        """Clients that sent no update and why, as passed to `fail`."""
        with self._changed:
            return dict(self._failed)

    def __len__(self) -> int:
        return len(self._stored)

    def __repr__(self) -> str:
        return f"<Round of {self._aggregator!r}, {self._state}, {len(self)} clients>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._state != "closing")
            if self._result is None:
                self._state = "discarded"
            self._changed.wait_for(lambda: not self._adding)
        self._release()

    def _release(self) -> None:
        if self._folder is not None:
            self._folder.close(clear=self._result is not None)
        if self._result is not None:
            # The ids stay, so that `clients` and `quarantined` can still be read.
            self._stored = {
                client: StoredUpdate(None, one.size, reason=one.reason) for client, one in self._stored.items()
            }
        else:
            self._stored = {}
        self._arrivals.forget()

    @contextmanager
    def _begin_add(self, client: Any) -> Iterator[None]:
        """Mark a client as being added: it can't be added again, and `close` waits for it until its deadline."""
        check_id(client)
        with self._changed:
            self._check_new(client)
            self._adding.add(client)
        try:
            yield
        finally:
            with self._changed:
                self._adding.discard(client)
                self._changed.notify_all()

    def _check_new(self, client: Any, *, failing: bool = False) -> None:
        if self._state != "open":
            raise RuntimeError(f"client {quoted(client, 60)} came too late: the round is {self._state}.")
        if client in self._stored or (client in self._adding and not failing):
            raise ValueError(f"client {quoted(client, 60)} has sent an update in this round already; each counts once.")
        if client in self._failed:
            raise ValueError(f"client {quoted(client, 60)} has failed in this round already ({self._failed[client]}).")

    def _closed(self, out: Any, progress: Progress | None) -> Aggregation[U]:
        watch = Stopwatch()
        if not self._stored:
            none = "No client's update was added to this round."
            raise TooFewClientsError(nobody_left(0, len(self._failed)) if self._failed else none, failed=self._failed)
        ids = in_order(list(self._stored))
        stored = [self._stored[client] for client in ids]
        recheck = recheck_sketch(len(ids)) if self._recheck else None
        with NamedErrors(ids, self._failed):
            source = self._arrivals.source(stored, ids, self._failed, recheck, out, progress)
            return run(source, self._aggregator, history=self._history, recheck=recheck, watch=watch)


def check_id(client: Any) -> None:
    """Raise TypeError or ValueError unless this can be the id of a client."""
    try:
        valid = hash(client) is not None and client == client  # arrays have no hash, and no single answer to ==
    except TypeError:
        raise TypeError(
            f"A client's id must be hashable, such as a number or a text; got {quoted(client, 60)}."
        ) from None
    if not valid:
        raise ValueError(f"A client's id must equal itself; got {quoted(client, 60)}.")


def in_order(ids: list[Any]) -> list[Any]:
    """Ids sorted by type and value, so that the order of arrival does not matter; unsorted where they have no order."""
    try:
        kinds = ["number" if isinstance(one, (int, float, np.number)) else type(one).__name__ for one in ids]
        ordered = sorted(zip(kinds, ids, strict=True))
        if all(map(lt, ordered, ordered[1:])):
            return [client for _, client in ordered]
    except TypeError:
        pass
    warnings.warn(
        "These clients' ids have no order, so the result may depend on which came first (in its last digits, and where "
        "a rule breaks ties). Use numbers or texts.",
        stacklevel=4,
    )
    return ids

"""A buffer of updates that arrive at any time, from any model version: rounds that wait for nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bartizan._util.seeds import checked_seed
from bartizan._util.stopwatch import Stopwatch
from bartizan._util.text import quoted
from bartizan.aggregate import run
from bartizan.errors import NamedErrors, ServerResourceError, TooFewClientsError
from bartizan.judge.judge import RECHECK_SKETCH
from bartizan.measure.client_sizes import SIZE_RANGE, is_size
from bartizan.round import check_id, in_order
from bartizan.sources.arriving import Arrivals, copied
from bartizan.sources.buffer_state import BufferState
from bartizan.sources.buffered import (
    BufferedAggregation,
    BufferedUpdates,
    VersionedUpdate,
    change_from,
    check_rule,
    check_whole,
    factors_of,
    fingerprint,
    has_numbers,
    is_whole,
)
from bartizan.updates import Progress
from bartizan.updates.files import is_place, max_bytes_like, opened
from bartizan.updates.layout import Layout, Unreadable, plain_and_leaves
from bartizan.updates.parse import parse_one
from bartizan.updates.spill import Spill

if TYPE_CHECKING:
    from bartizan.aggregate import Aggregator

U = TypeVar("U")
MAX_REMEMBERED = 10_000  # clients, under ``remember=True``


class Buffer(Generic[U]):
    """Updates of clients that never wait for each other, judged `size` at a time, in any number of threads.

    `add` measures an update when it arrives. `aggregate` judges and combines what is there: at `size` arrivals, at its
    deadline or at once. Each judgement begins a new version of the global model, counted from 0; an update is a change
    of the version that it was trained from, which your server knows, since it sent it. A client has one entry: a newer
    update replaces it. The entries of a judgement leave the buffer.

    The rule's `n_byzantine` counts **all** attackers of the federation, since all of them may be in one buffer:
    its breakdown condition must hold for `size`, or with `remember` for the entries and the remembered clients.

    Args:
        size: How many clients' updates make a judgement.
        staleness: The factor of a weight by the age of the update in versions: ``"polynomial"``, 1 / sqrt(1 + age); a
            function from 1 at most, which never rises; or None for 1. It lowers the client's part of the sum, and
            nobody else's rises: clients vote alike, whatever version they name.
        max_staleness: The oldest update that is taken, in versions.
        remember: Keep the last update of each client, and let it take part in the judgement while the client is absent,
            so that attackers who come often do not outnumber the rest. A number is the most clients to remember.
        sum_remembered: Sum remembered updates too, times their factor of age. The sum is then over more clients, but
            biased: an update enters it several times, as with momentum, and for a model that has moved on since.
        max_age: The oldest update that is remembered, in versions.
        model: The first global model, where clients send whole weights instead of changes; `publish` the later ones.
        seed: A secret from which the seed of each epoch is derived; fresh entropy for each if not given.
        epoch: How many judgements share one seed. Their results hold no seed; `seeds` has those of ended epochs.
        history: The `history` of the rule to begin with.
        spill: A folder for the updates, instead of memory.
        folder: A folder for the updates and the buffer's state, in which a server that was killed finds its entries and
            its memory again, instead of `spill`. Clients' ids must then be texts or whole numbers. A judgement that was
            under way is either made again or counts as made, so that no update enters the model twice.
        copy: Copy updates that stay in memory; without it they must not be written to.
        memory: The most memory for reading them, as in `aggregate`.
        recheck: Sketch the clients that a judgement uses again, by a seed that is drawn after the last of them came.

    >>> from bartizan import Aggregator, Krum
    >>> buffer = Aggregator(Krum(n_byzantine=1)).buffer(size=5)
    >>> for client in ("eve", "bob", "amy", "cal", "dan"):
    ...     said = buffer.add([1.0, 3.0] if client != "eve" else [90.0, 7.0], client)
    >>> buffer.full
    True
    >>> buffer.aggregate().update.tolist(), buffer.version
    ([1.0, 3.0], 1)
    """

    def __init__(
        self,
        aggregator: Aggregator,
        size: int,
        *,
        staleness: str | Callable[[int], float] | None = "polynomial",
        max_staleness: int = 10,
        remember: bool | int = False,
        sum_remembered: bool = False,
        max_age: int = 100,
        model: Any = None,
        seed: int | None = None,
        epoch: int = 20,
        history: tuple[float, ...] = (),
        spill: str | os.PathLike[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        copy: bool = False,
        memory: int | str | None = None,
        recheck: bool = True,
    ) -> None:
        rule = aggregator.rule
        check_whole(size=(size, 1), max_staleness=(max_staleness, 0), max_age=(max_age, 1), epoch=(epoch, 1))
        unweighted = staleness is None and (sum_remembered or not remember)
        check_rule(rule, size, remember=remember, without_weights=unweighted)
        self.size, self.max_staleness, self.max_age = size, max_staleness, max_age
        self.aggregator, self._copy, self._recheck = aggregator, copy, recheck
        self._remember, self._sum_remembered = MAX_REMEMBERED if remember is True else int(remember), sum_remembered
        self._factors = factors_of(staleness, max(max_staleness, max_age))
        self._changed, self._judging = threading.Condition(), threading.Lock()
        self._rejected: dict[Any, str] = {}
        self._adding: set[Any] = set()
        self._layout: Layout | None = None
        self._models: dict[int, dict[Any, Any]] | None = None if model is None else {}
        self._spill = None if spill is None else Spill(spill)
        self._state = BufferState(
            lambda seed: Arrivals(rule, aggregator.sketch, seed, {}, False, memory),
            None if seed is None else checked_seed(seed),
            epoch,
        )
        self._state.history = history
        if folder is not None:
            settings = {"rule": repr(rule), "sketch": str(aggregator.sketch)}
            self._state.keep_in(Path(folder).expanduser(), settings)
        if model is not None:
            self.publish(model)

    def add(
        self, update: U | Path | str, client: Hashable, *, version: int | None = None, size: float = 1
    ) -> str | None:
        """Add one client's update of a model version, the current one if not given; or its path or address.

        Returns the reason if the update is not taken, or can't take part as far as it shows by itself, else None. An
        update is not taken if it is too old, older than the client's entry, sent before to the bit, of another form
        than those of the last judgement, or if another update of this client is just being added.
        """
        if not is_size(size):
            raise ValueError(f"client {quoted(client, 60)}: size must be {SIZE_RANGE}, got {quoted(size, 60)}.")
        check_id(client)
        if self._state.folder is not None:
            self._state.folder.check_id(client)
        with self._changed:
            version = self.version if version is None else version
            if (reason := self._refusal(client, version)) is not None:
                return self._reject(client, reason)
            arrivals, model = self._state.arrivals, None if self._models is None else self._models.get(version)
            self._adding.add(client)
        try:
            return self._added(update, client, int(version), float(size), arrivals, model)
        finally:
            with self._changed:
                self._adding.discard(client)

    def publish(self, model: Any) -> None:
        """Set the global model of the current version, from which whole weights are measured that name it."""
        if self._models is None:
            raise ValueError("This buffer takes changes of the model: pass model= when it is made, for whole weights.")
        held = copied(model)
        if isinstance(held, Unreadable):
            raise ValueError(f"The model can't be read: {held.reason}.")
        with suppress(ServerResourceError):  # without room it stays in memory, since later updates need it
            held = held if self._spill is None else self._spill.keep(parse_one(held, {}), "the server")
        with self._changed:
            self._models[self.version] = plain_and_leaves(held)[1]
            for version in [one for one in self._models if self.version - one > self.max_staleness]:
                del self._models[version]

    def aggregate(
        self, *, deadline: float | None = None, out: Any = None, progress: Progress | None = None
    ) -> BufferedAggregation[U]:
        """Judge and combine the entries, and begin the next version; `out` and `progress` are as in `aggregate`.

        If that raises, all entries stay. Updates that are being added meanwhile are for the next judgement.

        Args:
            deadline: Seconds to wait until the buffer is full, then what is there is judged. None waits for nothing.
        """
        if deadline is not None and not (isinstance(deadline, Real) and deadline >= 0):
            raise ValueError(f"deadline must be a number of seconds, 0 or more, got {quoted(deadline)}.")
        with self._judging:
            with self._changed:
                if deadline is not None:
                    self._changed.wait_for(lambda: self.full, min(deadline, threading.TIMEOUT_MAX))
                old = {
                    client: self._too_old(one.version) for client, one in self._state.take(self.max_staleness).items()
                }
                rejected, self._rejected = self._rejected | old, {}
            try:
                return self._judged(self._state.taken, rejected, out, progress)
            except BaseException:
                with self._changed:
                    self._state.put_back()
                    self._rejected = rejected | self._rejected
                    self._changed.notify_all()
                raise

    def close(self) -> None:
        """Unlock the folder, if there is one: another process may go on with it."""
        if self._state.folder is not None:
            self._state.folder.close()

    def restore(
        self,
        version: int,
        remembered: Mapping[Any, tuple[Any, int, float]] = MappingProxyType({}),
        history: tuple[float, ...] = (),
        fingerprints: Mapping[Any, Iterable[str]] = MappingProxyType({}),
    ) -> None:
        """Go on at a version with these updates in the memory, each with its version and data size, and no entries.

        For callers who keep a buffer's state themselves; `folder` does it otherwise.
        """
        self._state.restore(version, remembered, history, fingerprints)

    @property
    def version(self) -> int:
        """The version of the global model that `aggregate` moves next: the number of judgements so far."""
        return self._state.version

    @property
    def seeds(self) -> list[tuple[int, int]]:
        """The seeds of ended epochs: the version of the first judgement by each, and the seed."""
        return list(self._state.seeds)

    @property
    def full(self) -> bool:
        """Whether `size` clients have an entry that is not too old, and the rule admits these and those remembered."""
        with self._changed:
            oldest = self.version - self.max_staleness
            fresh = {client for client, one in self._state.entries.items() if one.version >= oldest}
            known = len(fresh | self._state.remembered.keys())
            return len(fresh) >= self.size and self.aggregator.rule.admits(known)

    @property
    def clients(self) -> tuple[Any, ...]:
        """The clients that have an entry."""
        with self._changed:
            return tuple(self._state.entries)

    @property
    def remembered(self) -> dict[Any, int]:
        """The clients that are remembered, and the version that their last update was trained from."""
        with self._changed:
            return {client: one.version for client, one in self._state.remembered.items()}

    @property
    def fingerprints(self) -> dict[Any, list[str]]:
        """Digests of each client's last updates, by which those that are sent again are known."""
        with self._changed:
            return {client: list(marks) for client, marks in self._state.fingerprints.items()}

    @property
    def rejected(self) -> dict[Any, str]:
        """Reasons by client: its last update since the last judgement was not taken."""
        with self._changed:
            return dict(self._rejected)

    def __len__(self) -> int:
        return len(self._state.entries)

    def __repr__(self) -> str:
        return f"<Buffer of {self.aggregator!r}, version {self.version}, {len(self)} of {self.size} clients>"

    def _refusal(self, client: Any, version: Any) -> str | None:
        """Return why an update of this client and version is not even read."""
        if not is_whole(version, 0) or version > self.version:
            return f"expected a model version from 0 to {self.version}, got {quoted(version, 60)}"
        if self.version - version > self.max_staleness:
            return self._too_old(version)
        if self._models is not None and version not in self._models:
            return f"the model of version {version} is not kept: it was not published"
        if client in self._adding:
            return "another update of this client is just being added"
        if version < (last := self._state.last_version(client)):
            return f"it is of version {version}, and the client's last update of version {last}"
        return None

    def _too_old(self, version: int) -> str:
        age = self.version - version
        return f"it is of version {version}, {age} versions old, where max_staleness is {self.max_staleness}"

    def _reject(self, client: Any, reason: str) -> str:
        with self._changed:
            self._rejected[client] = reason
        return reason

    def _added(
        self, update: Any, client: Any, version: int, size: float, arrivals: Arrivals, model: dict[Any, Any] | None
    ) -> str | None:
        held: Any = opened(update, max_bytes=max_bytes_like(model)) if is_place(update) else update
        mark = None
        if model is not None:
            held, mark = change_from(model, held)
        elif self._copy or is_place(update):  # its client may rewrite a file
            held = copied(held)
        stored = arrivals.measured(held, size, False)
        kept = None
        if stored.layout is None:
            stored = replace(stored, update=Unreadable(stored.reason or ""))
        else:
            if self._layout is not None and (misfit := self._layout.misfit(stored.layout)) is not None:
                return self._reject(client, misfit)
            leaves = stored.update.leaves
            mark = (mark or fingerprint(leaves)) if has_numbers(leaves) else None
            if self._state.has_sent(client, mark):
                return self._reject(client, "it has sent the same numbers before: an update counts once")
            if self._state.folder is not None:
                stored, kept = self._state.folder.keep(stored, client)
            elif self._spill is not None:
                stored = replace(stored, update=self._spill.keep(stored.update, client))
        with self._changed:
            self._state.put(client, stored, version, mark, kept)
            self._changed.notify_all()
        return stored.reason

    def _judged(
        self, fresh: dict[Any, VersionedUpdate], rejected: dict[Any, str], out: Any, progress: Progress | None
    ) -> BufferedAggregation[U]:
        watch = Stopwatch()
        if not fresh:
            raise TooFewClientsError("No client's update was added since the last judgement.")
        absent = {client: one for client, one in self._state.remembered.items() if client not in fresh}
        every = {client: self._state.renewed(one) for client, one in (absent | fresh).items()}
        ids = in_order(list(every))
        entries = [every[client] for client in ids]
        recheck = RECHECK_SKETCH if self._recheck else None
        ages, remembered = [self.version - one.version for one in entries], [client in absent for client in ids]
        with NamedErrors(ids, {}):
            stored = [one.stored for one in entries]
            arrived = self._state.arrivals.source(stored, ids, {}, recheck, out, progress)
            about = ages, self._factors, remembered, self.version
            source = BufferedUpdates(arrived, *about, sum_remembered=self._sum_remembered)
            kind: type[BufferedAggregation[U]] = BufferedAggregation
            history = self._state.history
            result = run(source, self.aggregator, history=history, recheck=recheck, watch=watch, result=kind)
        assert isinstance(result, BufferedAggregation)
        with self._changed:
            judged = {client: every[client] for client in ids}
            seed = self._state.next_version(result, judged, self._remember, self.max_age)
            self._layout = arrived.updates.layout
            self._changed.notify_all()
        return replace(result, seed=seed, rejected=rejected)

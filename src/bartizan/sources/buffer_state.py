"""The state of a buffer: its entries, its memory and the seeds of its epochs; in a folder it outlives its process."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bartizan._util.seeds import fresh_seed
from bartizan._util.text import short
from bartizan.sources.arriving import Arrivals, StoredUpdate
from bartizan.sources.buffered import BufferedAggregation, VersionedUpdate, is_whole

if TYPE_CHECKING:
    from bartizan.sources.update_folder import KeptUpdate, UpdateFolder

MAX_FINGERPRINTS = 64  # kept per client, of its last updates
Entries = dict[Any, VersionedUpdate]


class BufferState:
    """Entries, memory and seeds of a buffer at one version; not thread-safe but for what a judgement reads."""

    def __init__(self, arrivals_by: Callable[[int], Arrivals], secret: int | None, epoch: int) -> None:
        self._arrivals_by, self._secret, self._epoch = arrivals_by, secret, epoch
        self.version, self.history = 0, tuple[float, ...]()
        self.seeds: list[tuple[int, int]] = []
        self.entries: Entries = {}
        self.taken: Entries = {}
        """Entries of the judgement that is under way."""
        self.remembered: Entries = {}
        self.fingerprints: dict[Any, deque[str]] = {}
        self.folder: UpdateFolder | None = None
        self._settings: dict[str, str] = {}
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        """Measure by a new seed, which tells nothing about those of other epochs."""
        self.began, seed = self.version, fresh_seed()
        if self._secret is not None:
            digest = hashlib.blake2b(f"{self._secret} {self.version}".encode(), digest_size=16)
            seed = int.from_bytes(digest.digest(), "little")
        self.arrivals = self._arrivals_by(seed)

    def last_version(self, client: Any) -> int:
        """Return the version of the client's last update that is here; 0 if there is none."""
        one = self.entries.get(client) or self.taken.get(client) or self.remembered.get(client)
        return 0 if one is None else one.version

    def put(self, client: Any, stored: StoredUpdate, version: int, mark: str | None, kept: KeptUpdate | None) -> None:
        """Make an update the entry of its client."""
        row: Mapping[str, Any] = {}
        if self.folder is not None:
            row = self.folder.add(kept, client=client, version=version, size=stored.size, fingerprint=mark)
        self._mark(client, mark)
        replaced = self.entries.get(client)
        self.entries[client] = VersionedUpdate(stored, version, row)
        if replaced is not None:
            self.drop(replaced)
        if self.folder is not None and self.folder.has_grown:
            self.save()

    def drop(self, one: VersionedUpdate) -> None:
        """Remove the file of an update that is no longer here, if it has one."""
        if self.folder is not None:
            self.folder.remove(one.row)

    def take(self, max_age: int) -> Entries:
        """Begin a judgement: return the entries that are too old for it, which leave; `taken` has the others."""
        old = {client: one for client, one in self.entries.items() if self.version - one.version > max_age}
        self.taken = {client: one for client, one in self.entries.items() if client not in old}
        self.entries = {}
        for one in old.values():
            self.drop(one)
        return old

    def put_back(self) -> None:
        """Make what was taken entries again, unless their clients have sent since."""
        for client in self.taken.keys() & self.entries.keys():
            self.drop(self.taken[client])
        self.entries, self.taken = self.taken | self.entries, {}

    def has_sent(self, client: Any, mark: str | None) -> bool:
        """Return whether a client has sent this update before."""
        return mark is not None and mark in self.fingerprints.get(client, ())

    def _mark(self, client: Any, mark: str | None) -> None:
        marks = self.fingerprints.setdefault(client, deque(maxlen=MAX_FINGERPRINTS))
        if mark is not None and mark not in marks:
            marks.append(mark)

    def next_version(
        self, result: BufferedAggregation[Any], judged: Mapping[Any, VersionedUpdate], most: int, max_age: int
    ) -> int | None:
        """Advance by one version. Return the seed of the judgement, or None while the epoch still uses it."""
        before, seed = vars(self).copy(), self.arrivals.seed
        self.version, self.history, self.taken = self.version + 1, result.history, {}
        fit = [client for client in judged if client not in result.quarantined]
        newest = islice(sorted(fit, key=lambda client: -judged[client].version), most)
        kept = {client: judged[client] for client in newest}
        self.remembered = {client: one for client, one in kept.items() if self.version - one.version <= max_age}
        if ended := self.version - self.began >= self._epoch:
            self.seeds = [*self.seeds, (self.began, seed)]
            self._begin_epoch()
        try:
            self.save()
        except BaseException:  # a full disk: this judgement was not made
            vars(self).update(before)
            raise
        return None if result.seed == seed and not ended else result.seed

    def restore(
        self,
        version: int,
        remembered: Mapping[Any, tuple[Any, int, float]],
        history: tuple[float, ...],
        fingerprints: Mapping[Any, Iterable[str]],
    ) -> None:
        """Go on at a version with these updates in the memory, each with its version and data size, and no entries."""
        self.fingerprints = {client: deque(marks, MAX_FINGERPRINTS) for client, marks in fingerprints.items()}
        self.version, self.history, self.entries = version, history, {}
        self._begin_epoch()
        self.remembered = {
            client: VersionedUpdate(self.arrivals.measured(update, size, False), own)
            for client, (update, own, size) in remembered.items()
        }

    def keep_in(self, folder: Path, settings: dict[str, str]) -> None:
        """Keep the state in a folder, and go on from what is there: a new epoch measures it again."""
        from bartizan.sources.update_folder import UpdateFolder

        self.folder, self._settings = UpdateFolder(folder), settings
        try:
            if not self.folder.is_new:
                self._go_on(*self.folder.rows)
            self.save()
            self.folder.sweep()
        except BaseException:
            self.folder.close()
            raise

    def _go_on(self, *lines: Mapping[str, Any]) -> None:
        assert self.folder is not None
        with self.folder.reading():
            saved, *rows = lines
            found, version, (began, seed) = saved["settings"], saved["version"], saved["epoch"]
            self.history, seeds = tuple(map(float, saved["history"])), [*saved["seeds"], (began, seed)]
            self.fingerprints = {client: deque(marks, MAX_FINGERPRINTS) for client, marks in saved["fingerprints"]}
            latest = {(row["client"], row.get("remembered", False)): row for row in rows}
            if len(rows) < saved["lines"]:
                raise ValueError(f"{len(rows)} of {saved['lines']} lines are left")
            for row in rows:
                self._mark(row["client"], row["fingerprint"])
            for one in (version, *(row["version"] for row in rows)):
                if not (is_whole(one, 0) and one <= version):
                    raise ValueError(f"it holds version {short(one)}, and the last judgement was of {short(version)}")
        for name, value in self._settings.items():
            if found.get(name) != value:
                raise ValueError(
                    f"{self.folder.folder} holds a buffer with {name} {short(found.get(name))}, not {value}. "
                    "Take another folder."
                )
        self.version, self.seeds = version, [(one, int(text)) for one, text in seeds if one < version]
        self._begin_epoch()
        for (client, remembered), row in latest.items():
            if "file" in row:
                stored = self.arrivals.measured(*self.folder.opened(row), False)
                to = self.remembered if remembered else self.entries
                to[client] = VersionedUpdate(stored, row["version"], row)

    def save(self) -> None:
        """Write the state with the updates that are here, then remove the files of others."""
        if self.folder is None:
            return
        state = {
            "settings": self._settings,
            "version": self.version,
            "history": [repr(float(one)) for one in self.history],
            "seeds": [(began, str(seed)) for began, seed in self.seeds],
            "epoch": (self.began, str(self.arrivals.seed)),
            "fingerprints": [(client, list(marks)) for client, marks in self.fingerprints.items()],
        }
        kept = [{**one.row, "remembered": True} for one in self.remembered.values()]
        waiting = [{**one.row, "remembered": False} for one in (*self.taken.values(), *self.entries.values())]
        rows = [row for row in (*kept, *waiting) if "file" in row]
        self.folder.rewrite([{**state, "lines": len(rows)}, *rows])

    def renewed(self, one: VersionedUpdate) -> VersionedUpdate:
        """Return an update as measured in this epoch."""
        return replace(one, stored=self.arrivals.renewed(one.stored))

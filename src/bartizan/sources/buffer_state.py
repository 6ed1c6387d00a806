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
from bartizan.sources.buffered import BufferedAggregation, VersionedUpdate

if TYPE_CHECKING:
    from bartizan.sources.update_folder import KeptUpdate, UpdateFolder

MAX_FINGERPRINTS = 1024  # kept per client, of its last updates


class BufferState:
    """Entries, memory and seeds of a buffer at one version; not thread-safe but for what a judgement reads."""

    def __init__(self, arrivals_by: Callable[[int], Arrivals], secret: int | None, epoch: int) -> None:
        self._arrivals_by, self._secret, self._epoch = arrivals_by, secret, epoch
        self.version, self.history = 0, tuple[float, ...]()
        self.seeds: list[tuple[int, int]] = []
        self.entries: dict[Any, VersionedUpdate] = {}
        self.remembered: dict[Any, VersionedUpdate] = {}
        self.fingerprints: dict[Any, deque[int]] = {}
        self.folder: UpdateFolder | None = None
        self._saved: dict[str, Any] = {}
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        """Measure by a new seed, which tells nothing about those of other epochs."""
        self.began, seed = self.version, fresh_seed()
        if self._secret is not None:
            digest = hashlib.blake2b(f"{self._secret} {self.version}".encode(), digest_size=16)
            seed = int.from_bytes(digest.digest(), "little")
        self.arrivals = self._arrivals_by(seed)

    def put(self, client: Any, stored: StoredUpdate, version: int, mark: int | None, kept: KeptUpdate | None) -> None:
        """Make an update the entry of its client."""
        marks = self.fingerprints.setdefault(client, deque(maxlen=MAX_FINGERPRINTS))
        if mark is not None:
            marks.append(mark)
        number, replaced = "", self.entries.get(client)
        if self.folder is not None and kept is not None:
            about = {"client": client, "version": version, "size": stored.size, "fingerprints": list(marks)}
            number = self.folder.add(kept, **about)
        self.entries[client] = VersionedUpdate(stored, version, number)
        if self.folder is not None and replaced is not None:
            self.folder.remove(replaced.file)

    def has_sent(self, client: Any, mark: int | None) -> bool:
        """Return whether a client has sent this update before."""
        return mark is not None and mark in self.fingerprints.get(client, ())

    def next_version(
        self,
        result: BufferedAggregation[Any],
        judged: Mapping[Any, VersionedUpdate],
        taken: Iterable[VersionedUpdate],
        most: int,
        max_age: int,
    ) -> int | None:
        """Advance by one version. Return the seed of the judgement, or None while the epoch still uses it."""
        used = [one.file for one in (*taken, *self.remembered.values())]
        self.version, self.history = self.version + 1, result.history
        fit = [client for client in judged if client not in result.quarantined]
        newest = islice(sorted(fit, key=lambda client: -judged[client].version), most)
        kept = {client: judged[client] for client in newest}
        self.remembered = {client: one for client, one in kept.items() if self.version - one.version <= max_age}
        seed, ended = self.arrivals.seed, self.version - self.began >= self._epoch
        if ended:
            self.seeds.append((self.began, seed))
            self._begin_epoch()
        self._save(used)
        return None if result.seed == seed and not ended else result.seed

    def restore(
        self,
        version: int,
        remembered: Mapping[Any, tuple[Any, int, float]],
        history: tuple[float, ...],
        fingerprints: Mapping[Any, Iterable[int]],
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

        self.folder = UpdateFolder(folder)
        saved = self.folder.state() or {"settings": settings}
        for name, value in settings.items():
            if (found := saved["settings"].get(name)) != value:
                raise ValueError(
                    f"{folder} holds a buffer with {name} {short(found)}, not {value}. Take another folder."
                )
        self._saved = {"settings": settings, "used": saved.get("used", "")}
        self.version, self.history = saved.get("version", 0), tuple(saved.get("history", self.history))
        self.seeds = [(began, int(seed)) for began, seed in saved.get("seeds", ())]
        began, seed = saved.get("epoch", (0, 0))
        if began < self.version:
            self.seeds.append((began, int(seed)))
        self._begin_epoch()
        remembered = set(saved.get("remembered", ()))
        for number, update, about in self.folder.updates():
            client = about["client"]
            self.fingerprints[client] = deque(about["fingerprints"], maxlen=MAX_FINGERPRINTS)
            if number <= self._saved["used"] and number not in remembered:  # of a judgement
                self.folder.remove(number)
                continue
            to = self.remembered if number in remembered else self.entries
            if client in to:
                self.folder.remove(to[client].file)
            stored = self.arrivals.measured(update, about["size"], False)
            to[client] = VersionedUpdate(stored, about["version"], number)
        self._save()

    def _save(self, used: Iterable[str] = ()) -> None:
        """Write the state, then remove the updates that were used and are not remembered."""
        if self.folder is None:
            return
        kept, used = {one.file for one in self.remembered.values()}, set(used)
        self._saved |= {
            "version": self.version,
            "history": list(map(float, self.history)),
            "seeds": [(began, str(seed)) for began, seed in self.seeds],
            "epoch": (self.began, str(self.arrivals.seed)),
            "used": max([self._saved["used"], *used]),
            "remembered": sorted(kept),
        }
        self.folder.save(self._saved)
        for number in used - kept:
            self.folder.remove(number)

    def renewed(self, one: VersionedUpdate) -> VersionedUpdate:
        """Return an update as measured in this epoch."""
        return replace(one, stored=self.arrivals.renewed(one.stored))

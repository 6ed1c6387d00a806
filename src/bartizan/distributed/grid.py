"""Ranks in rows and columns: the shards of a group, and copies of that group, as hybrid sharding has them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from bartizan.distributed.collectives import Peers, RankError


class Grid:
    """The ranks that hold the shards, and along further axes those that hold the same shards again.

    Each rank is in one group an axis, and what all say or hear goes along one axis after the other. The first copy
    looks at its columns, and its first rank decides for all, so no two copies can get different weights.
    """

    def __init__(self, groups: Sequence[Any]) -> None:
        self._axes = [Peers(group) for group in groups]
        self._shards = self._axes[0]
        self.n_shards = self._shards.size
        self.process = self._shards.process
        self.rank = sum(axis.rank * prod(a.size for a in self._axes[:n]) for n, axis in enumerate(self._axes))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def looks(self) -> bool:
        """Whether this rank is of the first copy."""
        return self.rank < self.n_shards

    def sum_where_the_shards_are(self, devices: Sequence[str]) -> None:
        self._shards.sum_where_the_shards_are(devices)

    def everyones(self, mine: Any, *kinds: type) -> list[Any]:
        """What each rank says, copy by copy, told to all; it must be one of these."""
        said = [mine]
        for axis in self._axes:
            parts = axis.everyones(said)
            self._check(parts, list)
            said = [each for part in parts for each in part]
        self._check(said, *kinds)
        return said

    def from_the_leader(self, said: Any = None, *kinds: type) -> Any:
        """What the leader says, told to all; on the others the argument is not looked at."""
        for n, axis in enumerate(self._axes):
            if all(later.rank == 0 for later in self._axes[n + 1 :]):
                said = axis.from_the_leader(said)
        self._check([said], *kinds)
        return said

    def _check(self, said: Sequence[Any], *kinds: type) -> None:
        for each in said:
            if not isinstance(each, kinds):
                raise RankError(
                    f"rank {self.process} heard a {type(each).__name__} where it waited for "
                    f"{' or '.join(kind.__name__ for kind in kinds)}: another rank made another call. Start the group "
                    f"anew; this round has no result."
                )

    def totals(self, sums: Sequence[Any]) -> list[Any]:
        """The sums of the first copy's ranks, on the leader; whatever was passed may be overwritten."""
        return self._shards.totals(sums)

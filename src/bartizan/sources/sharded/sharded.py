"""Aggregation of updates that are sharded by columns over the ranks of a `torch.distributed` group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from bartizan._util.seeds import checked_seed
from bartizan._util.stopwatch import Stopwatch
from bartizan.aggregate import Aggregator, run
from bartizan.measure import Sketch
from bartizan.measure.client_sizes import client_sizes
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.source import Aggregation, Roster
from bartizan.sources.sharded.agreement import ShardInfo, agree, describe
from bartizan.sources.sharded.collectives import Failure, RankGrid, raising_failures
from bartizan.sources.sharded.dtensors import groups_of, placed_updates
from bartizan.sources.sharded.shard import OWN, Shard
from bartizan.sources.sharded.sharded_updates import ShardedUpdates
from bartizan.updates import Updates


@dataclass(frozen=True, init=False)
class ShardedAggregator:
    """A rule and a sketch for updates whose columns are divided among the ranks of a group.

    Every rank calls it with its own columns of all M updates and sketches them. The M x k numbers (M x M for `Exact`)
    are summed over the ranks, the first rank computes the weights and broadcasts them, and each rank combines its own
    columns. The result is that of one process up to rounding, and the traffic does not grow with p. An error on one
    rank, up to the last step, is raised on all ranks. Rules are given as in `Aggregator`, `n_byzantine` alone included.
    See `docs/guides/distributed.md`.
    """

    rule: Rule | CoordinateWise
    sketch: Sketch | str

    def __init__(
        self,
        rule: Rule | CoordinateWise | str | None = None,
        sketch: Sketch | str = "auto",
        *,
        n_byzantine: int | None = None,
    ) -> None:
        alone = Aggregator(rule, sketch, n_byzantine=n_byzantine)
        object.__setattr__(self, "rule", alone.rule)
        object.__setattr__(self, "sketch", alone.sketch)

    @raising_failures()
    def __call__(
        self,
        shard: Any,
        *,
        offset: int | None = None,
        group: Any = None,
        sizes: npt.ArrayLike | None = None,
        reference: Any = None,
        trusted: Any = None,
        seed: int | None = None,
        history: tuple[float, ...] = (),
        strict: bool = False,
    ) -> Aggregation[Any]:
        """This rank's columns of the robust update, and the weights, quarantine and seed that all ranks share.

        Args:
            shard: These columns of all updates, in any form that `aggregate` takes: an (M, w) array, a list, an (M, p)
                DTensor with placements [Shard(1)] or [Replicate(), Shard(1)], or a list of updates of DTensors that are
                sharded over one axis of their mesh or replicated. It may have no columns, w = 0.
            offset: The coordinate of the first column; if no rank passes it, shards follow each other in the order of
                ranks.
            group: Of `torch.distributed`; all processes if not given (a DTensor: those of its mesh).
            sizes: As in `aggregate`; the same on every rank.
            reference: These columns of the origin.
            trusted: These columns of the server's own update.
            seed: The same on every rank; if not given, drawn by the first once all have arrived.
            history: As in `aggregate`; the same on every rank.
            strict: Raise on the first client that can't take part, on all ranks, instead of quarantining it.
        """
        watch = Stopwatch()
        placed = placed_updates(shard)
        ranks = RankGrid(groups_of(shard, placed) if group is None else [group])

        def read() -> tuple[Shard, ShardInfo]:
            self.rule.check_trusted(trusted is not None)
            points = {"reference": reference, "trusted": trusted}
            mine = Shard.of(shard, placed, offset, points, ranks.counts_replicated)
            if group is not None and mine.placements is not None:
                raise ValueError("DTensors have the group of their mesh: leave group out.")
            same = self._arguments(mine.clients, sizes, seed, history, strict)
            place = (mine.dtypes, mine.first, mine.width, mine.device)
            return mine, ShardInfo(ranks.global_rank, same, *place, mine.clients.quarantined)

        read_here = ranks.attempt(read)
        infos = ranks.gather(read_here if isinstance(read_here, Failure) else read_here[1], ShardInfo)
        assert not isinstance(read_here, Failure)
        firsts, dtype, quarantined = agree(infos, ranks.n_shards, strict)
        mine, own = read_here[0], read_here[0].clients
        kept = [row for row, client in enumerate(own.clients) if client not in quarantined]
        clients = replace(own.only(kept), quarantined=quarantined)
        ranks.choose_sum_device([each.device for each in infos])
        watch.lap("agree")
        S = None if sizes is None else client_sizes(sizes, clients.n_sent)
        on_gpu = clients.on_gpu
        roster = Roster(clients.n_sent, mine.width, dtype, quarantined, sizes=S, strict=strict, on_gpu=on_gpu)
        source = ShardedUpdates(ranks, clients, firsts[ranks.rank], max(each.width for each in infos), roster)
        if ranks.is_leader:
            result = ranks.attempt(
                lambda: run(source, Aggregator(self.rule, self.sketch), seed, history=tuple(history), watch=watch),
                of_all_ranks=True,
            )
            if isinstance(result, Failure):
                ranks.broadcast(result, Failure)
            assert not isinstance(result, Failure)
        else:
            result = Aggregation.of(*source.follow(watch), roster, watch.laps)
        update = result.update[OWN] if mine.is_empty else result.update
        if (placements := mine.placements) is not None:
            counted: Any = {}
            if placements.replicated:
                own_part = ranks.attempt(lambda: placements.counted(update)) if ranks.is_leader else None
                counted = ranks.broadcast(own_part, dict)
            update = placements.completed(update, counted)
        return replace(result, update=update)

    def _arguments(
        self, clients: Updates, sizes: Any, seed: int | None, history: tuple[float, ...], strict: bool
    ) -> dict[str, Any]:
        """The arguments that must be the same on all ranks, by name; bytes are not shown in messages."""
        return {
            "the rule": describe(self.rule),
            "the sketch": describe(self.sketch),
            "the number of clients": clients.n_sent,
            "whether there is a reference": clients.reference is not None,
            "whether there is a trusted update": clients.trusted is not None,
            "the history": describe(tuple(map(float, history))),
            "strict": bool(strict),
            "the clients' sizes": b"" if sizes is None else client_sizes(sizes, clients.n_sent).tobytes(),
            "the seed": b"" if seed is None else str(checked_seed(seed)).encode(),
        }

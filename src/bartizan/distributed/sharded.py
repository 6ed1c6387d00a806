"""Aggregation of updates that are sharded by columns over the ranks of a `torch.distributed` group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any

import numpy.typing as npt

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan._util.stopwatch import Stopwatch
from bartizan._util.types import Floats
from bartizan.aggregate import Aggregator
from bartizan.defense.decide import effective_sketch
from bartizan.distributed.agreement import Agreement, Fingerprint, ShardInfo, agree
from bartizan.distributed.collectives import RankGrid
from bartizan.distributed.dtensors import groups_of
from bartizan.distributed.failure import Failure, raise_any
from bartizan.distributed.partial_gram import PartialSums
from bartizan.distributed.rank import Rank
from bartizan.distributed.shard import Shard
from bartizan.geometry import client_sizes
from bartizan.result import Aggregation
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sketch import Exact, Sketch
from bartizan.updates import Updates, combine


@dataclass(frozen=True)
class ShardedAggregator:
    """A rule and a sketch, called on every rank of a group with its own columns of all M updates.

    Each rank sketches its columns at their place among all p, the M x k numbers are summed (M x M for `Exact`), the
    first rank decides the weights and sends them to all, and each combines its own columns. The result is that of one
    process up to rounding; the traffic does not grow with p; an error of one rank, up to the last step, is raised on
    all of them. More in `docs/distributed.md`.
    """

    rule: Rule | CoordinateWise
    sketch: Sketch | str = Exact()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sketch", self._alone.sketch)

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
                DTensor with placements [Shard(1)] or [Replicate(), Shard(1)], a list of flat ones. It may have no
                columns, w = 0.
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
        ranks = RankGrid(groups_of(shard) if group is None else [group])
        mine: Shard | None = None
        info: ShardInfo | Failure
        try:
            if isinstance(self.rule, Rule):
                self.rule.check_trusted(trusted is not None)
            mine = Shard.of(shard, offset, reference, trusted)
            given = None if sizes is None else client_sizes(sizes, mine.clients.n_sent)
            info = self._info(ranks.global_rank, mine, given, seed, history, strict)
        except Exception as wrong:  # the other ranks wait for this one
            info = Failure.of(wrong, ranks.global_rank)
        infos = ranks.gather(info, ShardInfo, Failure)
        agreement = agree(infos, ranks.n_shards)
        assert mine is not None
        mine = mine.with_dtypes(agreement.dtypes)
        clients = mine.clients.without(agreement.quarantined)
        ranks.choose_sum_device([each.device for each in infos])
        seed, sketch = self._seed_and_sketch(ranks, clients, agreement, seed)
        watch.lap("agree")

        S = client_sizes(sizes, clients.n_sent)
        partial = PartialSums(effective_sketch(self.rule, sketch), clients, agreement.firsts[ranks.rank], seed)
        rank = Rank(ranks, partial, clients, agreement, watch)
        verdict = rank.verdict(self.rule, sketch, S, tuple(history), strict)

        failure: Failure | None = None
        try:
            decision = verdict.decision
            update = combine(clients.without(verdict.quarantined), decision.weights, decision.coordinate_stage)
            watch.lap("combine")
            out = Aggregation.of(mine.result(update), verdict, range(clients.n_sent), watch.laps)
        except Exception as wrong:
            failure = Failure.of(wrong, ranks.global_rank)
        raise_any(ranks.gather(failure, Failure, NoneType))
        return out

    def _info(
        self,
        global_rank: int,
        mine: Shard,
        sizes: Floats | None,
        seed: int | None,
        history: tuple[float, ...],
        strict: bool,
    ) -> ShardInfo:
        clients = mine.clients
        return ShardInfo(
            rank=global_rank,
            rule=Fingerprint.of(self.rule),
            sketch=Fingerprint.of(self.sketch),
            n_clients=clients.n_sent,
            dtypes=mine.dtypes,
            reference=clients.reference is not None,
            trusted=clients.trusted is not None,
            history=Fingerprint.of(tuple(map(float, history))),
            strict=bool(strict),
            sizes=None if sizes is None else sizes.tobytes(),
            seed=None if seed is None else checked_seed(seed),
            first=None if mine.first is None else int(mine.first),
            width=mine.width,
            dim=None if mine.columns is None else mine.columns.dim,
            device=mine.device,
            quarantined=clients.quarantined,
        )

    def _seed_and_sketch(
        self, ranks: RankGrid, clients: Updates, agreement: Agreement, seed: int | None
    ) -> tuple[int, Sketch]:
        """The seed and the sketch of this round, chosen by the first rank once all updates have arrived."""
        chosen: Any = None
        if ranks.is_leader:
            try:
                sketch = self._alone.sketch_for(clients, max(agreement.widths))
                chosen = (fresh_seed() if seed is None else seed, sketch)
            except Exception as wrong:
                chosen = Failure.of(wrong, ranks.global_rank, of_all_ranks=True)
        chosen = ranks.broadcast(chosen, tuple, Failure)
        if isinstance(chosen, Failure):
            raise chosen.error()
        return chosen

    @cached_property
    def _alone(self) -> Aggregator:
        return Aggregator(self.rule, self.sketch)

"""One aggregation by several processes: each reads and combines its own columns, and one decides for all."""

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
from bartizan.distributed.agreement import Agreement, Claim, agreed
from bartizan.distributed.dtensors import groups_of
from bartizan.distributed.failure import Failure, raise_any
from bartizan.distributed.grid import Grid
from bartizan.distributed.named import Named
from bartizan.distributed.partial_gram import Contribution
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

    Each rank sketches its columns as what they are among all p, the M x k numbers are summed (M x M for `Exact`), the
    first rank decides and tells the weights, and each combines its own columns. The result is that of one process up
    to rounding; what travels does not grow with p; what is wrong on one rank, up to the last step, is raised on all of
    them. More in `docs/distributed.md`.
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
            offset: Which of all coordinates the first column is; if no rank says, shards follow each other in the
                order of ranks.
            group: Of `torch.distributed`; all processes if not given (a DTensor: those of its mesh).
            sizes: As in `aggregate`; the same on every rank.
            reference: These columns of the origin.
            trusted: These columns of an update that the server vouches for.
            seed: The same on every rank; if not given, drawn by the first once all have arrived.
            history: As in `aggregate`; the same on every rank.
            strict: Raise on the first unfit client, on all ranks, instead of quarantining it.
        """
        watch = Stopwatch()
        peers = Grid(groups_of(shard) if group is None else [group])
        mine: Shard | None = None
        claim: Claim | Failure
        try:
            if isinstance(self.rule, Rule):
                self.rule.check_trusted(trusted is not None)
            mine = Shard.of(shard, offset, reference, trusted)
            given = None if sizes is None else client_sizes(sizes, mine.clients.n_sent)
            claim = self._claim(peers.process, mine, given, seed, history, strict)
        except Exception as wrong:  # the others wait: they must hear of it
            claim = Failure.of(wrong, peers.process)
        claims = peers.everyones(claim, Claim, Failure)
        agreement = agreed(claims, peers.n_shards)
        assert mine is not None
        mine = mine.among(agreement.dtypes)
        clients = mine.clients.without(agreement.quarantined)
        peers.sum_where_the_shards_are([each.device for each in claims])
        seed, sketch = self._begun(peers, clients, agreement, seed)
        watch.lap("agree")

        S = client_sizes(sizes, clients.n_sent)
        contribution = Contribution(effective_sketch(self.rule, sketch), clients, agreement.firsts[peers.rank], seed)
        rank = Rank(peers, contribution, clients, agreement, watch)
        verdict = rank.verdict(self.rule, sketch, S, tuple(history), strict)

        failure: Failure | None = None
        try:
            decision = verdict.decision
            update = combine(clients.without(verdict.quarantined), decision.weights, decision.coordinate_stage)
            watch.lap("combine")
            out = Aggregation.of(mine.built(update), verdict, range(clients.n_sent), watch.laps)
        except Exception as wrong:
            failure = Failure.of(wrong, peers.process)
        raise_any(peers.everyones(failure, Failure, NoneType))
        return out

    def _claim(
        self,
        process: int,
        mine: Shard,
        sizes: Floats | None,
        seed: int | None,
        history: tuple[float, ...],
        strict: bool,
    ) -> Claim:
        clients = mine.clients
        return Claim(
            rank=process,
            rule=Named.of(self.rule),
            sketch=Named.of(self.sketch),
            n_clients=clients.n_sent,
            dtypes=mine.dtypes,
            reference=clients.reference is not None,
            trusted=clients.trusted is not None,
            history=Named.of(tuple(map(float, history))),
            strict=bool(strict),
            sizes=None if sizes is None else sizes.tobytes(),
            seed=None if seed is None else checked_seed(seed),
            first=None if mine.first is None else int(mine.first),
            width=mine.width,
            dim=None if mine.place is None else mine.place.dim,
            device=mine.device,
            quarantined=clients.quarantined,
        )

    def _begun(self, peers: Grid, clients: Updates, agreement: Agreement, seed: int | None) -> tuple[int, Sketch]:
        """The seed and the sketch of this round, which the first rank chooses now that all are there."""
        said: Any = None
        if peers.leads:
            try:
                said = (
                    fresh_seed() if seed is None else checked_seed(seed),
                    self._alone.sketch_for(clients, max(agreement.widths)),
                )
            except Exception as wrong:
                said = Failure.of(wrong, peers.process, of_the_round=True)
        said = peers.from_the_leader(said, tuple, Failure)
        if isinstance(said, Failure):
            raise said.error()
        seed, sketch = said
        return seed, sketch

    @cached_property
    def _alone(self) -> Aggregator:
        return Aggregator(self.rule, self.sketch)

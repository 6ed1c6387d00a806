"""Updates too large for one machine: each rank of a torch.distributed group holds some columns of all of them."""

from bartizan.sources.sharded.collectives import RankError
from bartizan.sources.sharded.sharded import ShardedAggregator

__all__ = ["RankError", "ShardedAggregator"]

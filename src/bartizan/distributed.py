"""Aggregation of updates that are sharded by columns over ranks."""

from bartizan.sources.sharded import RankError, ShardedAggregator

__all__ = ["RankError", "ShardedAggregator"]

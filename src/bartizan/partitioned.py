"""Aggregation of clients that are divided among workers."""

from bartizan.sources.partitioned import WorkerError, aggregate

__all__ = ["WorkerError", "aggregate"]

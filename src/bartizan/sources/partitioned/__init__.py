"""Clients divided among workers: each worker holds whole updates of some clients, and one decision is made for all."""

from bartizan.sources.partitioned.partitioned import aggregate
from bartizan.sources.partitioned.workers import WorkerError

__all__ = ["WorkerError", "aggregate"]

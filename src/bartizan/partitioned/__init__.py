"""Clients divided among workers: each worker holds whole updates of some clients, and one decision is made for all."""

from bartizan.partitioned.partitioned import aggregate
from bartizan.partitioned.workers import WorkerError

__all__ = ["WorkerError", "aggregate"]

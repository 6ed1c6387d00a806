"""Robust aggregation inside a Flower app: one strategy, in place of `FedAvg`."""

from bartizan._util.extras import missing_extra

try:
    import flwr as _flwr  # noqa: F401
except ModuleNotFoundError as missing:
    raise missing_extra("bartizan.flower needs Flower", "flower") from missing

from bartizan.flower.async_strategy import AsyncRobustStrategy
from bartizan.flower.committed_mod import committed_mod
from bartizan.flower.strategy import RobustStrategy
from bartizan.judge.reputation import Reputation, Suspect

__all__ = ["AsyncRobustStrategy", "Reputation", "RobustStrategy", "Suspect", "committed_mod"]

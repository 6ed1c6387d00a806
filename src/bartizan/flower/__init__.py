"""Robust aggregation inside a Flower app: one strategy, in place of `FedAvg`."""

try:
    import flwr as _flwr  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("bartizan.flower needs Flower: pip install 'bartizan[flower]'") from missing

from bartizan.flower.async_strategy import AsyncRobustStrategy
from bartizan.flower.committed_mod import committed_mod
from bartizan.flower.strategy import RobustStrategy
from bartizan.judge.reputation import Reputation, Suspect

__all__ = ["AsyncRobustStrategy", "Reputation", "RobustStrategy", "Suspect", "committed_mod"]

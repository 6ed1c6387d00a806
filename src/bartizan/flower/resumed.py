"""A run that goes on behind rounds that were done before: Flower's own loop counts from 1 each time."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy


class Continued(Strategy):
    """Another strategy in Flower's loop, which is told the rounds of the whole run: its subclasses may go by them."""

    def __init__(self, strategy: Strategy, done: int) -> None:
        self.strategy, self.done = strategy, done

    def summary(self) -> None:
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_train(self.done + server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self.strategy.aggregate_train(self.done + server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(self.done + server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(self.done + server_round, replies)


def continued(strategy: Strategy, done: int) -> Continued:
    """Under the strategy's own name, which Flower logs."""
    named: type[Continued] = type(type(strategy).__name__, (Continued,), {})
    return named(strategy, done)


def counted_on(result: Result, done: int) -> None:
    """Number the rounds of a result from where the run stood."""
    by_round = (
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
    )
    for rounds in by_round:
        moved = {t + done: metrics for t, metrics in rounds.items()}
        rounds.clear()
        rounds.update(moved)

"""Follow a run in MLflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bartizan._util.extras import missing_extra
from bartizan.watch.base import Line, Watcher, settings_of

METRICS_PER_BATCH = 1000  # MLflow's limit


class MLflow(Watcher):
    """Send each round to MLflow as metrics, and the configuration as parameters.

    The client is its own: the active run of the process is not touched. A run that is resumed becomes a run of its own
    in MLflow, with all rounds.

    Args:
        experiment: MLflow's experiment, which is made if there is none of this name.
        uri: The tracking server or store; by default MLFLOW_TRACKING_URI, and what MLflow takes without it.
        clients: Whether to send numbers of each client.
    """

    def __init__(self, experiment: str = "bartizan", uri: str | None = None, *, clients: bool = True) -> None:
        super().__init__(clients=clients)
        try:
            from mlflow.tracking import MlflowClient
        except ModuleNotFoundError as missing:
            raise missing_extra("bartizan.watch.MLflow needs MLflow", "mlflow") from missing
        self.experiment, self.run_id = experiment, ""
        self._client: Any = MlflowClient(uri)

    def begin(self, run: Line) -> None:
        found = self._client.get_experiment_by_name(self.experiment)
        where = found.experiment_id if found else self._client.create_experiment(self.experiment)
        self.run_id = self._client.create_run(where, run_name=str(run.get("name") or "bartizan")).info.run_id
        for key, value in settings_of(run).items():
            self._client.log_param(self.run_id, key, str(value)[:500])

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in numbers.items()]
        for first in range(0, len(metrics), METRICS_PER_BATCH):
            self._client.log_batch(self.run_id, metrics[first : first + METRICS_PER_BATCH])

    def end(self, end: Line) -> None:
        self._client.set_terminated(self.run_id, "FINISHED" if end.get("status") == "finished" else "FAILED")

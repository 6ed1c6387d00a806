"""Callbacks for `watch=`: follow a run of Flower, NVFlare or the laboratory in a tracking server, round by round."""

from bartizan.watch.base import Guarded, Watch, Watcher, watcher
from bartizan.watch.mlflow_watch import MLflow
from bartizan.watch.opentelemetry_watch import OpenTelemetry
from bartizan.watch.tensorboard_watch import TensorBoard
from bartizan.watch.wandb_watch import WandB

__all__ = ["Guarded", "MLflow", "OpenTelemetry", "TensorBoard", "WandB", "Watch", "Watcher", "watcher"]

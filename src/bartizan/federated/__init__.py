"""The laboratory: federated training under attack, on one machine."""

from bartizan.federated.experiment import Experiment
from bartizan.federated.run import run
from bartizan.federated.sweep import sweep

__all__ = ["Experiment", "run", "sweep"]

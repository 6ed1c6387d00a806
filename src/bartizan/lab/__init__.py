"""The laboratory: federated training under attack, on one machine."""

from bartizan.lab.config.experiment import Experiment
from bartizan.lab.runs.run import run
from bartizan.lab.runs.sweep import sweep

__all__ = ["Experiment", "run", "sweep"]

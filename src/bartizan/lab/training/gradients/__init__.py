"""Compute the gradients of many clients, one after the other or many at once."""

from bartizan.lab.training.gradients.choice import PRECISIONS, clients_at_once, fastest_passes
from bartizan.lab.training.gradients.cuda_graphs import Captured
from bartizan.lab.training.gradients.grouped import Grouped
from bartizan.lab.training.gradients.passes import Gradients, Loop, Pass, Vmapped

__all__ = [
    "PRECISIONS",
    "Captured",
    "Gradients",
    "Grouped",
    "Loop",
    "Pass",
    "Vmapped",
    "clients_at_once",
    "fastest_passes",
]

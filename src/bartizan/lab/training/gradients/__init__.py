"""Compute the gradients of many clients, one after the other or many at once."""

from bartizan.lab.training.gradients.cuda_graphs import Captured
from bartizan.lab.training.gradients.grouped import Grouped
from bartizan.lab.training.gradients.passes import Loop, Vmapped

__all__ = ["Captured", "Grouped", "Loop", "Vmapped"]

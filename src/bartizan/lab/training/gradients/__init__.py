"""Compute the gradients of many clients, one after the other or many at once."""

from bartizan.lab.training.gradients.cuda_graphs import Captured, CapturedGrouped, capture
from bartizan.lab.training.gradients.grouped import Grouped
from bartizan.lab.training.gradients.passes import Loop, Vmapped

__all__ = ["Captured", "CapturedGrouped", "Grouped", "Loop", "Vmapped", "capture"]

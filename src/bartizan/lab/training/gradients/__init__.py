"""Compute the gradients of many clients, one after the other or many at once."""

from bartizan.lab.training.gradients.grouped import Grouped
from bartizan.lab.training.gradients.passes import Loop, Vmapped

__all__ = ["Grouped", "Loop", "Vmapped"]

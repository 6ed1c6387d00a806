"""Ways to get all clients' gradients: one after the other, or many at once."""

from bartizan.lab.training.gradients.base import Gradients, Pass
from bartizan.lab.training.gradients.batch_memory import at_once
from bartizan.lab.training.gradients.choice import PRECISIONS, chosen
from bartizan.lab.training.gradients.cuda_graphs import Captured
from bartizan.lab.training.gradients.grouped import Grouped
from bartizan.lab.training.gradients.loop import Loop
from bartizan.lab.training.gradients.vmapped import Vmapped

__all__ = ["PRECISIONS", "Captured", "Gradients", "Grouped", "Loop", "Pass", "Vmapped", "at_once", "chosen"]

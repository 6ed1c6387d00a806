"""Ways to get all clients' gradients: one after the other, or many at once."""

from bartizan.federated.passes.base import Gradients, Pass
from bartizan.federated.passes.captured import Captured
from bartizan.federated.passes.choice import PRECISIONS, chosen
from bartizan.federated.passes.grouped import Grouped
from bartizan.federated.passes.loop import Loop
from bartizan.federated.passes.memory import at_once
from bartizan.federated.passes.vmapped import Vmapped

__all__ = ["PRECISIONS", "Captured", "Gradients", "Grouped", "Loop", "Pass", "Vmapped", "at_once", "chosen"]

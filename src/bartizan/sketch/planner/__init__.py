"""Which sketch, which k, at what price: from a cost model that is measured on this machine."""

from bartizan.sketch.planner.calibration import calibrate, stored
from bartizan.sketch.planner.costs import Costs
from bartizan.sketch.planner.plan import Plan, Price, plan, sketch_for

__all__ = ["Costs", "Plan", "Price", "calibrate", "plan", "sketch_for", "stored"]

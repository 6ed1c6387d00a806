"""Robust aggregation inside an NVFlare job: one aggregator, for a recipe's `aggregator=`."""

from bartizan._util.extras import missing_extra

try:
    import nvflare as _nvflare  # noqa: F401
except ModuleNotFoundError as missing:
    raise missing_extra("bartizan.nvflare needs NVFlare", "nvflare") from missing

from bartizan.judge.reputation import Reputation, Suspect
from bartizan.nvflare.aggregator import RobustAggregator
from bartizan.nvflare.job_record import load_reputation

__all__ = ["Reputation", "RobustAggregator", "Suspect", "load_reputation"]

"""Robust aggregation of LoRA adapters by the products of their factors."""

from bartizan.sources.adapters import (
    AdapterAggregation,
    AdapterRound,
    LoRA,
    TwoSided,
    aggregate,
    open_adapter,
    save_adapter,
)

__all__ = ["AdapterAggregation", "AdapterRound", "LoRA", "TwoSided", "aggregate", "open_adapter", "save_adapter"]

"""Updates that are LoRA adapters: compared by their products B A, whatever the ranks and rotations of the factors."""

from bartizan.sources.adapters.adapter_round import AdapterAggregation, AdapterRound, aggregate
from bartizan.sources.adapters.adapters import LoRA
from bartizan.sources.adapters.peft_folders import open_adapter, save_adapter
from bartizan.sources.adapters.two_sided import TwoSided

__all__ = ["AdapterAggregation", "AdapterRound", "LoRA", "TwoSided", "aggregate", "open_adapter", "save_adapter"]

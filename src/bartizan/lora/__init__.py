"""Updates that are LoRA adapters: compared by their products B A, whatever the ranks and rotations of the factors."""

from bartizan.lora.adapter_round import AdapterAggregation, AdapterRound, aggregate
from bartizan.lora.adapters import LoRA
from bartizan.lora.peft_folders import open_adapter, save_adapter
from bartizan.lora.two_sided import TwoSided

__all__ = ["AdapterAggregation", "AdapterRound", "LoRA", "TwoSided", "aggregate", "open_adapter", "save_adapter"]

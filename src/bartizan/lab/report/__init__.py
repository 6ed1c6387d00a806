"""Charts and tables of finished or unfinished runs; reads their `results.jsonl`, never trains, needs no torch."""

from bartizan.lab.report.write import Written, write

__all__ = ["Written", "write"]

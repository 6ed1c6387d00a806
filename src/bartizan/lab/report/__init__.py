"""Charts and tables of finished or unfinished runs, from their `results.jsonl`; torch is not needed."""

from bartizan.lab.report.write import Written, write

__all__ = ["Written", "write"]

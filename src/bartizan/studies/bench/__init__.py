"""`bartizan bench`: what robust aggregation costs, in reads of the updates, here and in other libraries."""

from bartizan.studies.bench.bench_rows import Row

__all__ = ["Row"]

"""The cost of robust aggregation, in reads of the updates, here and in other libraries."""

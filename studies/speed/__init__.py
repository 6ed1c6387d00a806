"""`bartizan bench`: what robust aggregation costs, in reads of the updates, here and in other libraries."""

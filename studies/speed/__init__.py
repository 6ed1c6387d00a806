"""What robust aggregation costs, in reads of the updates, here and in other libraries."""

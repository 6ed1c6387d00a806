"""Two shows: training under attack, and what aggregation alone does and costs."""

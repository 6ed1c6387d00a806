"""Two demos: training under attack, and aggregation alone."""

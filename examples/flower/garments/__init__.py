"""A Flower app with robust aggregation."""

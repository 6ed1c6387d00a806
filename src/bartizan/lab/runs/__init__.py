"""Run experiments in folders, one or many, and resume them."""

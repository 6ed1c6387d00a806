"""Experiment files: keys, defaults, checks."""

"""Hostile files of the laboratory: data sets, experiments, results and checkpoints."""

"""Runs on disk: folders, checkpoints, sweeps."""

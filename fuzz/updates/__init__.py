"""Hostile clients of one round, and files of updates."""

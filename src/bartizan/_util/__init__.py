"""Helpers that know nothing of aggregation: text, files, machine, threads."""

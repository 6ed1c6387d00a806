"""Committed rounds: clients commit to their updates, send sketches, and only those with weight send the rest."""

"""One training run in memory: clients, server and evaluation."""

"""One training run in memory: clients, server, evaluation."""

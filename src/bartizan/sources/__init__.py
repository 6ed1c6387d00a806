"""Sources of updates: where the updates of one round are, and how they are measured and combined there."""

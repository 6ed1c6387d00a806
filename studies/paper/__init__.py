"""The paper's tables: which cells there are, running them, and ours beside theirs."""

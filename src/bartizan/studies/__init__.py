"""Evidence about bartizan: the paper, theory, benchmarks, demos. Only the command line imports it."""

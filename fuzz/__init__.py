"""The hostile input campaign: whatever strangers send, tried by the million; `python -m fuzz --help`.

A case is a function of bytes. So the same case is drawn at random, steered by coverage, shrunk by Hypothesis, and kept
as a small file in `tests/corpus` that CI replays.
"""

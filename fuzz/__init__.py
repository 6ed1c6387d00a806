"""The hostile input campaign: whatever strangers send, tried by the million; `python -m fuzz --help`.

A case is a function of bytes. So the same case is drawn at random, steered by coverage, or shrunk by Hypothesis. What
is found becomes a named test (`tests/test_found.py`): bytes mean something else as soon as there is one more choice.
"""

"""Fuzz campaign: hostile inputs to every way into the library; `python -m fuzz --help`.

A surface is a way in: Hypothesis strategies that draw a case, and a function that runs it and compares the answer with
an oracle. `surfaces` lists them. A failure that was found becomes a named test in `tests/test_found.py`.
"""

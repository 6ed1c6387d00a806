"""Fuzz campaign: hostile inputs to every way into the library; `python -m fuzz --help`.

A case is a function of bytes, so that it can be drawn at random, found by coverage or shrunk. `surfaces` lists the ways
into the library; the modules that hold them mirror the package. A failure that was found becomes a named test in
`tests/test_found.py`: the same bytes mean another case as soon as one more choice is added.
"""

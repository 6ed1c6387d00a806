"""Modules whose extra is not installed have no examples to run."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("flwr") else ["src/bartizan/flower"]

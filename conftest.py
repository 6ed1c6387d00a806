"""Modules whose extra is not installed have no examples to run, and an app for Flower's processes is no test."""

from importlib.util import find_spec

collect_ignore = ["tests/flower_app", *([] if find_spec("flwr") else ["src/bartizan/flower", "fuzz/flower.py"])]

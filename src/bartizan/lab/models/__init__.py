"""Networks by name, for images of any size."""

from bartizan.lab.models.networks import MODELS, build

__all__ = ["MODELS", "build"]

"""Data sets by name, each read from the files that its authors publish."""

from bartizan.federated.data.base import DataError, Dataset, Images
from bartizan.federated.data.table import DATASETS, load

__all__ = ["DATASETS", "DataError", "Dataset", "Images", "load"]

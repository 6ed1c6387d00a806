"""Load data sets by name, each from the files that its authors publish."""

from bartizan.lab.data.base import DataError, Dataset, Images
from bartizan.lab.data.loaders import DATASETS, load

__all__ = ["DATASETS", "DataError", "Dataset", "Images", "load"]

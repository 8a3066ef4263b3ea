"""From DataFrames, RDDs and arrays to tensors on the executors."""

from sparkdl.data.collate import Pad
from sparkdl.data.columns import Column
from sparkdl.data.dataset import Dataset

__all__ = ["Column", "Dataset", "Pad"]

"""From DataFrames, RDDs and arrays to tensors on the executors.

The names load what they need when they are first used: a prediction without Spark imports no Dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl.lazy import lazy

if TYPE_CHECKING:
    from sparkdl.data.collate import Pad as Pad
    from sparkdl.data.columns import Column as Column
    from sparkdl.data.dataset import Dataset as Dataset

_MODULES = {
    "sparkdl.data.collate": "Pad",
    "sparkdl.data.columns": "Column",
    "sparkdl.data.dataset": "Dataset",
}

__all__, __getattr__, __dir__ = lazy(__name__, _MODULES)

"""Rows for training and rows for validation: a split that is the same in every run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparkdl import seeding
from sparkdl.data.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HASHES = 1 << 20


def split_by_fraction(df: DataFrame, fraction: float, seed: int) -> tuple[DataFrame, DataFrame]:
    """Split rows into training and validation by a hash of their values.

    The same rows go to the same side in whatever order they come, equal rows together: both sides are
    computed on their own, and a row that changed sides in between would be lost or seen twice.
    """
    from pyspark.sql import functions as F

    hashed = F.pmod(F.xxhash64(F.lit(seed), *(quoted(name) for name in df.columns)), F.lit(_HASHES))
    chosen = hashed < F.lit(round(fraction * _HASHES))
    return df.filter(~chosen), df.filter(chosen)


def split_pandas(df: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """Split the rows of a pandas DataFrame into training and validation, by their number and the seed."""
    drawn = np.random.default_rng(seeding.derive(seeding.ORDER, seed)).permutation(len(df))
    held = np.zeros(len(df), np.bool_)
    held[drawn[: round(fraction * len(df))]] = True
    return df[~held], df[held]

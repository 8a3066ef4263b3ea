"""MovieLens-100K, from the files of the package recbole, which is not imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest


def ratings(users: int | None = None) -> pd.DataFrame:
    """Return user, item, rating and time; skip the test where the file is missing.

    Args:
        users: how many users to take.
    """
    package = find_spec("recbole")
    if package is None or package.origin is None:
        pytest.skip("needs the files of recbole")
    file = Path(package.origin).parent / "dataset_example" / "ml-100k" / "ml-100k.inter"
    names = ["user", "item", "rating", "time"]
    table = pd.read_csv(file, sep="\t", header=0, names=names).astype("int64")
    return table if users is None else table[table.user <= users].reset_index(drop=True)

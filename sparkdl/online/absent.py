"""Columns that a file of a stream lacks: Spark reads nulls there, since the stream has one schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import functions as F

from sparkdl.data.columns import quoted
from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import DataError

_FILES = 3


@contextmanager
def explained(given: Any, rows: Dataset) -> Iterator[None]:
    """Add to an error about a null which files of a batch have no value of a column at all."""
    try:
        yield
    except DataError as error:
        if error.code != "data-null" or not type(given).__module__.startswith("pyspark.sql."):
            raise
        columns = dict.fromkeys(column.source for column in rows.plan.columns)
        found = absent(given, [name for name in columns if name in given.columns])
        if not found:
            raise
        raise DataError(
            f"{'; '.join(found)}. A file that lacks a column is read as nulls. Move such files away from the "
            f"stream's folder, or leave their rows out by stream.na.drop(). First found: {error}",
            code="data-null",
        ) from error


def absent(rows: Any, columns: Sequence[str]) -> list[str]:
    """Return a sentence for each column that has no value in a file, with the first of these files."""
    if not columns:
        return []
    counts = [F.count(quoted(name)).alias(f"c{n}") for n, name in enumerate(columns)]
    table = rows.groupBy(F.input_file_name().alias("file")).agg(*counts)
    found = []
    for n, name in enumerate(columns):
        files = [row["file"] for row in table.filter(F.col(f"c{n}") == 0).orderBy("file").take(_FILES)]
        where = ", ".join(file for file in files if file) or "the batch"
        if files:
            found.append(f"column {name!r} has no value in any row of {where}")
    return found

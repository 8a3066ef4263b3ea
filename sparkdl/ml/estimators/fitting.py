"""Facts about a DataFrame for a fit: classes, scales, validation rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.stat import Summarizer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType

from sparkdl._spark.errors import is_job_failure, task_error
from sparkdl.data.collate import tensor_of
from sparkdl.data.columns import name_id, quoted
from sparkdl.data.dataset import Dataset
from sparkdl.data.schema import (
    STRINGS,
    check_collation,
    check_dataframe,
    check_no_stream,
    check_unambiguous,
)
from sparkdl.data.store.dataframe import DataFrameSource, check_repeats
from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array

NOTHING = "__sparkdl_nothing"
"""A column that stands in for features which are not there yet."""

_MAX_CLASSES = 1000
"""So many classes at most are inferred from labels: a stray one would make a module of any size."""

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?", re.ASCII)

_LARGEST = float(np.finfo(np.float32).max)


def check_rows(name: str, df: DataFrame, method: str = "fit") -> None:
    """Check that these are rows of Spark which have an end."""
    check_dataframe(df, f"{name}.{method}")
    check_no_stream(df, f"{name}.{method}")


def index_strings(
    df: DataFrame, name: str, known: tuple[str, ...] = (), named: tuple[str, ...] = ()
) -> tuple[DataFrame, tuple[str, ...]]:
    """Number a label column's strings, the most frequent first, as StringIndexer does.

    ``known`` are all strings that there may be, by number; ``named`` holds if it is all that there are, as a
    model's classes are called. Returns the rows, with doubles and the strings in the column's metadata, and
    the strings; the rows as they are if the column holds something else.
    """
    if not is_text(df, name):
        return df, ()
    check_unambiguous(df, name, "label")
    check_collation(df.schema[name].dataType, f"label column {name!r}")
    labels = known or _strings(df, name)
    if known:
        for row in df.where(~quoted(name).isin(*known)).select(quoted(name)).limit(1).collect():
            raise DataError(
                f"label column {name!r} holds {row[0]!r:.100}, for which the model has no class; it has "
                f"those for {', '.join(known)!s:.300}. Leave such rows out, or fit anew from the start",
                code="data-value",
            )
    if not labels:
        raise DataError(
            f"label column {name!r} holds no labels: there is nothing to train on", code="data-empty"
        )
    if not 2 <= len(labels) <= _MAX_CLASSES:
        many = "more than 1,000 different strings" if len(labels) > 1 else f"{labels[0]!r:.100} in all rows"
        raise DataError(
            f"label column {name!r} holds {many}: expected 2 to 1,000 classes. Cast numbers to double; for "
            "more classes use StringIndexer",
            code="data-value",
        )
    if set(labels) <= set(named):
        labels = named
    index = F.call_function("array_position", F.array(*map(F.lit, labels)), quoted(name)).cast("double") - 1
    metadata = {"ml_attr": {"type": "nominal", "name": name, "vals": list(labels)}}
    return df.withColumn(name, index.alias(name, metadata=metadata)), labels


def check_numbers(df: DataFrame, name: str, labels: Sequence[str]) -> None:
    """Check that numbers, where a label column has no strings, are those of a model's classes.

    A number stands for the class at its place, and not for the string that looks like it.
    """
    if is_text(df, name):
        return
    given = {value: number for number, value in enumerate(_attribute(df, name).get("vals") or ())}
    other = next((n for n, label in enumerate(labels) if given.get(label, n) != n), None)
    if other is not None:
        found = f"metadata of label column {name!r} has {labels[other]!r:.100} as {given[labels[other]]}"
        raise _other_numbers(found, labels, other)
    if not given and all(map(_NUMBER.fullmatch, labels)):
        other = next((n for n, label in enumerate(labels) if float(label) != n), None)
        if other is not None:
            raise _other_numbers(f"label column {name!r} holds numbers", labels, other)


def _other_numbers(found: str, labels: Sequence[str], other: int) -> DataError:
    return DataError(
        f"{found}, and the model's classes are the strings {', '.join(labels)!s:.300}, of which "
        f"{labels[other]!r:.100} is number {other}: other classes would be compared. Give the strings, as in "
        "the fit",
        code="data-type",
    )


def is_text(df: DataFrame, name: str) -> bool:
    """Return whether a column is there and holds strings."""
    return any(field.name == name and isinstance(field.dataType, STRINGS) for field in df.schema.fields)


def _strings(df: DataFrame, name: str) -> tuple[str, ...]:
    """Return a column's strings, the most frequent first; one more than there may be at most."""
    counts = (
        df.where(quoted(name).isNotNull()).groupBy(quoted(name).alias("label")).agg(F.count("*").alias("n"))
    )
    found = counts.orderBy(F.col("n").desc(), "label").limit(_MAX_CLASSES + 1).collect()
    return tuple(str(row["label"]) for row in found)


def with_values(df: DataFrame, names: Sequence[str]) -> DataFrame:
    """Leave out rows with null in one of the columns."""
    for name in names:
        df = df.filter(quoted(name).isNotNull())
    return df


def split_by_indicator(df: DataFrame, name: str, beside: Sequence[str] = ()) -> tuple[DataFrame, DataFrame]:
    """Split rows into training and validation by a boolean column; rows where it is null are in neither."""
    types = dict(df.dtypes)
    if name not in types:
        raise DataError(
            f"validation indicator column {name!r} is not in the DataFrame; "
            f"it has {', '.join(sorted(types))}",
            code="data-column",
        )
    if types[name] != "boolean":
        raise DataError(
            f"validation indicator column {name!r} has type {types[name]}: expected boolean", code="data-type"
        )
    check_repeats(df.select(*map(quoted, dict.fromkeys([*beside, name]))), side=name)
    chosen = quoted(name)
    return df.filter(~chosen), df.filter(chosen)


def check_sides(df: DataFrame, name: str) -> None:
    """Check that a column says of each row whether it validates."""
    if not df.schema[name].nullable:
        return
    (row,) = df.agg(F.count_if(quoted(name).isNull()).alias("nulls"), F.count("*").alias("rows")).collect()
    if row["nulls"]:
        raise DataError(
            f"validation indicator column {name!r} is null in {row['nulls']} of {row['rows']} rows, which "
            "are neither for training nor for validation. Drop them, or give them a side, as "
            f"F.coalesce({name!r}, F.lit(False)) does; handleInvalid='skip' leaves them out, as Spark's own "
            "estimators do",
            code="data-null",
        )


def classes_by_metadata(df: DataFrame, name: str) -> int | None:
    """Return the number of classes that a label column's metadata tells, as StringIndexer writes it."""
    attribute = _attribute(df, name)
    if attribute.get("type") == "binary":
        return 2
    if attribute.get("type") != "nominal":
        return None
    values = attribute.get("vals")
    count = len(values) if values else attribute.get("num_vals")
    return int(count) if count else None


def _attribute(df: DataFrame, name: str) -> Mapping[str, Any]:
    """Return what a column's metadata say of it, as Spark ML writes it."""
    fields = (field.metadata for field in df.schema.fields if field.name == name)
    found: Mapping[str, Any] = next(fields, {}).get("ml_attr", {})
    return found


def infer_classes(df: DataFrame, name: str) -> int:
    """Count classes by the largest label, for a module that is made to measure."""
    classes = classes_by_labels(df, name)
    if classes > _MAX_CLASSES:
        raise DataError(
            f"label column {name!r} holds {classes - 1}, which would make {classes} classes; up to "
            f"{_MAX_CLASSES} are inferred from labels. Filter the row if the label is a mistake, or number "
            "the labels that there are with StringIndexer; if there are so many classes, say so with "
            f"setHyper(outputs={classes})",
            code="data-value",
        )
    return max(2, classes)


def classes_by_labels(df: DataFrame, name: str) -> int:
    """Count classes by the largest label, in one pass over the column."""
    label = quoted(name).cast("double")
    # Not floor, which is a long integer that infinity overflows.
    wrong = (label < 0) | (label != F.rint(label)) | F.isnan(label) | (label == F.lit(float("inf")))
    (row,) = df.agg(
        F.max(label).alias("max"),
        F.min(F.when(wrong, label)).alias("wrong"),
        F.sum(wrong.cast("int")).alias("n"),
    ).collect()
    if row["n"]:
        raise DataError(
            f"label column {name!r} holds {row['wrong']} ({row['n']} such rows): expected integers from 0, "
            "one per class; StringIndexer makes them",
            code="data-value",
        )
    if row["max"] is None:
        raise DataError(
            f"label column {name!r} holds no labels: there is nothing to train on", code="data-empty"
        )
    return int(row["max"]) + 1


def check_labels(df: DataFrame, name: str, classes: int) -> None:
    """Check that all labels are classes."""
    found = classes_by_labels(df, name)
    if found > classes:
        raise DataError(
            f"label column {name!r} holds {found - 1}, but there are {classes} classes: expected integers "
            f"from 0 to {classes - 1}",
            code="data-value",
        )


def moments(df: DataFrame, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[Array, Array]]:
    """Compute mean and standard deviation of each value of some columns, in one pass.

    Nested arrays and raw bytes have 0 and 1. DataError names column and row of what is null, not finite or of
    another length.
    """
    types = {field.name: field.dataType for field in df.schema.fields}
    summary = Summarizer.metrics("mean", "std")
    vectors: dict[str, Column] = {}
    for name in shapes:
        kind, value = types[name], quoted(name)
        if isinstance(kind, BinaryType) or (
            isinstance(kind, ArrayType) and isinstance(kind.elementType, ArrayType)
        ):
            continue
        if not isinstance(kind, VectorUDT):
            values = (
                value.cast("array<double>") if isinstance(kind, ArrayType) else F.array(value.cast("double"))
            )
            value = array_to_vector(values)
        vectors[name] = value
    found = {name: (np.zeros(prod(shape)), np.ones(prod(shape))) for name, shape in shapes.items()}
    if not vectors:
        return found
    summaries = [summary.summary(value).alias(str(n)) for n, value in enumerate(vectors.values())]
    try:
        (row,) = df.agg(*summaries).collect()
    except Exception as error:
        if not is_job_failure(error):
            raise
        with Dataset.from_dataframe(df, features=list(vectors), num_partitions="input") as data:
            data.store()  # names column and row
        raise task_error(error, f"computing means and deviations of {list(vectors)}") from None
    for index, (name, value) in enumerate(vectors.items()):
        mean = row[index]["mean"].toArray()
        if not (np.abs(mean) <= _LARGEST).all():
            _check_finite(df, name, value)
        found[name] = (mean, row[index]["std"].toArray())
    return found


def _check_finite(df: DataFrame, name: str, vector: Column) -> None:
    """Check that all values are finite, also as float32."""
    bad = F.exists("values", lambda value: F.isnan(value) | (F.abs(value) > _LARGEST))
    numbered = df.select(F.monotonically_increasing_id().alias("id"), vector_to_array(vector).alias("values"))
    for first in numbered.where(bad).limit(1).collect():
        values, row = np.array(first["values"]), name_id(first["id"])
        value = values[~(np.abs(values) <= _LARGEST)][0]
        raise DataError(
            f"column {name!r}, {row}: {value} is not a finite float32; filter such rows or fill such values "
            "first",
            code="data-value",
        )


_COARSE = 0.05
"""Steps between neighbours in float32, in deviations of a column: more are too coarse to learn from."""


_ROUNDING = 1e-12
"""Deviations of constant columns, from sums in float64, are a smaller part than this of their values."""


def joined(
    moments: Mapping[str, tuple[Array, Array]], columns: Iterable[str], advice: str = ""
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join the moments of several columns, as float32."""
    names = list(columns)
    for name in names:
        mean, deviation = moments[name]
        steps = np.spacing(np.abs(mean).astype(np.float32)).astype(np.float64)
        varies = deviation > _ROUNDING * np.abs(mean)
        coarse = np.flatnonzero(varies & (steps > _COARSE * deviation))
        if len(coarse):
            at = int(coarse[0])
            place = f", value {at}" if len(mean) > 1 else ""
            raise DataError(
                f"column {name!r}{place}: its values are about {mean[at]:.10g}, with a deviation of "
                f"{deviation[at]:.4g}; float32, in which modules compute, has steps of {steps[at]:.4g} "
                f"there. Subtract about the mean from it first{advice}",
                code="data-value",
            )
    means, deviations = (
        torch.from_numpy(np.concatenate([moments[name][part] for name in names]).astype(np.float32))
        for part in (0, 1)
    )
    return means, deviations


def rows_of(data: Dataset, keys: Sequence[str]) -> list[Any]:
    """Return the first rows of some columns of a Dataset as tensors, at least two of them."""
    peeked, plans = data.peek(), {column.key: column for column in data.plan.columns}
    arrays = {
        key: np.concatenate([peeked[key]] * 2) if len(peeked[key]) == 1 else np.array(peeked[key])
        for key in keys
    }
    return [tensor_of(plans[key], array) for key, array in arrays.items()]


def share_first_rows(first: Dataset, data: Dataset) -> None:
    """Let a Dataset have what another read of the first rows of a DataFrame, if their columns are alike."""
    mine, its = data.source, first.source
    read = [[(c.key, c.source, c.part) for c in found.plan.columns] for found in (first, data)]
    if read[0] == read[1] and isinstance(mine, DataFrameSource) and isinstance(its, DataFrameSource):
        mine.look_at(its)

"""Columns of ML vectors that an estimator leaves sparse by itself, and the training of their weights."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from pyspark.ml.param import Params
from pyspark.sql import DataFrame
from torch import nn

from sparkdl.data import sparse
from sparkdl.data.columns import SPARSE, as_column, quoted
from sparkdl.data.schema import check_unambiguous, vector_columns
from sparkdl.exceptions import ConfigError
from sparkdl.ml.estimators.fitting import check_rows
from sparkdl.ml.params.columns import is_set
from sparkdl.nn.parameters import tables_of, trainable
from sparkdl.optim.groups import Match
from sparkdl.optim.spec import OptimizerFactory, Optimizers

if TYPE_CHECKING:
    from pyspark.ml.linalg import DenseVector, SparseVector

E = TypeVar("E", bound=Params)


def settled(estimator: E, df: DataFrame) -> E:
    """Return an estimator whose Param inputTypes leaves vectors sparse; itself where none are to be so.

    Where nothing is said of shapes and types, those are left sparse that the module takes as indices and
    values. Without a module it is the only column, if its first row is wide and nearly all zeros. DataError
    is raised if these are no rows of Spark that have an end, or a name means two columns.
    """
    check_rows(type(estimator).__name__, df)
    types = _input_types(estimator, df)
    return estimator.copy()._set(inputTypes=types) if types else estimator


def _input_types(estimator: Any, df: DataFrame) -> list[str | None] | None:
    if is_set(estimator, estimator.inputTypes) or is_set(estimator, estimator.inputShapes):
        return None
    names = estimator.featuresNames()
    vectors = [name for name in vector_columns(df) if name in names]
    if not vectors:
        return None
    for name in vectors:
        check_unambiguous(df, name, "features")
    if estimator.module is None:
        wide = len(names) == 1 and not is_set(estimator, estimator.inputNames) and _is_wide(df, names[0])
        return [SPARSE] if wide else None
    columns = sparse.where_taken(estimator.inputColumns(), estimator.module, vectors)
    listed: Any = list(columns.values()) if isinstance(columns, dict) else columns
    listed = listed if isinstance(listed, list) else [listed]
    types = [as_column(each).dtype for each in listed]
    return types if SPARSE in types else None


def size_of(df: DataFrame, name: str) -> int:
    """Return the size of the vectors of a column."""
    known = _known_size(df, name)
    if known:
        return known
    first = _first(df, name)
    if first is None:
        raise ConfigError(f"features column {name!r}: all vectors are null, so their size is not known")
    return len(first)


def optimizers(module: nn.Module, options: dict[str, Any]) -> Optimizers:
    """Return Adam, and for tables with sparse gradients the Adam of the rows that a batch has.

    With more options than the learning rate all parameters have plain Adam.
    """
    adam = partial(torch.optim.Adam, **options)
    names = [name for name, _ in trainable(module)]
    tables = [names[index] for index in tables_of(module, sparse=True)]
    if not tables or set(options) != {"lr"}:
        return adam
    found: dict[Match, OptimizerFactory] = dict.fromkeys(tables, partial(torch.optim.SparseAdam, **options))
    if len(tables) < len(names):
        found["*"] = adam
    return found


def _is_wide(df: DataFrame, name: str) -> bool:
    known = _known_size(df, name)
    if known is not None and known < sparse.WIDE:
        return False
    first = _first(df, name)
    return first is not None and sparse.is_wide(len(first), int(first.numNonzeros()))


def _known_size(df: DataFrame, name: str) -> int | None:
    """Return the size that the stage which made a column of vectors has noted."""
    metadata = next(field.metadata for field in df.schema.fields if field.name == name)
    noted = metadata.get("ml_attr", {})
    attributes = noted.get("attrs")
    listed = sum(map(len, attributes.values())) if isinstance(attributes, dict) else 0
    size = noted.get("num_attrs") or listed
    return size if isinstance(size, int) and size > 0 else None


def _first(df: DataFrame, name: str) -> DenseVector | SparseVector | None:
    rows = df.where(quoted(name).isNotNull()).select(quoted(name)).head(1)
    return rows[0][0] if rows else None

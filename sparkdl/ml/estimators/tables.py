"""Tables of estimators: whether they are encoded, how, and what the module is told of it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from pyspark.sql import DataFrame
from torch import nn

from sparkdl.data.columns import Columns
from sparkdl.exceptions import ConfigError
from sparkdl.ml.estimators.continued import Earlier, check_told
from sparkdl.ml.params.columns import is_set, value_of
from sparkdl.ml.stages import tabular_frame
from sparkdl.ml.stages.tabular_fit import count_rows, fit_encoding, kind_of
from sparkdl.nn.models.tabular import Tabular
from sparkdl.table.encoding import TableEncoding
from sparkdl.train.planning.request import planned_rows

_HIDDEN = "__sparkdl_"  # before the names of the arrays, which may be those of a label
_LEAST_BATCH, _LARGEST_BATCH = 32, 1024
_ITERATIONS = 50
_FEW_ROWS = 5000
_DROPOUT_OF_FEW = 0.3


def encodes(estimator: Any, df: DataFrame) -> bool:
    """Return whether an estimator encodes the columns of a DataFrame.

    Raises ConfigError if a Param is set that is about the encoding, and there is none.
    """
    found = _encodes(estimator, df)
    for param in (estimator.maxCategories, estimator.minFrequency):
        if not found and is_set(estimator, param):
            raise ConfigError(
                f"{param.name} is set, but no column is encoded: that takes featuresCols with columns of a "
                "table, and no module, one that takes cardinalities, or encode='on'; leave it out"
            )
    return found


def _encodes(estimator: Any, df: DataFrame) -> bool:
    choice = estimator.getEncode()
    if choice == "off":
        return False
    names = value_of(estimator, estimator.featuresCols)
    described = [
        param.name
        for param in (estimator.inputNames, estimator.inputShapes, estimator.inputTypes)
        if is_set(estimator, param)
    ]
    if choice == "on":
        if not names:
            raise ConfigError("encode='on': featuresCols must name the columns of the table")
        if described:
            raise ConfigError(
                f"encode='on' and {described[0]} are both set, but the module gets categories and numbers "
                f"in place of the columns; leave {described[0]} out"
            )
        return True
    takes_table = estimator.module is None or "cardinalities" in _arguments(estimator.module)
    if not names or described or not takes_table:
        return False
    types = {field.name: field.dataType for field in df.schema.fields}
    kinds = [kind_of(types[name]) if name in types else None for name in names]
    # Strings and dates have to be encoded, so that what stands against it is an error.
    return None not in kinds or not {"string", "date", "timestamp"}.isdisjoint(kinds)


def fitted(
    estimator: Any, df: DataFrame, before: Earlier | None, required: Sequence[str] = ()
) -> TableEncoding:
    """Fit the encoding of an estimator's columns, or take that of the run before.

    ``required`` are columns beside those of the table, which must not have nulls. Raises ConfigError if a
    checkpoint has no encoding, or one of other columns; DataError for columns that are missing, infinite,
    cannot be encoded or have nulls that they must not; if there are no rows, or no column tells them apart.
    """
    check_told(estimator, before, "what became of the table's columns")
    if before is not None and before.encoding is not None:
        known = {*before.encoding.columns, *before.encoding.left_out}
        if new := [name for name in estimator.featuresNames() if name not in known]:
            raise ConfigError(
                f"featuresCols: {new[0]!r} was not among the columns of the run before, which had "
                f"{', '.join(sorted(known))}; name the same columns, or fit anew",
                code="config-resume",
            )
        if gone := known - set(estimator.featuresNames()):
            raise ConfigError(
                f"featuresCols: {min(gone)!r} is missing, which the run before had; name the same "
                "columns, or fit anew",
                code="config-resume",
            )
        return replace(before.encoding, rows=count_rows(df, before.encoding.columns, required))
    return fit_encoding(
        df,
        estimator.featuresNames(),
        max_categories=estimator.getMaxCategories(),
        min_frequency=value_of(estimator, estimator.minFrequency),
        required=required,
    )


def inputs_of(encoding: TableEncoding, module: Any) -> Columns:
    """Return the columns of :func:`arrays` that a module gets.

    By name if its forward method has arguments ``categories`` and ``numbers``, else by position, in this
    order.
    """
    columns = tabular_frame.columns_of(encoding)
    hidden = {name: replace(column, name=_HIDDEN + name) for name, column in columns.items()}
    forward = getattr(module, "forward", None)
    known = inspect.signature(forward).parameters if callable(forward) else {}
    return hidden if all(name in known for name in hidden) else list(hidden.values())


def arrays(df: DataFrame, encoding: TableEncoding, keep: Sequence[str]) -> DataFrame:
    """Return the arrays of an encoding, and some columns."""
    return tabular_frame.encoded(df, encoding, {name: _HIDDEN + name for name in encoding.outputs}, keep)


def layout(encoding: TableEncoding, factory: Any, **more: Any) -> dict[str, Any]:
    """Return the arguments of a module's factory that follow from a table, as far as the factory has them."""
    known = {
        "cardinalities": list(encoding.cardinalities),
        "numbers": encoding.width,
        "knots": [list(knots) for knots in encoding.knots],
        **more,
    }
    return {name: value for name, value in known.items() if name in _arguments(factory)}


def of_default(encoding: TableEncoding, outputs: int, rows: int | None = None) -> dict[str, Any]:
    """Return the arguments of the module that a table has by default, or a table of so many ``rows``.

    Of few rows it would learn every one by heart, so that it drops more.
    """
    few = (rows or planned_rows(encoding.rows)) < _FEW_ROWS
    return layout(encoding, Tabular, outputs=outputs, **({"dropout": _DROPOUT_OF_FEW} if few else {}))


def batch_size(rows: int) -> int:
    """Return the power of two that gives 50 to 100 iterations per epoch, from 32 to 1,024."""
    wanted = max(1, rows // _ITERATIONS)
    return int(min(_LARGEST_BATCH, max(_LEAST_BATCH, 1 << (wanted.bit_length() - 1))))


def training(
    estimator: Any,
    encoding: TableEncoding,
    module: nn.Module,
    before: Earlier | None = None,
    share: float = 1.0,
) -> dict[str, Any]:
    """Return the options of a fit that follow from a table's rows, as far as they are left open.

    These are the batch, and a learning rate that falls in a straight line to 0 at the last iteration. A run
    that goes on with other rows keeps its batch, and its rate falls anew. A plan for other rows takes those:
    its fit is the one that has them. The iterations of a fold's fit are those of its ``share`` of the rows. A
    fit that follows a trial has the trial's batch.
    """
    rows = planned_rows(encoding.rows)
    if is_set(estimator, estimator.batchSize):
        size = estimator.getBatchSize()
    else:
        size = before.batch_size if before else batch_size(estimator._trial_rows or rows)
    found: dict[str, Any] = {"batch_size": size}
    iterations = ceil(round(rows * share) / size) * (estimator._rate_epochs or estimator.getMaxEpochs())
    limit = value_of(estimator, estimator.maxIter)
    iterations = iterations if limit is None else min(limit, iterations)
    found |= estimator._falling(module, iterations, before.start if before else 0)
    return found


def _arguments(factory: Any) -> frozenset[str]:
    """Return the arguments of a factory that are not given yet."""
    if isinstance(factory, nn.Module) or not callable(factory):
        return frozenset()
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return frozenset()
    return frozenset(parameters) - frozenset(getattr(factory, "keywords", {}))

"""Base of the transformers of images and text: one output column, computed row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from pyspark.ml.param import Params
from pyspark.ml.param.shared import HasHandleInvalid
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField

from sparkdl._spark.tasks import partition_id
from sparkdl.data.columns import quoted
from sparkdl.data.schema import same_names
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.params.converters import one_of
from sparkdl.ml.params.entries import HasEntries, ParamEntry, setter
from sparkdl.train.options.names import meant


class HandleInvalid(HasEntries, HasHandleInvalid):
    """Mixin for the Param ``handleInvalid``: ``error`` (the default), ``skip`` or ``keep``."""

    handleInvalid = ParamEntry(
        "handleInvalid",
        "how to handle rows that cannot be used. Options are error (throw an error that names the row), skip "
        "(leave the rows out), keep (the output is null).",
        one_of("handleInvalid", "error", "skip", "keep"),
        "error",
    )

    setHandleInvalid = setter(handleInvalid)


class Settable(Params):
    """Mixin that sets Params by the names that the constructor has."""

    def setParams(self, **values: Any) -> Self:
        """Set the Params that are given.

        Raises:
            TypeError: if there is no such Param, or a value has the wrong type.
            ConfigError: if a value cannot work.
        """
        for name in values:
            if not self.hasParam(name):
                nearest = meant(name, values[name], [param.name for param in self.params], {})
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}{nearest}")
        return self._set(**values)


def find_field(df: DataFrame, param: str, name: str) -> StructField:
    """Return a column's field, found as Spark finds it: in any case, unless ``spark.sql.caseSensitive``."""
    known = same_names(df, name)
    for field in df.schema.fields:
        if field.name in known:
            return field
    raise DataError(
        f"{param} {name!r} is not in the DataFrame; it has {', '.join(sorted(df.columns))}",
        code="data-column",
    )


def defined(stage: Params, *names: str) -> None:
    """Check that Params without a default are set."""
    for name in names:
        if not stage.isDefined(name):
            param = stage.getParam(name)
            raise ConfigError(f"{type(stage).__name__}: {name} is not set ({param.doc})")


def add_column(
    stage: Any,
    df: DataFrame,
    function: Callable[..., Any],
    values: Sequence[Column],
    returns: DataType,
    metadata: dict[str, Any],
    row_name: Column | None = None,
) -> DataFrame:
    """Add the output column of a stage, which a function computes from each row's values.

    It is a plain UDF: Spark calls it on batches of a hundred rows, whatever the size of a row, where an Arrow
    batch has ten thousand. ``function`` raises DataError for values it cannot use, of which null is one;
    ``row_name`` names the row in errors, such as its path.
    """
    output, handle_invalid = stage.getOutputCol(), stage.getHandleInvalid()
    if same_names(df, output):
        raise DataError(f"outputCol {output!r} is in the DataFrame already; choose another name or drop it")
    call = F.udf(Rowwise(function, stage.getInputCol(), handle_invalid != "error"), returns, useArrow=False)
    if handle_invalid == "skip":
        # Or the filter would move below the projection, and Spark would call the function in both.
        call = call.asNondeterministic()
    name = F.lit(None).cast("string") if row_name is None else row_name
    result = call(name, *values).alias(output, metadata=metadata)
    df = df.select("*", result)  # on Spark Connect withColumn drops metadata
    return df.filter(quoted(output).isNotNull()) if handle_invalid == "skip" else df


class Rowwise:
    """Calls a function row by row; where it cannot work, the error names the row, or the result is null.

    Arrays are returned as their bytes, for a binary column. With ``lenient``, bad rows give ``None``.
    """

    def __init__(self, function: Callable[..., Any], column: str, lenient: bool) -> None:
        self._function = function
        self._column = column
        self._lenient = lenient
        self._rows = 0

    def __call__(self, name: str | None, *values: Any) -> Any:
        """Apply the function to a row's values, of which the row's name tells where they are from."""
        self._rows += 1
        try:
            if any(value is None for value in values):
                raise DataError("null", code="data-null")
            result = self._function(*values)
            return result.tobytes() if isinstance(result, np.ndarray) else result
        except DataError as error:
            if self._lenient:
                return None
            row = name or f"row {self._rows - 1} of partition {partition_id()}"
            raise DataError(
                f"column {self._column!r}, {row}: {error}; handleInvalid='skip' leaves "
                "such rows out, 'keep' makes null of them"
            ) from None

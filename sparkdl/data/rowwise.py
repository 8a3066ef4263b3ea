"""A function of one row's values, as a task of a Spark job calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparkdl.exceptions import DataError


class Rowwise:
    """Calls a function row by row; where it cannot work, the error names the row, or the result is null.

    Arrays are returned as their bytes, for a binary column.

    Args:
        function: of one row's values; raises :class:`DataError` for a row that it cannot use.
        column: name of the column that the values come from, for errors.
        lenient: whether a row that cannot be used gives ``None``.
    """

    def __init__(self, function: Callable[..., Any], column: str, lenient: bool) -> None:
        self._function = function
        self._column = column
        self._lenient = lenient
        self._rows = 0

    def __call__(self, name: str | None, *values: Any) -> Any:
        """Apply the function to a row's values, of which the row's name tells where they are from.

        Raises:
            DataError: naming the row, unless lenient.
        """
        self._rows += 1
        try:
            if any(value is None for value in values):
                raise DataError("null", code="data-null")
            result = self._function(*values)
            return result.tobytes() if isinstance(result, np.ndarray) else result
        except DataError as error:
            if self._lenient:
                return None
            raise DataError(
                f"column {self._column!r}, {name or self._position()}: {error}; handleInvalid='skip' leaves "
                "such rows out, 'keep' makes null of them"
            ) from None

    def _position(self) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        return f"row {self._rows - 1} of partition {context.partitionId() if context else 0}"

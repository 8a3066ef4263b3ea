"""Type converters of Params that check what Spark's do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pyspark.ml.param import TypeConverters

from sparkdl.data.columns import SPARSE, STORED_DTYPES
from sparkdl.exceptions import ConfigError


def whole(name: str, least: int, meaning: str) -> Callable[[Any], int]:
    """Return a converter to an integer of at least ``least``."""

    def convert(value: Any) -> int:
        number = TypeConverters.toInt(value)
        if number < least:
            raise ConfigError(f"{name}={value!r}: expected an integer of at least {least} ({meaning})")
        return number

    return convert


def number(name: str, allowed: Callable[[float], bool], expected: str) -> Callable[[Any], float]:
    """Return a converter to a finite number for which ``allowed`` holds."""

    def convert(value: Any) -> float:
        number = TypeConverters.toFloat(value)
        if not math.isfinite(number) or not allowed(number):
            raise ConfigError(f"{name}={value!r}: expected {expected}")
        return number

    return convert


def one_of(name: str, *choices: str) -> Callable[[Any], str]:
    """Return a converter to one of some strings."""

    def convert(value: Any) -> str:
        if not isinstance(value, str):  # Spark 3.5's converter to strings fails under numpy 2
            raise TypeError(f"Could not convert {value!r} to string type")
        if value not in choices:
            raise ConfigError(f"{name}={value!r}: expected one of {', '.join(choices)}")
        return str(value)

    return convert


def names(name: str) -> Callable[[Any], list[str]]:
    """Return a converter to a list of different column names."""

    def convert(value: Any) -> list[str]:
        names = TypeConverters.toListString(value)
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"{name}={value!r}: expected different column names, at least one")
        return names

    return convert


def arguments(value: Any) -> list[str]:
    """Convert to a list of different argument names; a single name stands for a list of one."""
    found = TypeConverters.toListString([value] if isinstance(value, str) else value)
    if not found or len(set(found)) < len(found) or not all(text.isidentifier() for text in found):
        raise ConfigError(
            f"inputNames={value!r}: expected different names of the forward method's arguments, at least one"
        )
    return found


def shapes(value: Any) -> list[list[int] | None]:
    """Convert to one shape per column, ``None`` where the column's own shape counts."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"Could not convert {value!r} to list of shapes")
    if value and all(isinstance(size, int | np.integer) for size in value):
        value = [value]  # a single column's
    shapes = [None if shape is None else TypeConverters.toListInt(shape) for shape in value]
    if not shapes or any(size < 1 for shape in shapes if shape for size in shape):
        raise ConfigError(
            f"inputShapes={value!r}: expected a shape of positive integers per features column, for example "
            "[[3, 32, 32]]"
        )
    return shapes


def types(value: Any) -> list[str | None]:
    """Convert to one numpy dtype name per column, ``None`` where the default counts."""
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list | tuple):
        raise TypeError(f"Could not convert {value!r} to list of dtypes")
    for name in value:
        if name is not None and name not in (*STORED_DTYPES, SPARSE):
            known = ", ".join((*STORED_DTYPES, SPARSE))
            raise ConfigError(f"inputTypes={value!r}: expected names among {known}")
    return list(value)


def json_value(value: Any) -> Any:
    """Convert a hyper-parameter to JSON values: numpy numbers become Python's, tuples lists."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"Could not convert {value!r:.100} to JSON: a hyper-parameter is a number, string, boolean, list or "
        "dict"
    )

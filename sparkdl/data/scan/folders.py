"""Columns that the names of folders give, as Spark reads them: ``day=1`` is 1 in column ``day``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.exceptions import DataError
from sparkdl.wire.frame import Array

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile("%([0-9a-fA-F]{2})")
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_FLOAT = re.compile(r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}", re.ASCII)
_BLANKS = "".join(map(chr, range(33)))
_DIGITS = 38  # of a decimal
_DECIMAL = pa.decimal128(_DIGITS, 0)
NO_COLUMNS = pa.RecordBatch.from_arrays([], [])

_Values = list[str | None]


def folder_columns(paths: Sequence[str]) -> pa.RecordBatch:
    """Return the columns that folders give, a row for each file; paths are relative to the folder named."""
    found = [_pairs(path) for path in paths]
    names = tuple(name for name, _ in found[0])
    for path, pairs in zip(paths, found, strict=True):
        own = tuple(name for name, _ in pairs)
        if own != names or len(set(own)) < len(own):
            raise DataError(
                f"{path}: its folders give {_words(own)}, those of {paths[0]} {_words(names)}; expected the "
                "same columns in the same order, each once. Name the folders of one layout",
                code="data-column",
            )
    columns = zip(*([value for _, value in pairs] for pairs in found), strict=True)
    arrays = [_typed([None if value == _NULL else value for value in values]) for values in columns]
    return pa.RecordBatch.from_arrays(arrays, list(names))


def packed(columns: pa.RecordBatch) -> Array:
    """Return columns as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as stream:
        stream.write_batch(columns)
    return np.frombuffer(sink.getvalue(), np.uint8)


def unpacked(data: Array) -> pa.RecordBatch:
    """Return what :func:`packed` has made bytes of."""
    with pa.ipc.open_stream(pa.py_buffer(data.tobytes())) as stream:
        return stream.read_next_batch()


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is no data, as for Spark."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _words(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names)) or "no columns"


def _pairs(path: str) -> list[tuple[str, str]]:
    """Return names and values of the folders of a file; values as they are written."""
    pairs = []
    for part in path.split("/")[:-1]:
        name, sign, value = part.partition("=")
        if sign:
            if not name or not value:
                raise DataError(
                    f"{path}: expected a name and a value in the folder {part!r}", code="data-column"
                )
            pairs.append((_unescaped(name), value))
    return pairs


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def _typed(values: _Values) -> pa.Array:
    """Return values in the type that Spark infers for all of them; numbers are read without unescaping."""
    kinds = {_kind(value) for value in values if value is not None}
    if not kinds:
        return pa.nulls(len(values), pa.int32())  # so that nulls are what is refused
    if kinds <= {"int", "long"}:
        return _array(values, int, pa.int32() if kinds == {"int"} else pa.int64())
    if kinds <= {"int", "long", "decimal"}:
        with suppress(pa.ArrowInvalid):
            return _array(values, Decimal, _DECIMAL)
    if kinds <= {"int", "double"}:
        return _array(values, lambda value: float(value.strip(_BLANKS).rstrip("fFdD")), pa.float64())
    if kinds == {"date"}:
        with suppress(pa.ArrowInvalid):
            return pa.array([value and _unescaped(value) for value in values]).cast(pa.date32())
    # So, too, for Spark, which mixes no doubles with integers of more than 32 bits.
    return _array(values, _unescaped, pa.string())


def _array(values: _Values, convert: Any, data_type: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else convert(value) for value in values], data_type)


def _is_whole(value: str) -> bool:
    """Return whether a number such as 1e3 has no digits after its point as it is written."""
    try:
        exponent = Decimal(value).as_tuple().exponent
    except ArithmeticError:  # it ends with f or d
        return False
    return isinstance(exponent, int) and 0 <= exponent <= _DIGITS


def _kind(value: str) -> str:
    if _INTEGER.fullmatch(value):
        number = int(value) if len(value) <= _DIGITS + 1 else 10**_DIGITS
        for kind, bits in (("int", 31), ("long", 63)):
            if -(1 << bits) <= number < 1 << bits:
                return kind
        return "decimal" if abs(number) < 10**_DIGITS else "double"
    if _FLOAT.fullmatch(value.strip(_BLANKS)):  # to Java, too, blanks around it are no part of a double
        return "decimal" if _is_whole(value) and value == value.strip(_BLANKS) else "double"
    return "date" if _DATE.fullmatch(_unescaped(value)) else "string"

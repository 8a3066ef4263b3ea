"""The bodies of requests and answers: JSON and Arrow streams."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkdl.exceptions import DataError
from sparkdl.serve.server import arrow_ipc
from sparkdl.table.values import numbers_of

JSON = "application/json"
MEDIA_TYPES = (JSON, arrow_ipc.MEDIA_TYPE)
_SHOWN = 60
_DEEPEST = 16
_KINDS = {bool: "boolean", int: "number", float: "number", str: "string", dict: "object", list: "list"}


Write = Callable[[pa.Table], bytes]
"""Turns the table of an answer into its body."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may hold."""

    columns: tuple[str, ...]  # that are read; others are passed over
    max_rows: int  # most rows
    # which of the columns may hold objects, with the indices and values of sparse vectors
    vectors: tuple[str, ...] = ()


def is_known(media_type: str) -> bool:
    """Whether :func:`read` reads bodies of a media type."""
    return _plain(media_type) in MEDIA_TYPES


def read(media_type: str, body: bytes, limits: Limits) -> tuple[pa.Table, str, Write]:
    """Read a request's body; return the rows, and media type and writer of an answer in the same form."""
    if _plain(media_type) == JSON:
        columns, write = _read_json(body, limits)
        check_columns(columns, limits.columns)
        arrays = {name: _array(name, columns[name], name in limits.vectors) for name in limits.columns}
        return pa.table(arrays), JSON, write
    table = arrow_ipc.read_table(body, limits.max_rows)
    _check_rows(len(table), limits.max_rows)
    check_columns(table.column_names, limits.columns)
    for name in limits.columns:
        kind = table.schema.field(name).type
        if pa.types.is_struct(kind) and name not in limits.vectors:
            raise DataError(
                f"column {name!r:.100} has type {kind!s:.100}: only sparse vectors are structs",
                code="data-type",
            )
    return table.select(limits.columns), arrow_ipc.MEDIA_TYPE, arrow_ipc.write_table


def accepted(accept: str, media_type: str, write: Write) -> tuple[str, Write]:
    """Choose the form of an answer: the request's, unless its header asks for the other one."""
    for kind in map(_plain, accept.split(",")):
        if kind == media_type or kind in ("", "*/*"):
            break
        if kind == JSON:
            return JSON, write_json_columns
        if kind == arrow_ipc.MEDIA_TYPE:
            return kind, arrow_ipc.write_table
    return media_type, write


def check_columns(found: Collection[str], wanted: Sequence[str]) -> None:
    """Check that columns are there."""
    for name in wanted:
        if name not in found:
            there = ", ".join(str(other)[:_SHOWN] for other in list(found)[:10]) or "none"
            raise DataError(
                f"column {name!r} is missing: the model takes {', '.join(wanted)}; there are {there}",
                code="data-column",
            )


def _plain(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def _read_json(body: bytes, limits: Limits) -> tuple[dict[str, list[Any]], Write]:
    """Read ``{"columns": {"age": [39, 50]}}`` or ``{"rows": [{"age": 39}, {"age": 50}]}``."""
    value = _parsed(body, limits.max_rows, len(limits.vectors))
    form = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
    if form == "columns" and isinstance(value["columns"], dict):
        columns = value["columns"]
        for name, values in columns.items():
            if not isinstance(values, list):
                raise _wrong(
                    f"column {name!r:.100} is {_shown(values)}; expected a list with one value a row"
                )
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            listed = ", ".join(f"{name:.40} {len(values)}" for name, values in list(columns.items())[:10])
            raise _wrong(f"columns have different numbers of rows: {listed}")
        _check_rows(lengths.pop() if lengths else 0, limits.max_rows)
        return columns, write_json_columns
    if form == "rows" and isinstance(value["rows"], list):
        records = value["rows"]
        _check_rows(len(records), limits.max_rows)
        return _columns_of(records), write_json_rows
    raise _wrong(
        'expected {"columns": {"name": [value, ...], ...}} or {"rows": [{"name": value, ...}, ...]}, found '
        f"{_shown(value)}"
    )


def write_json_columns(table: pa.Table) -> bytes:
    """Return ``{"columns": {"prediction": [...]}}``; what is not finite is null."""
    return _dumps({"columns": {name: table.column(name).to_pylist() for name in table.column_names}})


def write_json_rows(table: pa.Table) -> bytes:
    """Return ``{"rows": [{"prediction": ...}]}``; what is not finite is null."""
    return _dumps({"rows": table.to_pylist()})


def _parsed(body: bytes, max_rows: int, vectors: int) -> Any:
    """Parse JSON; nothing but what the standard has, and no more objects than rows and their vectors."""
    left = max_rows * (1 + vectors) + 2

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON; null stands for what is missing")

    def finite(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            raise ValueError(f"{text:.40} is beyond the range of a double")
        return value

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"it has more objects than {max_rows} rows have")
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name is there twice")
        return found

    try:
        return json.loads(body, parse_constant=refuse, parse_float=finite, object_pairs_hook=unique)
    except RecursionError:
        raise _wrong("it is nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError and int's limit of digits are such
        raise _wrong(f"it is not JSON: {error!s:.200}") from None


def _columns_of(records: Sequence[Any]) -> dict[str, list[Any]]:
    """Turn rows into columns; all rows have the names of the first."""
    first = records[0]
    if not isinstance(first, dict):
        raise _wrong(f"row 0 is {_shown(first)}; expected an object with one value a column")
    names = first.keys()
    for index, record in enumerate(records):
        if not isinstance(record, dict) or record.keys() != names:
            found = sorted(record) if isinstance(record, dict) else _shown(record)
            raise _wrong(f"row {index} has {found!s:.200}; the first row has {sorted(names)!s:.200}")
    return {name: [record[name] for record in records] for name in names}


def _array(name: str, values: list[Any], vectors: bool) -> pa.Array:
    """Return a column of JSON values; objects only where sparse vectors are expected."""
    try:
        found = numbers_of(values)
    except (pa.ArrowException, OverflowError, ValueError, TypeError, RecursionError) as error:
        kinds = [_kind(value) for value in values]
        usual = next((kind for kind in kinds if kind is not None), None)
        row = next((i for i, kind in enumerate(kinds) if kind not in (None, usual)), None)
        if row is None:
            raise DataError(
                f"column {name!r:.100}: values of one kind are expected: {error!s:.200}", code="data-type"
            ) from None
        raise DataError(
            f"column {name!r:.100}, row {row}: {_shown(values[row])} is {_article(kinds[row])} where other "
            f"rows have {_article(usual)}",
            code="data-type",
        ) from None
    kind, depth = found.type, 0
    while pa.types.is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if (pa.types.is_struct(kind) and not (vectors and depth == 0)) or depth > _DEEPEST:
        what = "an object is no value of a column" if depth <= _DEEPEST else "lists are nested too deeply"
        raise DataError(f"column {name!r:.100}: {what}", code="data-type")
    return found


def _kind(value: Any) -> str | None:
    """Return a value's kind, in a word; ``None`` for null."""
    if isinstance(value, list):
        return f"list of {next((_KINDS[type(item)] for item in value if item is not None), 'number')}s"
    return None if value is None else _KINDS[type(value)]


def _article(kind: str | None) -> str:
    return f"an {kind}" if kind == "object" else f"a {kind}"


def _check_rows(rows: int, max_rows: int) -> None:
    if not rows:
        raise _wrong("it has no rows")
    if rows > max_rows:
        raise arrow_ipc.too_many(rows, max_rows)


def _dumps(value: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return {name: _finite(item) for name, item in value.items()} if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    """Return the beginning of a value, without a walk through all of it."""
    if isinstance(value, str):
        return repr(value[:_SHOWN])
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {', '.join(repr(str(name)[:20]) for name in list(value)[:5]) or 'nothing'}"
    return repr(value)[:_SHOWN]


def _wrong(why: str) -> DataError:
    return DataError(f"the body cannot be read: {why}", code="data-value")

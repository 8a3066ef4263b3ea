"""Arrow's stream format from clients that nobody knows: what is read takes no more memory than was sent.

Arrow's own reader expands compressed buffers, dictionaries and runs as far as a message asks for, and has no
limit for it. So the headers are looked at before the reader gets them.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from sparkdl.exceptions import DataError

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
_COMPRESSION, _LENGTH, _HEADER = 3, 0, 2  # places of fields in Arrow's Message.fbs, which never change
_DEEPEST = 16
_BROKEN = (pa.ArrowException, OSError, struct.error, IndexError, OverflowError, MemoryError, ValueError)


def read_table(body: bytes, max_rows: int) -> pa.Table:
    """Read a stream.

    DataError if it is none, has compressed buffers, more rows, or columns of types that may stand for more
    values than were sent.
    """
    try:
        return _read(body, max_rows)
    except _BROKEN as error:
        if isinstance(error, DataError):
            raise
        raise _refused(f"it is no Arrow stream: {type(error).__name__}: {error!s:.200}") from error


def _read(body: bytes, max_rows: int) -> pa.Table:
    rows = 0
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    first = True
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            break
        if message.type != ("schema" if first else "record batch"):
            raise _refused(
                f"it holds a message of kind {message.type!r:.50}; send a schema and record batches, and no "
                "dictionaries: cast such columns to plain strings"
            )
        if not first:
            rows += _rows_of(bytes(message.metadata))
            if rows > max_rows:
                raise too_many(rows, max_rows)
        first = False
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        for field in reader.schema:
            _check_type(field.name, field.type, 0)
        if len(set(reader.schema.names)) < len(reader.schema):
            raise _refused(f"two columns have one name: {', '.join(reader.schema.names)!s:.200}")
        table = reader.read_all()
    table.validate(full=True)  # offsets and lengths lie within the buffers
    return table


def too_many(rows: int, max_rows: int) -> DataError:
    """Return the error for more rows than a request may have."""
    return DataError(f"the request has {rows} rows: send at most {max_rows} at a time", code="data-value")


def write_table(table: pa.Table) -> bytes:
    """Return a table as a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _rows_of(metadata: bytes) -> int:
    """Return the rows of a record batch by its header."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    at = _field(metadata, root, _HEADER)
    (offset,) = struct.unpack_from("<I", metadata, at)
    batch = at + offset
    if _field(metadata, batch, _COMPRESSION):
        raise _refused("its buffers are compressed; write the stream without compression")
    at = _field(metadata, batch, _LENGTH)
    (rows,) = struct.unpack_from("<q", metadata, at) if at else (0,)
    if rows < 0:
        raise _refused(f"a batch has {rows} rows")
    return int(rows)


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a field of a flatbuffer's table lies; 0 if it has none."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    if vtable < 0:
        raise _refused("its header points out of itself")
    (size,) = struct.unpack_from("<H", data, vtable)
    place = 4 + 2 * number
    if place + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + place)
    return table + int(offset) if offset else 0


def _check_type(name: str, kind: pa.DataType, depth: int) -> None:
    """Check that values of a type take the bytes that were sent for them, and no more."""
    nested = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if any(check(kind) for check in nested) and depth < _DEEPEST:
        if pa.types.is_fixed_size_list(kind) and pa.types.is_null(kind.value_type):
            raise _refused(f"column {name!r:.100} has type {kind!s:.100}")
        _check_type(name, kind.value_type, depth + 1)
        return
    if pa.types.is_struct(kind) and not depth:  # a sparse vector
        if len({field.name for field in kind}) < len(kind):
            raise _refused(f"column {name!r:.100} has type {kind!s:.100}, with two fields of one name")
        for field in kind:
            _check_type(f"{name}.{field.name}", field.type, 1)
        return
    t = pa.types
    plain = (t.is_integer, t.is_floating, t.is_boolean, t.is_decimal, t.is_date, t.is_timestamp, t.is_null)
    texts = (t.is_string, t.is_large_string, t.is_binary, t.is_large_binary)
    if not any(check(kind) for check in (*plain, *texts)) or (depth and t.is_null(kind)):
        raise _refused(
            f"column {name!r:.100} has type {kind!s:.100}; send numbers, booleans, strings, bytes, dates, "
            "timestamps, lists of these, or structs of indices and values"
        )


def _refused(why: str) -> DataError:
    return DataError(f"the body cannot be read: {why}", code="data-type")

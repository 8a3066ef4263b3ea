"""The byte frame: the one message format that travels between tasks and the driver.

A frame is a few scalars and a few arrays, written without pickle::

    uint32 length of the header | JSON header | padding | array | padding | array ...

Arrays start at multiples of 64 bytes. Packing copies no array: a frame is a list of buffers that
the serializer writes one after the other; unpacking returns read-only views.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview
Parts = list[Buffer]
"""A frame in parts, to be written one after the other."""
Packed = Buffer | Parts
"""A packed frame: bytes as received, or a list of buffers."""
Array = NDArray[Any]

T = TypeVar("T")

_ALIGN = 64
_LENGTH = struct.Struct("<I")
_KIND = re.compile(rb'\[\{"kind":"(\w+)"')


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: JSON-compatible scalars and named arrays."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def pack(meta: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> Parts:
    """Lay out a frame as buffers to be written one after the other.

    ``meta`` is JSON-compatible, NaN and infinities survive; C-contiguous arrays are referenced, not copied.
    """
    arrays = arrays or {}
    table = [(name, a.dtype.str, a.shape) for name, a in arrays.items()]
    header = json.dumps([meta, table], separators=(",", ":")).encode()
    parts: Parts = [_LENGTH.pack(len(header)), header]
    position = _LENGTH.size + len(header)
    for array in arrays.values():
        padding = -position % _ALIGN
        parts += [bytes(padding), _bytes_of(array)]
        position += padding + array.nbytes
    return parts


def _bytes_of(array: Array) -> memoryview:
    flat: Any = np.ascontiguousarray(array).reshape(-1)
    return memoryview(flat).cast("B")


def unpack(packed: Packed, *, writable: bool = False) -> Frame:
    """Read a frame, also as :func:`pack` has just laid it out, back.

    Its arrays are views, read-only unless ``writable``, if their memory allows it.
    """
    first, *more = laid_out = parts(packed)
    frame = _unpack_parts(laid_out) if more else _unpack(first)
    for array in frame.arrays.values():
        array.flags.writeable = writable and array.flags.writeable
    return frame


def _unpack(frame: Buffer) -> Frame:
    (length,) = _LENGTH.unpack_from(frame)
    position = _LENGTH.size + length
    meta, table = json.loads(bytes(frame[_LENGTH.size : position]))
    arrays: dict[str, Array] = {}
    for name, dtype, shape in table:
        position += -position % _ALIGN
        arrays[name] = view = _view(frame, position, dtype, shape)
        position += view.nbytes
    return Frame(meta, arrays)


def _unpack_parts(parts: Parts) -> Frame:
    _, header, *rest = parts
    meta, table = json.loads(bytes(header))
    buffers = rest[1::2]  # each after its padding
    arrays = {
        name: _view(*_shortened(buffer), dtype, shape)
        for (name, dtype, shape), buffer in zip(table, buffers, strict=True)
    }
    return Frame(meta, arrays)


def _view(buffer: Buffer, offset: int, dtype: str, shape: Sequence[int]) -> Array:
    view: Array = np.frombuffer(buffer, np.dtype(dtype), prod(shape), offset)
    return view.reshape(shape)


def _shortened(buffer: Buffer) -> tuple[Buffer, int]:
    """Return memory that a buffer is a view of, and where it begins there.

    An array that is laid out and read again and again in one process, as state that is updated in place, is a
    view of a view of a view, which all stay in memory.
    """
    root = buffer
    while (behind := _behind(root)) is not None and _behind(behind) is not None:
        root = (
            behind  # but for the last: :mod:`sparkdl.wire.buffers` waits for the end of the array that has it
        )
    if root is buffer:
        return buffer, 0
    return root, _address(buffer) - _address(root)


def _behind(buffer: Buffer) -> memoryview | None:
    """Return the memory that the array was made of which a buffer is a view of, if it was."""
    array: Any = buffer.obj if isinstance(buffer, memoryview) else None
    while isinstance(array, np.ndarray) and isinstance(array.base, np.ndarray):
        array = array.base
    behind: Any = array.base if isinstance(array, np.ndarray) else None
    return behind if isinstance(behind, memoryview) else None


def _address(buffer: Buffer) -> int:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


def kind_of(begin: Buffer) -> str:
    """Return the kind of a frame by its beginning, where its meta has that first."""
    found = _KIND.match(begin, _LENGTH.size)
    if found is None:
        raise ValueError(f"a frame without kind: {bytes(begin[:40])!r}")
    return found[1].decode()


def size(packed: Packed) -> int:
    """Total bytes of a packed frame."""
    return sum(memoryview(part).nbytes for part in parts(packed))


def parts(packed: Packed) -> Parts:
    """Return the parts of a packed frame: one, if it has arrived."""
    return packed if isinstance(packed, list) else [packed]


def join(packed: Packed) -> bytes:
    """Return a packed frame as one ``bytes``; all else than ``bytes`` is copied."""
    return b"".join(parts(packed))


def under(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    """Return what has a name that begins with a prefix, by the rest of the name."""
    return {name.removeprefix(prefix): own for name, own in named.items() if name.startswith(prefix)}

"""Frames in pieces, and whole again.

Pieces pass through buffers that stay small, and through the processor's cache; they arrive in any order.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator

import numpy as np

from sparkdl.wire import buffers, frame
from sparkdl.wire.arrays import LARGE, Mapped, trim_all
from sparkdl.wire.frame import Array, Buffer, Parts
from sparkdl.wire.private import local_folders

PIECE_BYTES = 256 << 10

HEAD = struct.Struct("<IIQQ40x")
"""Source, which of its frames, where in it, its length; as long as an array's alignment in a frame."""


def cut(source: int, frames: Iterable[bytes | Parts], largest: int = PIECE_BYTES) -> Iterator[Parts]:
    """Yield frames in pieces of ``largest`` bytes at most.

    Pieces of two frames of the same ``source`` must not arrive mixed with each other unless they are from the
    same call.
    """
    for number, data in enumerate(frames):
        yield from pieces_of(source, number, data, largest)


def pieces_of(source: int, number: int, data: bytes | Parts, largest: int) -> Iterator[Parts]:
    """Yield the pieces of a sender's frame with a number, each of so many bytes at most."""
    size, offset, room = frame.size(data), 0, largest
    piece: Parts = []
    for part in frame.parts(data):
        rest = memoryview(part)
        while len(rest):
            piece.append(rest[:room])
            rest = rest[room:]
            room -= len(piece[-1])
            if not room:
                yield [HEAD.pack(source, number, offset, size), *piece]
                offset, piece, room = offset + largest, [], largest
                if offset // LARGE > (offset - largest) // LARGE:
                    trim_all()
    if piece:
        yield [HEAD.pack(source, number, offset, size), *piece]


def joined(frames: Iterable[bytes], *, in_files: bool = False) -> Iterator[Buffer]:
    """Yield frames that arrive in pieces, each when it is whole; ``in_files`` maps large ones from files."""
    return (data for _, data in joined_by_source(frames, in_files=in_files))


def joined_by_source(frames: Iterable[bytes], *, in_files: bool = False) -> Iterator[tuple[int, Buffer]]:
    """Yield who sent a frame, and the frame, when its last piece has come."""
    place = _in_file if in_files else buffers.empty
    begun: dict[tuple[int, int], tuple[Array, int]] = {}
    for data in frames:
        if not data:  # zipped with a piece that nobody needs
            continue
        source, which, offset, size = HEAD.unpack_from(data)
        piece = memoryview(data)[HEAD.size :]
        if len(piece) == size:
            yield source, piece
            continue
        whole, missing = begun.pop((source, which), None) or (place(size), size)
        whole[offset : offset + len(piece)] = piece
        if in_files and (offset + len(piece)) // LARGE > offset // LARGE:
            trim_all()
        if missing > len(piece):
            begun[source, which] = whole, missing - len(piece)
        else:
            yield source, whole.data


def _in_file(nbytes: int) -> Array:
    """Return so many bytes: in memory if they are few, or in a local file that is mapped to memory."""
    if nbytes <= LARGE:
        return buffers.empty(nbytes)
    folder = str(local_folders()[0])
    os.makedirs(folder, exist_ok=True)
    made = Mapped(folder, np.uint8)
    made.grow(nbytes)
    return made.values[:nbytes]

"""Large frames travel between the stages of a chain in pieces.

On its way to Python Spark copies each frame into a buffer which every task makes anew and doubles until the
frame fits: for 20 MB these are 64 MB of new memory, which takes longer to be filled with zeros than the frame
to be sent. On its way from Python a frame is one array, which Java's collector handles apart if it is large.
Pieces pass through buffers that stay small, and through the processor's cache.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sparkdl import frame
from sparkdl.frame import Array, Buffer, Parts

ChainTask = Callable[[int, Iterator[Buffer]], Iterable[bytes | Parts]]
"""What runs in a chain's task: (partition, token and what has arrived) -> frames out."""

PIECE_BYTES = 256 << 10

_HEAD = struct.Struct("<IIQQ40x")
"""Source, which of its frames, where in it, its length; as long as an array's alignment in a frame."""


def count(nbytes: int) -> int:
    """Return in how many pieces a frame of so many bytes travels."""
    return max(1, -(-nbytes // PIECE_BYTES))


@dataclass(frozen=True, slots=True)
class InPieces:
    """A chain's task, whose frames arrive and leave in pieces.

    Attributes:
        task: the task.
        pieces: number of pieces of the first frame that it sends to a partition, however long that is: as
            many frames arrive as are expected. The second one is sent as it is.
        sends: whether frames are for a next stage. The last one's are not.
    """

    task: ChainTask
    pieces: int
    sends: bool

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterable[bytes | Parts]:
        """Run the task."""
        leaving = self.task(partition, joined(frames))
        return cut(partition, leaving, self.pieces) if self.sends else leaving


def cut(source: int, frames: Iterable[bytes | Parts], pieces: int) -> Iterator[bytes | Parts]:
    """Yield keyed frames in pieces.

    Args:
        source: the partition that sends them.
        frames: keys and frames in turn, two for each key.
        pieces: number of pieces of a key's first frame.
    """
    begun: set[bytes | Parts] = set()
    stream = iter(frames)
    for key in stream:
        data = next(stream)
        parts: Parts = [data] if isinstance(data, bytes) else data
        size, second = frame.size(parts), key in begun
        begun.add(key)
        step = max(PIECE_BYTES, -(-size // pieces)) if not second else size
        left = 1 if second else pieces
        for offset, piece in _pieces(parts, step):
            yield key
            yield [_HEAD.pack(source, second, offset, size), *piece]
            left -= 1
        for _ in range(left):
            yield key
            yield b""


def _pieces(parts: Parts, step: int) -> Iterator[tuple[int, Parts]]:
    """Cut a frame after each so many bytes; yield where each piece begins, and the piece."""
    offset, room = 0, step
    piece: Parts = []
    for part in parts:
        rest = memoryview(part)
        while len(rest):
            piece.append(rest[:room])
            rest = rest[room:]
            room -= len(piece[-1])
            if not room:
                yield offset, piece
                offset, piece, room = offset + step, [], step
    if piece:
        yield offset, piece


def joined(frames: Iterator[bytes]) -> Iterator[Buffer]:
    """Yield a partition's token and the frames that arrive for it, each when its last piece has come."""
    yield next(frames)
    begun: dict[tuple[int, int], tuple[Array, int]] = {}
    for data in frames:
        if not data:  # zipped with a piece that nobody needs
            continue
        source, which, offset, size = _HEAD.unpack_from(data)
        piece = memoryview(data)[_HEAD.size :]
        if len(piece) == size:
            yield piece
            continue
        whole, missing = begun.pop((source, which), None) or (np.empty(size, np.uint8), size)
        whole[offset : offset + len(piece)] = piece
        if missing > len(piece):
            begun[source, which] = whole, missing - len(piece)
        else:
            yield whole.data

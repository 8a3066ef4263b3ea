"""Frames travel and stay in pieces.

Spark copies each frame for Python into a buffer. Every task makes a new buffer and doubles it until the frame
fits: for 20 MB it allocates 64 MB, and filling them with zeros takes longer than sending the frame. A frame
from Python is one array. Java's collector handles large arrays separately, and a persisted frame has several
copies. Pieces pass through small buffers and through the processor's cache.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat

from sparkdl._spark.frames import key, pairs_of
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer, Parts
from sparkdl.wire.pieces import HEAD, PIECE_BYTES, cut, joined, pieces_of

ChainTask = Callable[[int, Iterator[Buffer]], Iterable[bytes | Parts]]
"""What runs in a task: (partition, its token and the frames that have arrived) -> keys and frames out."""

RESULT = 0
"""Key of the frames of a chain's last stage that go to the driver."""
STATE = 1
"""Key of those that stay."""

FRAMES_PER_RANK = 2
"""Each task sends each partition so many frames, some of them empty: of the first one the length is known."""

_BLOCK_BYTES = 32 << 20
"""So much of a frame lies in one block of a chain's shuffle at most: Spark fetches a larger one into a file
first, from ``spark.network.maxRemoteBlockSizeFetchToMem`` on, and otherwise holds it in memory as a whole."""

_COLLECTED_BYTES = 256 << 20  # one job sends the driver about so many bytes of what stays

_HEAP_SHARE = 16
"""One task sends at most one part in so many of its heap, which holds a task's result up to three times."""

MORE = b"more"
"""What :class:`InRounds` sends after its pieces if there are more of them."""


def count(nbytes: int) -> int:
    """Return in how many pieces a frame of so many bytes travels."""
    return max(1, -(-nbytes // PIECE_BYTES))


def blocks(nbytes: int) -> int:
    """Return in how many blocks of a shuffle a frame of so many bytes travels."""
    return max(1, -(-nbytes // _BLOCK_BYTES))


def per_round(tasks: int, heap: int = 1 << 30) -> int:
    """Return how many pieces each task of a job sends the driver at most, given an executor's heap in bytes.

    Each job reads all that has stayed, so a large state wants few of them.
    """
    return max(1, min(_COLLECTED_BYTES // tasks, heap // _HEAP_SHARE) // PIECE_BYTES)


def heap_of(memory: str) -> int:
    """Return the bytes of a heap from Spark's conf, such as ``"4g"``; of 1 GB if it says nothing else."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    if found is None:
        return 1 << 30
    return int(found[1]) << {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}[found[2]]


@dataclass(frozen=True, slots=True)
class InPieces:
    """A task whose frames arrive and leave in pieces."""

    task: ChainTask
    token: bool = True  # whether the first frame that arrives is a partition's token, which is whole
    keyed: bool = True  # whether frames leave in turn with their keys
    # in a chain, number of pieces of the first frame that the task sends to a partition, however long that
    # is: as many frames arrive as are expected. The second one is sent as it is. Otherwise 0: each frame is
    # sent in as many pieces as it has.
    pieces: int = 0
    blocks: int = 1  # in a chain, number of a shuffle's blocks in which the pieces for a partition lie
    # whether large frames that arrive are in files, mapped to memory, and not in memory
    in_files: bool = False

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterable[bytes | Parts]:
        """Run the task."""
        first = [next(frames)] if self.token else []
        leaving = self.task(partition, chain(first, joined(frames, in_files=self.in_files)))
        if not self.keyed:
            return cut(partition, leaving)
        return cut_keyed(partition, leaving, self.pieces, self.blocks)


@dataclass(frozen=True, slots=True)
class InRounds:
    """A task that passes pieces on as they arrive, some of them: the driver asks for the others later."""

    wanted: Callable[[str], bool]  # whether the frames of a kind are passed on
    first: int  # number of the first piece of these that is sent
    stop: int  # one past the last one

    def __call__(self, _: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield them, and whether there are more."""
        number = -1
        # To the end in any case: of a task that does not read all of its input Spark ends the process.
        for number, piece in enumerate(self._wanted(pieces)):
            if self.first <= number < self.stop:
                yield piece
        if number >= self.stop:
            yield MORE

    def _wanted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces of wanted frames, which arrive in the order in which they were cut."""
        passes = False
        for piece in pieces:
            _, _, offset, _ = HEAD.unpack_from(piece)
            if not offset:
                passes = self.wanted(frame.kind_of(memoryview(piece)[HEAD.size :]))
            if passes:
                yield piece


def made_in_rounds(
    task: ChainTask, rounds: InRounds, partition: int, pieces: Iterator[bytes]
) -> Iterator[bytes]:
    """Yield some pieces of the frames that a task makes of those that stay, each time the same ones."""
    made = InPieces(task, token=False, keyed=False)(partition, pieces)
    return rounds(partition, map(frame.join, made))


def cut_keyed(
    source: int, frames: Iterable[bytes | Parts], pieces: int = 0, blocks: int = 1
) -> Iterator[bytes | Parts]:
    """Yield frames, given after their keys, in pieces, each after its frame's key, or its block's.

    ``pieces`` and ``blocks`` are those of :class:`InPieces`: if not 0, there are two frames for each key, and
    block b of n is for key n * blocks + b.
    """
    numbers: Counter[int] = Counter()
    for to, data in pairs_of(frames):
        number = numbers[to]
        numbers[to] += 1
        expected = 0 if not pieces else 1 if number else pieces
        largest = max(PIECE_BYTES, -(-frame.size(data) // expected)) if expected else PIECE_BYTES
        keys = [key(to * blocks + block) for block in range(blocks)]
        for place, piece in enumerate(_padded(pieces_of(source, number, data, largest), expected)):
            yield keys[place * blocks // pieces if pieces else 0]
            yield piece


def _padded(pieces: Iterable[Parts], expected: int) -> Iterator[bytes | Parts]:
    """Yield pieces, and empty ones until there are as many as expected."""
    for piece in pieces:
        yield piece
        expected -= 1
    yield from repeat(b"", expected)

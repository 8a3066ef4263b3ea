"""Stages whose tasks have several ranks: what stays comes to its rank, or is known to be lacking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from sparkdl._spark.frames import key, keyed_by
from sparkdl.access.in_pieces import RESULT, STATE
from sparkdl.access.stages import LACKING, Gathered, at_home, by_executor
from sparkdl.wire import frame
from sparkdl.wire.pieces import PIECE_BYTES, joined

LONG = bytes(range(256)) * (PIECE_BYTES // 100)


@pytest.mark.parametrize(
    ("places", "slots", "groups"),
    [
        ("aa", 1, [[0, 1]]),
        ("aab", 1, [[0, 1], [2]]),
        ("abababa", 1, [[0, 2, 4, 6], [1, 3, 5]]),
        ("aaaab", 2, [[0, 2], [1, 3], [4]]),
    ],
)
def test_an_executors_partitions_stay_together(places: str, slots: int, groups: list[list[int]]) -> None:
    assert by_executor(places, slots) == groups


def task(_: int, tokens: Iterator[bytes]) -> Iterator[bytes]:
    """Leave two frames for each rank, which its token names, and tell the driver."""
    for token in tokens:
        yield key(RESULT)
        yield b"told by " + token
        for data in (token + LONG, b"short " + token):
            yield key(STATE + int(token))
            yield data


def whole(data: Any) -> bytes:
    return data if isinstance(data, bytes) else frame.join(data)


def pairs(frames: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    stream = iter(frames)
    return zip(stream, stream, strict=True)


def run(tokens: list[list[bytes]], ranks: int, lost: int | None = None) -> list[list[tuple[int, bytes]]]:
    """Return the keys and frames that each partition of the second stage yields."""
    arriving: list[list[bytes]] = [[] for _ in range(ranks)]
    for number in range(len(tokens)):
        if number != lost:
            found = map(whole, Gathered(task, tokens, by_rank=True)(number, iter([b""])))
            for to, piece in pairs(found):
                arriving[keyed_by(to)].append(piece)
    made = []
    for rank, pieces in enumerate(arriving):
        found = [*pairs(map(whole, at_home(rank, iter(pieces))))]
        keys = dict.fromkeys(keyed_by(to) for to, _ in found)
        by_key = {to: [*joined(piece for own, piece in found if keyed_by(own) == to)] for to in keys}
        made.append([(to, bytes(data)) for to, frames in by_key.items() for data in frames])
    return made


def test_what_stays_comes_to_the_partition_of_its_rank() -> None:
    found = run([[b"1", b"3"], [b"0", b"2"]], 4)
    for rank, frames in enumerate(found):
        name = str(rank).encode()
        assert [data for to, data in frames if to == STATE] == [name + LONG, b"short " + name]
    told = [data for frames in found for to, data in frames if to == RESULT]
    assert sorted(told) == [b"told by %d" % n for n in range(4)]


def test_a_partition_to_which_nothing_came_says_so() -> None:
    found = run([[b"1", b"3"], [b"0", b"2"]], 4, lost=0)
    assert [[data for to, data in frames if to == RESULT and data == LACKING] for frames in found] == [
        [],
        [LACKING],
        [],
        [LACKING],
    ]

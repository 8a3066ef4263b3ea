"""Which requests share a forward pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sparkdl.serve.server.batching import Batcher, Full


class Version:
    """A version of a model with one copy; its passes wait until they may begin."""

    def __init__(self, name: str, passes: list[tuple[str, list[int]]], may: threading.Event) -> None:
        self.name, self.passes, self.may = name, passes, may
        self.begun = threading.Event()
        self.copies = (self,)

    def run(self, requests: Sequence[Sequence[int]]) -> list[Any]:
        self.passes.append((self.name, [len(rows) for rows in requests]))
        self.begun.set()
        assert self.may.wait(10)
        return [(self.name, list(rows)) for rows in requests]


@pytest.fixture
def may() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_requests_share_a_pass_in_their_order_up_to_its_most_rows_and_with_their_own_version_alone(
    may: threading.Event,
) -> None:
    passes: list[tuple[str, list[int]]] = []
    old, new = Version("old", passes, may), Version("new", passes, may)
    told: list[int] = []
    batcher = Batcher(
        threads=1,
        torch_threads=1,
        max_rows=4,
        max_queue=100,
        wait=0,
        observe=lambda rows, _: told.append(rows),
    )
    asked = [(old, [0])]
    futures = [batcher.submit(old, [0])]
    assert old.begun.wait(10)  # the others gather while it computes
    for version, size in (
        (old, 2),
        (old, 2),
        (old, 1),
        (new, 1),
        (old, 1),
        (old, 4),
        (old, 9),
        (new, 3),
        (new, 2),
    ):
        asked.append((version, list(range(size))))
        futures.append(batcher.submit(version, asked[-1][1]))
    assert batcher.rows_waiting == 25
    may.set()
    assert [future.result(10) for future in futures] == [(version.name, rows) for version, rows in asked]
    batcher.close()
    assert passes == [
        *(
            ("old", [1]),
            ("old", [2, 2]),
            ("old", [1]),
            ("new", [1]),
            ("old", [1]),
            ("old", [4]),
            ("old", [9]),
        ),
        *(("new", [3]), ("new", [2])),
    ]
    assert told == [sum(sizes) for _, sizes in passes]
    assert batcher.rows_waiting == 0


def test_a_queue_takes_so_many_rows_and_none_once_it_closes(may: threading.Event) -> None:
    version = Version("one", [], may)
    batcher = Batcher(threads=1, torch_threads=1, max_rows=2, max_queue=3, wait=0)
    first = batcher.submit(version, [0])
    assert version.begun.wait(10)
    waiting = [batcher.submit(version, [1, 2]), batcher.submit(version, [3])]
    with pytest.raises(Full):
        batcher.submit(version, [4])
    may.set()
    batcher.close()
    assert [future.result(0) for future in (first, *waiting)] == [("one", [0]), ("one", [1, 2]), ("one", [3])]
    with pytest.raises(Full):
        batcher.submit(version, [5])

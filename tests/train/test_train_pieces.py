"""Large frames travel in pieces, and nobody notices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.data import as_dataset, partitioned
from support.no_jvm import no_jvm
from support.reference import assert_bit_equal
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl._spark.frames import key
from sparkdl.access import in_pieces as pieces
from sparkdl.access.in_pieces import InPieces, InRounds
from sparkdl.train import MaxIteration
from sparkdl.wire import arrays, frame
from sparkdl.wire.frame import Buffer, Parts
from sparkdl.wire.pieces import PIECE_BYTES, cut, joined, joined_by_source

SIZES = st.sampled_from(
    [0, 1, 1000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 5 * PIECE_BYTES + 7]
)


def sent(task: Any, source: int, expected: int, blocks: int = 1) -> dict[bytes, list[bytes]]:
    """Return what a task sends to each partition, as Spark hands it on, by block."""
    found: dict[bytes, list[bytes]] = {}
    stream = iter(InPieces(task, pieces=expected, blocks=blocks)(source, iter([b"token"])))
    for to in stream:
        assert isinstance(to, bytes)
        data = next(stream)
        found.setdefault(to, []).append(data if isinstance(data, bytes) else frame.join(data))
    return found


@given(sizes=st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=3), expected=st.integers(0, 4))
def test_what_is_cut_is_joined(sizes: list[tuple[int, int]], expected: int) -> None:
    draw = random.Random(0)
    whole = [(draw.randbytes(first), draw.randbytes(second)) for first, second in sizes]

    def task(source: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        assert list(frames) == [b"token"]
        for to in (0, 1):
            for data in whole[source]:
                yield key(to)
                yield [data[:10], memoryview(data)[10:]] if source else data

    arrived: list[bytes] = []
    for source in range(len(whole)):
        frames = sent(task, source, expected).get(key(1), [])
        if expected:  # all that arrives is zipped
            assert len(frames) == expected + 1
        arrived += [piece for data in frames for piece in (data, b"")]
    draw.shuffle(arrived)
    found = [bytes(data) for data in joined(arrived)]
    assert sorted(found) == sorted(data for both in whole for data in both if data)


@given(first=SIZES, second=SIZES, expected=st.integers(2, 9), blocks=st.integers(2, 5))
def test_pieces_are_dealt_out_to_blocks(first: int, second: int, expected: int, blocks: int) -> None:
    blocks = min(blocks, expected)
    whole = random.Random(0).randbytes(first), random.Random(1).randbytes(second)

    def task(_: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        assert list(frames) == [b"token"]
        for to in (0, 1, 2):
            for data in whole:
                yield key(to)
                yield data

    found = sent(task, 0, expected, blocks)
    assert sorted(found) == [key(n) for n in range(3 * blocks)]
    for to in (0, 1, 2):
        of_blocks = [found[key(to * blocks + block)] for block in range(blocks)]
        assert sum(map(len, of_blocks)) == expected + 1  # all that arrives is zipped
        # The second frame, which is small, is in the first block.
        in_block = [len(frames) - (block == 0) for block, frames in enumerate(of_blocks)]
        assert max(in_block) - min(in_block) <= 1
        arrived = [data for frames in of_blocks for data in frames]
        assert sorted(map(bytes, joined(arrived))) == sorted(data for data in whole if data)


def test_large_frames_are_joined_in_files(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr("sparkdl.wire.pieces.LARGE", 2 * PIECE_BYTES)
    sizes = (10, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 1, 7 * PIECE_BYTES)
    whole = [random.Random(size).randbytes(size) for size in sizes]
    before = len(arrays._maps)
    arrived = [frame.join(piece) for piece in cut(0, whole)]
    found = list(joined(arrived, in_files=True))
    assert [bytes(data) for data in found] == whole
    assert len(arrays._maps) == before + 2
    assert list(tmp_path.iterdir()) == []
    assert b"".join(frame.join(piece)[64:] for piece in cut(0, [found[3].tobytes()])) == whole[3]


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 10 * PIECE_BYTES])
def test_number_of_pieces(size: int) -> None:
    assert (pieces.count(size) - 1) * PIECE_BYTES < max(size, 1) <= pieces.count(size) * PIECE_BYTES


def test_a_task_gets_its_frames_whole_and_sends_pieces() -> None:
    whole = [bytes([n]) * (n * PIECE_BYTES + 1) for n in range(3)]

    def task(_: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        for data in frames:
            yield [data]

    arriving = [frame.join(piece) for piece in cut(7, whole)]
    assert max(map(len, arriving)) < PIECE_BYTES + 100
    leaving = InPieces(task, token=False, keyed=False)(0, iter(arriving))
    left = [frame.join(piece) for piece in leaving if isinstance(piece, list)]
    assert len(left) == len(arriving)
    assert [bytes(data) for data in joined(left)] == whole


@pytest.mark.parametrize("step", [1, 3, 4, 8, 9])
def test_the_driver_gets_frames_in_rounds(step: int) -> None:
    kinds = ["state", "other", "state", "state"]
    arrays = [{"array": np.full(n * PIECE_BYTES, n, np.uint8)} for n in range(4)]
    whole = [frame.join(frame.pack({"kind": kind}, a)) for kind, a in zip(kinds, arrays, strict=True)]
    # of the kind that is wanted, 1 + 3 + 4 pieces

    rounds, received = 0, list[bytes]()
    for _ in range(9):
        rounds += 1
        arriving = (frame.join(piece) for piece in cut(7, whole))
        new = list(InRounds(partial(eq, "state"), len(received), len(received) + step)(0, arriving))
        assert next(arriving, None) is None  # Spark ends processes whose tasks leave anything unread
        received += [data for data in new if data != pieces.MORE]
        if pieces.MORE not in new:
            break
    assert rounds == -(-8 // step)
    assert [(source, bytes(data)) for source, data in joined_by_source(received)] == [
        (7, whole[n]) for n in (0, 2, 3)
    ]


MODES: dict[str, dict[str, Any]] = {
    "driver": {"exchange": "driver"},
    "replicated": {"exchange": "replicated", "iterations_per_job": 4},
    "sharded": {"exchange": "sharded", "iterations_per_job": 4},
}


def trained(data: Dataset, **options: Any) -> nn.Module:
    """Train a module whose frames are cut into pieces."""
    torch.manual_seed(0)
    trainer = Trainer(
        nn.Sequential(nn.Linear(64, 8_000), nn.Tanh(), nn.Linear(8_000, 10)),
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.Adam,
        batch_size=30,
        end_when=MaxIteration(4),
        progress=False,
        **options,
    )
    return trainer.fit(data).module


@pytest.mark.parametrize(
    ("codec", "modes", "num_shards"),
    [
        ("fp32", ["driver", "replicated", "sharded"], None),
        ("int8", ["driver", "replicated"], 1),  # the blocks of a codec are cut where shards are
    ],
)
def test_no_bit_changes(spark: Any, codec: Any, modes: list[str], num_shards: int | None) -> None:
    found: list[nn.Module] = []
    with as_dataset(spark, partitioned([40, 0, 30])) as data:
        for mode in modes:
            options = {"num_shards": num_shards if mode == "driver" else None, **MODES[mode]}
            found.append(trained(data, gradient_codec=codec, **options))
    for other in found[1:]:
        assert_bit_equal(other, found[0])


@pytest.mark.parametrize("mode", ["replicated", "sharded"])
def test_no_bit_changes_where_pieces_lie_in_blocks(
    cluster: Any, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with no_jvm(str(tmp_path)) as alone, as_dataset(alone, partitioned([40, 0, 30])) as data:
        in_one = trained(data, **MODES[mode])
    with as_dataset(cluster, partitioned([40, 0, 30])) as data:
        monkeypatch.setattr(pieces, "_BLOCK_BYTES", 2 * PIECE_BYTES)
        assert_bit_equal(trained(data, **MODES[mode]), in_one)


def test_frames_of_the_tests_above_are_cut() -> None:
    nbytes = 4 * 8_000 * 64 // 3
    assert pieces.count(nbytes) > 2
    assert pieces.blocks(nbytes) == 1

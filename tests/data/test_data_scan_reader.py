"""The reader of a scan: the rows that it is asked for, within its memory, and no thread left."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from sparkdl import Dataset
from sparkdl.data.columns import ColumnPlan
from sparkdl.data.scan import reader as reading
from sparkdl.data.scan.files import File
from sparkdl.data.scan.manifest import EVEN, ScanManifest, streams_for
from sparkdl.data.scan.order import ScanLayout, order_of
from sparkdl.data.scan.reader import Reader, _column_bytes
from sparkdl.data.scan.schema import leaves
from sparkdl.data.streams import FROM_THE_BEGINNING
from sparkdl.exceptions import DataError

ROWS = 3000
X, Y = (
    ColumnPlan("features", "x", dtype="float32", shape=(2,)),
    ColumnPlan("label", "y", dtype="int64", shape=(), finite=True),
)


def manifest(folder: Path, sizes: tuple[int, ...], window_bytes: int, streams: int) -> ScanManifest:
    files, file, number, rows = [], [], [], []
    per_file = ROWS // len(sizes)
    for index, size in enumerate(sizes):
        numbers = np.arange(index * per_file, (index + 1) * per_file)
        table = pa.table({"x": [[float(n), -float(n)] for n in numbers], "z": numbers, "y": numbers})
        path = folder / f"{index}.parquet"
        parquet.write_table(table, path, row_group_size=size)
        files.append(File(str(path), path.stat().st_size, path.stat().st_mtime_ns))
        footer = parquet.read_metadata(path)
        for group in range(footer.num_row_groups):
            file.append(index)
            number.append(group)
            rows.append(footer.row_group(group).num_rows)
    found = ScanManifest(str(folder), tuple(files), *(np.array(v) for v in (file, number, rows)))
    return found.resolved((X, Y), window_bytes, streams)


@pytest.fixture
def threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("sizes", "window", "streams"),
    [((40, 70, 100), 6000, 4), ((1000, 500, 1000), 2000, 3), ((250, 250, 250), 4000, 3)],
)
def test_rows_are_those_of_the_order_and_memory_is_bounded(
    tmp_path: Path, sizes: tuple[int, ...], window: int, streams: int, shuffle: bool
) -> None:
    found = manifest(tmp_path, sizes, window, streams)
    reader, steps, visited = Reader(found), 60, []
    for step in range(steps):
        slots = FROM_THE_BEGINNING.slots(ROWS, steps, step)
        for rank in range(2):
            rows = reader.in_epoch(slots, 3, 1, shuffle, rank, 2)
            read = rows.read()
            np.testing.assert_array_equal(read["label"], rows.numbers)
            np.testing.assert_array_equal(read["features"], np.stack([rows.numbers, -rows.numbers], 1))
            assert step or list(rows.read({"label"})) == ["label"]
            visited.append(rows.numbers)
            kept = sum(chunk.rows for chunk in list(reader._chunks.values()))
            assert kept * (X.row_bytes + Y.row_bytes) <= window
    reader.close()
    assert sorted(np.concatenate(visited).tolist()) == list(range(ROWS))
    if set(sizes) == {250}:  # none is dealt in slices, and chunks have one size
        assert reader.decoded == ROWS  # nothing is read twice
    # Another process that goes on anywhere reads the same.
    again = Reader(found)
    slots = FROM_THE_BEGINNING.slots(ROWS, steps, 37)
    np.testing.assert_array_equal(again.in_epoch(slots, 3, 1, shuffle, 1, 2).read()["label"], visited[75])
    again.close()


@pytest.mark.usefixtures("threads")
def test_what_a_file_is_not_any_more_is_an_error(tmp_path: Path) -> None:
    found = manifest(tmp_path, (100, 100), 6000, 2)
    reader = Reader(ScanManifest.unpack(b"".join(found.pack())))
    assert reader.in_order(1495, 1505).read()["label"].tolist() == list(range(1495, 1505))
    (tmp_path / "1.parquet").write_bytes((tmp_path / "1.parquet").read_bytes() + b"x")
    reader.close()
    with pytest.raises(DataError, match=r"1\.parquet: the file has changed"):
        reader.in_order(1600, 1605).read()
    reader.close()


@pytest.mark.usefixtures("threads")
def test_a_damaged_file_is_named_with_its_row_group(tmp_path: Path) -> None:
    found = manifest(tmp_path, (100, 100), 6000, 2)
    data = bytearray((tmp_path / "0.parquet").read_bytes())
    column = parquet.read_metadata(tmp_path / "0.parquet").row_group(3).column(0)
    begin = column.dictionary_page_offset or column.data_page_offset
    data[begin : begin + 40] = bytes(40)
    (tmp_path / "0.parquet").write_bytes(data)
    status = (tmp_path / "0.parquet").stat()
    files = (File(str(tmp_path / "0.parquet"), status.st_size, status.st_mtime_ns), found.files[1])
    damaged = ScanManifest(found.where, files, found.file, found.number, found.rows)
    reader = Reader(damaged.resolved((X, Y), 6000, 2))
    with pytest.raises(DataError, match=r"row group 3 of .*0\.parquet cannot be read.*after 3 attempts"):
        reader.in_order(320, 330).read()
    reader.close()


@pytest.mark.usefixtures("threads")
def test_reading_that_fails_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, fails = Reader(manifest(tmp_path, (100, 100), 6000, 2)), [True]
    read = Reader._read_chunk

    def once(*given: object) -> object:
        if fails:
            fails.pop()
            raise OSError("slow down")
        return read(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "_read_chunk", once)
    assert reader.in_order(7, 9).read()["label"].tolist() == [7, 8]
    assert not fails
    reader.close()


@pytest.mark.usefixtures("threads")
def test_what_is_kept_of_a_released_dataset_goes_with_the_next_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "partition"
    folder.mkdir()
    kept = Reader(manifest(tmp_path, (100, 100), 6000, 2), folder)
    monkeypatch.setattr(reading, "_readers", OrderedDict({("store", 1): kept}))
    kept.in_order(5, 10).read()
    reading.stop_reading()
    assert kept._chunks
    assert reading._readers
    folder.rmdir()
    reading.stop_reading()
    assert not kept._chunks
    assert not kept._cursors
    assert not reading._readers


def test_chunks_of_long_row_groups_are_refilled_one_after_the_other() -> None:
    layout = ScanLayout(np.full(12, 1000), 4, 300)
    order = order_of(layout, seed=3, epoch=0)
    steps, last, refills = 120, [0] * layout.streams, []
    for step in range(steps):
        parts = order.parts(FROM_THE_BEGINNING.slots(layout.rows, steps, step), 0, 1)
        now = [max((part.chunk for part in parts if part.stream == s), default=last[s]) for s in range(4)]
        refills.append(sum(a != b for a, b in zip(last, now, strict=True)))
        last = now
    assert sum(refills) == 39  # the first stream has ten chunks, the others eleven
    assert max(refills) == 1


def test_streams_by_default() -> None:
    groups = np.full(1000, 4000)
    assert streams_for(groups, 260, 104_000_000) == 24  # two row groups of each stream fill the window
    assert streams_for(groups[:10], 260, 104_000_000) == 2
    assert streams_for(groups[:3], 260, 104_000_000) == 1
    assert streams_for(np.full(10_000, 1_000_000), 260, 1 << 28) == 12
    assert streams_for(np.full(10_000, 1_000_000), 160, 1 << 28, 10) == 6  # that can stay open
    assert streams_for(groups, 1, 1 << 40) == 240
    assert all(ScanLayout(groups, count, 1).streams == count for count in EVEN)


def test_the_checksum_is_of_row_groups_and_not_of_times(tmp_path: Path) -> None:
    first = manifest(tmp_path, (100, 100), 6000, 2)
    second = manifest(tmp_path, (100, 100), 6000, 2)
    assert first.positions == second.positions
    assert first.content != second.content
    assert first.positions != manifest(tmp_path, (90, 100), 6000, 2).positions
    assert first.positions != manifest(tmp_path, (100, 100), 6000, 3).positions


@pytest.mark.parametrize("columns", [("a", "a.b", "y"), ("a.b", "a", "y"), ("l", "m", "a", "a.b", "y")])
def test_a_column_is_not_the_field_of_a_struct_that_has_its_path(
    spark: Any, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    values = {
        "a": pa.array([{"b": 1.0}, None, {"b": None}], pa.struct({"b": pa.float64()})),
        "a.b": pa.array([5.0, 6.0, 7.0]),
        "l": pa.array([[1, 2], [], None]),
        "m": pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
        "y": pa.array([0, 1, 2]),
    }
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({name: values[name] for name in columns}), path)
    with Dataset.from_parquet(path, features="a.b", label="y", spark=spark) as data:
        assert data.peek()["features"].tolist() == [5, 6]
    schema, row_group = parquet.read_schema(path), parquet.ParquetFile(path).metadata.row_group(0)
    places = leaves(schema)
    assert {n: row_group.column(at).path_in_schema for n, at in places.items()} == {"a.b": "a.b", "y": "y"}
    assert row_group.column(places["a.b"]).statistics.null_count == 0
    values["a.b"] = pa.array([5.0, None, 7.0])
    values["a"] = pa.array([{"b": 1.0}] * 3)
    parquet.write_table(pa.table({name: values[name] for name in columns}), path)
    told = pytest.raises(DataError, match=r"'a\.b': 1 nulls among the 3 rows of row group 0")
    with told, Dataset.from_parquet(path, features="a.b", label="y", spark=spark) as data:
        data.peek()


def test_bytes_of_files_count_columns_with_a_dot(tmp_path: Path) -> None:
    table = pa.table({"a.b": pa.array([1.5] * 9), "x": pa.array([[1.0]] * 9), "xy": pa.array(["z"] * 9)})
    parquet.write_table(table, tmp_path / "rows.parquet")
    row_group = parquet.ParquetFile(tmp_path / "rows.parquet").metadata.row_group(0)
    sizes = [row_group.column(n).total_compressed_size for n in range(3)]
    assert [_column_bytes(row_group, names) for names in (["a.b"], ["x"], ["a.b", "x"])] == [
        sizes[0],
        sizes[1],
        sizes[0] + sizes[1],
    ]

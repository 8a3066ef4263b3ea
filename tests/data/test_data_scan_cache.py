"""Decoded row groups on disk: the rows of the files, within their bytes, and hints only."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from sparkdl.data.columns import ColumnPlan
from sparkdl.data.scan import cache as caching
from sparkdl.data.scan.cache import RowGroupCache
from sparkdl.data.scan.files import File
from sparkdl.data.scan.filters import SelectedRows
from sparkdl.data.scan.manifest import ScanManifest
from sparkdl.data.scan.reader import Reader, reader_of
from sparkdl.data.scan.tasks import PlaceManifest
from sparkdl.data.store.partition import Token
from sparkdl.data.streams import FROM_THE_BEGINNING
from sparkdl.exceptions import DataError
from sparkdl.wire import frame

ROWS, SIZE = 2000, 100
COLUMNS = (
    ColumnPlan("features", "x", dtype="float32", shape=(2,)),
    ColumnPlan("label", "y", dtype="int64", shape=(), finite=True),
)
PLENTY = 1 << 30


@pytest.fixture
def manifest(tmp_path: Path) -> ScanManifest:
    return manifest_of(tmp_path, np.arange(ROWS))


def manifest_of(tmp_path: Path, numbers: Any) -> ScanManifest:
    """Return the manifest of a file with some numbers."""
    table = pa.table({"x": [[float(n), -float(n)] for n in numbers], "y": numbers})
    path = tmp_path / "rows.parquet"
    parquet.write_table(table, path, row_group_size=SIZE)
    file = File(str(path), path.stat().st_size, path.stat().st_mtime_ns)
    groups = ROWS // SIZE
    places = np.zeros(groups, int), np.arange(groups), np.full(groups, SIZE)
    return ScanManifest(str(tmp_path), (file,), *places).resolved(COLUMNS, 12000, 4)


def cache(folder: Path, most: int = PLENTY) -> RowGroupCache:
    return RowGroupCache([folder / "disk 1" / "c", folder / "disk 2" / "c"], most)


def read(reader: Reader, epoch: int, steps: int = 40) -> list[int]:
    """Read an epoch of two partitions."""
    found: list[int] = []
    for step in range(steps):
        slots = FROM_THE_BEGINNING.slots(reader.manifest.layout.rows, steps, step)
        for rank in range(2):
            rows = reader.in_epoch(slots, 3, epoch, True, rank, 2).read()
            np.testing.assert_array_equal(rows["features"], np.stack([rows["label"], -rows["label"]], 1))
            found += rows["label"].tolist()
    return found


def files(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in folder.glob("disk*/c/*") if p.name.isdecimal()}


def test_a_chunk_that_is_read_again_leaves_no_draft(manifest: ScanManifest, tmp_path: Path) -> None:
    reader = Reader(manifest, cache=cache(tmp_path))
    slots = FROM_THE_BEGINNING.slots(ROWS, 40, 0)
    for _ in range(2):
        reader.in_epoch(slots, 3, 0, True, 0, 2).read()
        reader.stop()
        reader._chunks.clear()  # as where others need the room
    reader.close()
    names = {path.name for path in tmp_path.glob("disk*/c/*")}
    assert names
    assert all(name.isdecimal() or name == "bytes" for name in names)


def test_rows_are_those_of_the_files_and_decoded_in_one_epoch(manifest: ScanManifest, tmp_path: Path) -> None:
    plain, first = Reader(manifest), Reader(manifest, cache=cache(tmp_path))
    assert read(first, 0) == read(plain, 0)
    decoded = first.decoded
    # The thread that reads ahead may be so late that a row group is begun twice.
    assert ROWS <= decoded < 2 * ROWS
    for epoch in (1, 2):
        assert read(first, epoch) == read(plain, epoch)
    assert first.decoded == decoded
    assert plain.decoded >= 3 * ROWS
    # Another process of the executor finds them.
    second = Reader(manifest, cache=cache(tmp_path))
    assert read(second, 3) == read(plain, 3)
    assert second.in_order(150, 160).read()["label"].tolist() == list(range(150, 160))
    assert second.decoded == second.file_bytes == 0
    for reader in (plain, first, second):
        reader.close()
    assert sorted(map(int, files(tmp_path))) == list(range(ROWS // SIZE))
    found = list(tmp_path.glob("disk*/c/*"))
    assert len(found) == ROWS // SIZE + 1  # no draft
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("disk*/c")} == {0o700}


def test_rows_that_a_filter_leaves_are_kept_without_the_others(
    manifest: ScanManifest, tmp_path: Path
) -> None:
    mask = np.arange(ROWS) % 3 == 0
    left = np.add.reduceat(mask, np.arange(0, ROWS, SIZE))
    selected = SelectedRows.of(manifest.rows, left, np.packbits(mask.reshape(-1, SIZE), axis=1).ravel())
    some = ScanManifest(
        manifest.where, manifest.files, manifest.file, manifest.number, left, selected=selected
    ).resolved(COLUMNS, 12000, 4)
    reader = Reader(some, cache=cache(tmp_path))
    decoded = []
    for epoch in range(2):
        assert sorted(read(reader, epoch)) == np.flatnonzero(mask).tolist()
        decoded.append(reader.decoded)
    assert decoded[0] == decoded[1] < 2 * ROWS
    reader.close()


def test_bytes_are_bounded_for_all_processes_together(manifest: ScanManifest, tmp_path: Path) -> None:
    whole = Reader(manifest, cache=cache(tmp_path / "whole"))
    read(whole, 0)
    whole.close()
    sizes = files(tmp_path / "whole")
    most = 5 * max(sizes.values()) + 1
    readers = [Reader(manifest, cache=cache(tmp_path / "some", most)) for _ in range(2)]
    for epoch, reader in enumerate(readers):
        assert sorted(read(reader, epoch)) == list(range(ROWS))
        reader.close()
    kept = files(tmp_path / "some")
    assert sum(kept.values()) <= most
    assert len(kept) == 5
    assert int((tmp_path / "some/disk 1/c/bytes").read_text()) == sum(kept.values())


def test_a_row_group_that_is_read_half_is_not_kept(manifest: ScanManifest, tmp_path: Path) -> None:
    reader = Reader(manifest.resolved(COLUMNS, 1200, 1), cache=cache(tmp_path))
    assert reader.in_order(0, 30).read()["label"].tolist() == list(range(30))
    reader.close()
    assert not files(tmp_path)
    assert not [p for p in tmp_path.glob("disk*/c/*") if p.name != "bytes"]


def test_rows_of_a_file_that_changes_while_it_is_read_are_not_kept(
    manifest: ScanManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = Path(manifest.files[0].path), caching.Draft.write

    def changed(draft: Any, batch: Any) -> None:
        os.utime(path, ns=(1, 1))
        write(draft, batch)

    monkeypatch.setattr(caching.Draft, "write", changed)
    reader = Reader(manifest, cache=cache(tmp_path))
    with pytest.raises(DataError, match=r"rows\.parquet: the file has changed"):
        reader.in_order(0, SIZE).read()
    reader.close()
    assert not files(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 16, None])
def test_a_damaged_file_of_the_cache_is_replaced(
    manifest: ScanManifest, tmp_path: Path, damage: bytes | None
) -> None:
    reader = Reader(manifest, cache=cache(tmp_path))
    read(reader, 0)
    reader.close()
    (path,) = tmp_path.glob("disk*/c/3")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    again = Reader(manifest, cache=cache(tmp_path))
    assert sorted(read(again, 1)) == list(range(ROWS))
    assert again.decoded == SIZE
    again.close()
    assert path.read_bytes() == whole


def test_a_full_disk_is_no_error(
    manifest: ScanManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    new_stream = pa.ipc.new_stream

    def full(file: Any, schema: Any) -> Any:
        written.append(file)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return new_stream(file, schema)

    monkeypatch.setattr(pa.ipc, "new_stream", full)
    reader = Reader(manifest, cache=cache(tmp_path))
    assert sorted(read(reader, 0)) == list(range(ROWS))
    reader.close()
    assert len(written) == 3
    assert len(files(tmp_path)) <= 2
    assert len(list(tmp_path.glob("disk*/c/*"))) == len(files(tmp_path)) + 1


def test_a_dataset_that_was_released_has_no_rows_of_files_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that is busy is left out when rows are deleted, and its store has the same name later."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "disk"))
    for numbers in (np.arange(ROWS), np.arange(ROWS) + 1000):
        data = frame.join(manifest_of(tmp_path, numbers).pack())
        sent: Any = SimpleNamespace(read=lambda once, data=data: data)
        place = PlaceManifest("of a dataset", sent, 1, {}, PLENTY)
        (token,) = (Token.from_frame(frame.unpack(made)) for made in place(0, iter(())))
        for _ in range(2):  # the second time from the cache
            found = reader_of(token).in_order(0, ROWS).read()["label"]
            assert found.tolist() == numbers.tolist()
        assert reader_of(token).decoded == ROWS
        reader_of(token).close()

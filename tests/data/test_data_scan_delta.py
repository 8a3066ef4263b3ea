"""Files of a version of a Delta table, beside deltalake's own reading of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from sparkdl.data.scan.delta import DeltaVersion
from sparkdl.data.scan.files import list_files
from sparkdl.exceptions import ConfigError, DataError

deltalake = pytest.importorskip("deltalake")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table whose folders have names that are quoted."""
    path = tmp_path / "a table"
    rows = {"x": [1.0, 2.0, 3.0], "day": [1, 2, None], "shop": ["a b", "c=d/%é", "e"]}
    deltalake.write_deltalake(path, pa.table(rows), partition_by=["day", "shop"])
    deltalake.write_deltalake(path, pa.table({"x": [4.0], "day": [1], "shop": ["a b"]}), mode="append")
    return path


def rows_of(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    listing = DeltaVersion(str(path), version).listed()
    read = [parquet.ParquetFile(file.path).read().to_pylist() for file in listing.files]
    values = listing.values.to_pylist()
    return [row | own for rows, own in zip(read, values, strict=True) for row in rows]


def test_rows_are_those_of_the_version(table: Path) -> None:
    deltalake.DeltaTable(table).delete("x = 2")
    for version in (0, 1, 2, None):
        expected = deltalake.DeltaTable(table, version).to_pyarrow_table().to_pylist()
        assert sorted(rows_of(table, version), key=lambda row: row["x"]) == sorted(
            expected, key=lambda row: row["x"]
        )
    listing = DeltaVersion(str(table), None).listed()
    assert listing.version == 2
    assert DeltaVersion(str(table), None).pinned(listing) == DeltaVersion(str(table), 2)


def append(path: Path, protocol: dict[str, Any], configuration: dict[str, str], mapped: bool = False) -> None:
    """Write a version that other writers would write."""
    log = path / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    metadata = next(action["metaData"] for action in first if "metaData" in action)
    if mapped:
        schema = json.loads(metadata["schemaString"])
        for number, field in enumerate(schema["fields"], 1):
            field["metadata"] = {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"c{number}",
            }
        metadata["schemaString"] = json.dumps(schema)
    actions = [{"protocol": protocol}, {"metaData": metadata | {"configuration": configuration}}]
    (log / f"{2:020}.json").write_text("\n".join(map(json.dumps, actions)))


def features(*names: str) -> dict[str, Any]:
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": list(names),
        "writerFeatures": list(names),
    }


def test_what_a_reader_would_have_to_know_is_refused_by_name(table: Path, tmp_path: Path) -> None:
    def refused(match: str) -> None:
        with pytest.raises(DataError, match=match):
            DeltaVersion(str(table), None).listed()

    flat = tmp_path / "flat"
    for _ in range(2):
        deltalake.write_deltalake(flat, pa.table({"x": [1.0]}), mode="append")
    append(flat, {"minReaderVersion": 2, "minWriterVersion": 5}, {"delta.columnMapping.mode": "name"}, True)
    with pytest.raises(DataError, match=r"flat, version 2 maps the names of columns \(.*mode=name\)"):
        DeltaVersion(str(flat), None).listed()
    append(table, features("typeWidening"), {})
    refused("version 2 asks readers for typeWidening, which is not known; read the table by Spark")
    append(table, features("somethingNew"), {})
    refused("deltalake cannot read it: .*somethingNew")
    append(table, features("deletionVectors"), {"delta.enableDeletionVectors": "true"})
    assert len(rows_of(table)) == 4  # there may be deletion vectors, and there are none


def test_deletion_vectors_are_refused(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, features("deletionVectors"), {"delta.enableDeletionVectors": "true"})
    vectors = pa.record_batch({"filepath": ["day=1/a.parquet"], "selection_vector": [[True, False]]})
    monkeypatch.setattr(deltalake.DeltaTable, "deletion_vectors", lambda _: iter([vectors]))
    with pytest.raises(DataError, match="has deletion vectors, among others for day=1/a.parquet"):
        DeltaVersion(str(table), None).listed()


def test_files_that_are_gone_or_others_are_named(table: Path) -> None:
    file = DeltaVersion(str(table), None).listed().files[0]
    deltalake.DeltaTable(table).delete("day = 1")
    deltalake.DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(rows_of(table)) == 2
    name = Path(file.path).name
    with pytest.raises(DataError, match=rf"version 1: its file .*{name} is not there any more: VACUUM"):
        DeltaVersion(str(table), 1).listed()
    left = Path(DeltaVersion(str(table), None).listed().files[0].path)
    left.write_bytes(left.read_bytes() + b"x")
    with pytest.raises(DataError, match="has .* bytes, and the table's log says"):
        DeltaVersion(str(table), None).listed()


def test_tables_that_cannot_be_are_named(table: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no: the executor on .* there is no Delta table"):
        DeltaVersion(str(tmp_path / "no"), None).listed()
    with pytest.raises(DataError, match="a table, version 7: deltalake cannot read it"):
        DeltaVersion(str(table), 7).listed()
    with pytest.raises(ConfigError, match="a table is a Delta table: .*Dataset.from_delta"):
        list_files([str(table)])
    deltalake.DeltaTable(table).delete()
    with pytest.raises(DataError, match="version 2 has no files"):
        DeltaVersion(str(table), None).listed()

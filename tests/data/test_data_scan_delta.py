"""Files of a version of a Delta table, beside deltalake's own reading of it."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from sparkdl import Dataset
from sparkdl.data.scan.delta import DeltaVersion
from sparkdl.data.scan.files import list_files
from sparkdl.data.scan.listing import Listing
from sparkdl.data.scan.reader import Reader
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.wire import frame

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


_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def actions_of(path: Path, version: int) -> list[dict[str, Any]]:
    text = (path / "_delta_log" / f"{version:020}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def delete_rows(path: Path, version: int, rows: dict[str, list[int]]) -> None:
    """Write a version in which rows of files are deleted by inline vectors, as the protocol of Delta says."""
    log = path / "_delta_log"
    lines = [
        json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines()
    ]
    added = {line["add"]["path"]: line["add"] for line in lines if "add" in line}
    metadata = next(line["metaData"] for line in lines if "metaData" in line)
    configuration = {"configuration": {"delta.enableDeletionVectors": "true"}}
    actions: list[dict[str, Any]] = [
        {"protocol": features("deletionVectors")},
        {"metaData": metadata | configuration},
    ]
    for name, places in rows.items():
        assert len(places) % 2 == 0  # so that no byte is missing in the end
        roaring = struct.pack("<IIHHI", 12346, 1, 0, len(places) - 1, 16) + struct.pack(
            f"<{len(places)}H", *places
        )
        data = struct.pack("<iqi", 1681511377, 1, 0) + roaring
        vector = {
            "storageType": "i",
            "pathOrInlineDv": base64.b85encode(data).translate(bytes.maketrans(_B85, _Z85)).decode(),
            "sizeInBytes": len(data),
            "cardinality": len(places),
        }
        before = {"path": name, "dataChange": True, "deletionTimestamp": 1}
        actions += [{"remove": before}, {"add": added[name] | {"deletionVector": vector}}]
    (path / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


def test_deleted_rows_are_not_read(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "a table"
    for first in (0, 100):
        rows = pa.table({"x": [float(n) for n in range(first, first + 100)], "shop": ["a b%"] * 100})
        properties = deltalake.WriterProperties(max_row_group_size=30)
        deltalake.write_deltalake(
            path, rows, mode="append", partition_by=["shop"], writer_properties=properties
        )
    (name,) = [action["add"]["path"] for action in actions_of(path, 0) if "add" in action]
    gone = [*range(30, 60), 61, 99]
    delete_rows(path, 2, {name: gone})
    found = DeltaVersion(str(path), None).listed()
    assert Listing.of(frame.unpack(frame.join(found.pack()))).selected.keys() == found.selected.keys()
    for chosen in (None, pc.field("x") > 50):
        expected = [n for n in range(200) if n not in gone and (chosen is None or n > 50)]
        with Dataset.from_delta(path, features="x", filter=chosen, spark=spark) as data:
            assert len(data) == len(expected)
            reader = Reader(data.source.manifest(data.plan))  # type: ignore[attr-defined]
            read = reader.in_order(0, len(expected)).read()["features"]
            reader.close()
            assert sorted(read.ravel().tolist()) == expected
    with Dataset.from_delta(path, 1, features="x", spark=spark) as data:
        assert len(data) == 200


def test_a_deletion_vector_of_another_file_is_named(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, features("deletionVectors"), {"delta.enableDeletionVectors": "true"})
    vectors = pa.record_batch({"filepath": ["day=1/a.parquet"], "selection_vector": [[True, False]]})
    monkeypatch.setattr(deltalake.DeltaTable, "deletion_vectors", lambda _: iter([vectors]))
    with pytest.raises(DataError, match="has a deletion vector for day=1/a.parquet, which is none of its"):
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
        list_files([str(table)], {})
    with pytest.raises(ConfigError, match="day=1 is inside of .*a table, which is a Delta table: "):
        list_files([str(table / "day=1")], {})
    deltalake.DeltaTable(table).delete()
    with pytest.raises(DataError, match="version 2 has no files"):
        DeltaVersion(str(table), None).listed()

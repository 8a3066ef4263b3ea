"""Snapshots of an Iceberg table, beside pyiceberg's own reading of them."""

from __future__ import annotations

import json
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from sparkdl import Dataset
from sparkdl.data.scan.files import list_files
from sparkdl.data.scan.iceberg import IcebergSnapshot
from sparkdl.data.scan.listing import Listing
from sparkdl.data.scan.reader import Reader
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.wire import frame

pytest.importorskip("pyiceberg")


class AtOnce(Executor):
    """Does work where it is asked for."""

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg keeps a pool as long as the process lives, here that of the tests, which must leave none."""
    from pyiceberg.utils.concurrent import ExecutorFactory

    monkeypatch.setattr(ExecutorFactory, "get_or_create", staticmethod(AtOnce))


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder.parent}/catalog.db", "warehouse": f"file://{folder}"}


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """A table in a folder whose name Iceberg does not quote: two appends, and a delete."""
    from pyiceberg.catalog import load_catalog

    folder = tmp_path / "a table%20"
    folder.mkdir()
    catalog = load_catalog(None, **properties(folder))
    catalog.create_namespace("shop")
    rows = [pa.table({"x": np.arange(n, n + 50.0), "y": np.arange(n, n + 50) % 3}) for n in (0, 50)]
    made = catalog.create_table("shop.sales", rows[0].schema)
    for each in rows:
        made.append(each)
    made.delete("x = 7")
    return made


def folder_of(table: Any) -> Path:
    return Path(table.location().removeprefix("file://")).parent.parent


def place(table: Any, snapshot: int | None = None) -> IcebergSnapshot:
    return IcebergSnapshot(table.metadata_location, snapshot, None, {})


def rows_of(listing: Listing) -> list[dict[str, Any]]:
    return [row for file in listing.files for row in parquet.ParquetFile(file.path).read().to_pylist()]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["x"])


def test_rows_are_those_of_the_snapshot(table: Any) -> None:
    numbers = [each.snapshot_id for each in table.snapshots()]
    for snapshot in (*numbers, None):
        listing = place(table, snapshot).listed()
        expected = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
        assert in_order(rows_of(listing)) == in_order(expected)
        in_catalog = IcebergSnapshot("shop.sales", snapshot, properties(folder_of(table)), {})
        assert in_catalog.listed() == listing
        assert in_catalog.pinned(listing).snapshot == (snapshot or numbers[-1])
    assert Listing.of(frame.unpack(frame.join(listing.pack()))).where == "/"


def with_deletes(table: Any, monkeypatch: pytest.MonkeyPatch, rows: list[int], kind: str = "PARQUET") -> None:
    """Give a table positional deletes, in a file as other writers make it: pyiceberg makes none."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table import DataScan, FileScanTask

    planned = DataScan.plan_files
    path = folder_of(table) / "deletes.parquet"

    def plan_files(self: Any) -> Any:
        tasks = sorted(planned(self), key=lambda task: task.file.record_count, reverse=True)
        name = tasks[0].file.file_path
        deletes = pa.table({"file_path": [name] * len(rows) + ["another"], "pos": [*rows, 0]})
        parquet.write_table(deletes, path)
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES, file_path=f"file://{path}", file_format=FileFormat[kind]
        )
        return [FileScanTask(tasks[0].file, delete_files={file}), *tasks[1:]]

    monkeypatch.setattr(DataScan, "plan_files", plan_files)


def test_deleted_rows_are_not_read(spark: Any, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = in_order(rows_of(place(table).listed()))
    with_deletes(table, monkeypatch, [0, 3, 49])
    found = place(table).listed()
    ((number, mask),) = found.selected.items()
    gone = [row["x"] for row in parquet.ParquetFile(found.files[number].path).read().to_pylist()]
    assert np.flatnonzero(~mask).tolist() == [0, 3, 49]
    left = [row["x"] for row in whole if row["x"] not in (gone[0], gone[3], gone[49])]
    assert len(left) == 96
    monkeypatch.undo()  # tasks list in processes of their own, where nothing is deleted
    with Dataset.from_iceberg(
        table.metadata_location, features="x", label="y", filter=pc.field("y") < 2, spark=spark
    ) as data:
        expected = [row["x"] for row in whole if row["y"] < 2]
        assert len(data) == len(expected)
        reader = Reader(data.source.manifest(data.plan))  # type: ignore[attr-defined]
        read = reader.in_order(0, len(expected)).read()["features"]
        reader.close()
        assert sorted(read.ravel().tolist()) == expected


def test_a_column_that_the_table_has_dropped_is_none_of_it(spark: Any, table: Any) -> None:
    with table.update_schema() as change:
        change.delete_column("y")
    assert table.scan().to_arrow().column_names == ["x"]
    listing = place(table).listed()
    assert listing.schema.names == ["x"]
    assert "y" in parquet.read_schema(listing.files[0].path).names
    for options in ({"label": "y"}, {"filter": pc.field("y") > 0}):
        with pytest.raises(
            (DataError, ConfigError), match="'y' is not in the files|No match for FieldRef.Name.y"
        ):
            Dataset.from_iceberg(table.metadata_location, features="x", spark=spark, **options)
    with Dataset.from_iceberg(table.metadata_location, features="x", spark=spark) as data:
        assert len(data) == 99


def test_a_catalog_and_its_secrets(spark: Any, table: Any) -> None:
    catalog = properties(folder_of(table)) | {"password": "a-secret-of-catalogs"}
    with Dataset.from_iceberg("shop.sales", catalog=catalog, features="x", spark=spark) as data:
        assert len(data) == 99
        table.append(pa.table({"x": [1000.0], "y": [1]}))
        data.release()
        assert len(data) == 99  # of the snapshot that it began with
        shown = repr(data) + data._repr_html_() + repr(data.source._place)  # type: ignore[attr-defined]
        assert "a-secret-of-catalogs" not in shown


def test_what_cannot_be_right_is_refused_by_name(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.types import DoubleType

    def refused(found: IcebergSnapshot, match: str) -> None:
        with pytest.raises(DataError, match=match):
            found.listed()

    refused(place(table, 5), "snapshot 5: there is none; it has [0-9]+, [0-9]+, [0-9]+")
    refused(IcebergSnapshot(str(tmp_path / "no.json"), None, None, {}), "no.json: ")
    missing = IcebergSnapshot("shop.no", None, properties(folder_of(table)), {})
    refused(missing, "shop.no: pyiceberg cannot read it: .*shop.no")
    with monkeypatch.context() as patch:
        with_deletes(table, patch, [1], "PUFFIN")
        refused(place(table), "has deletes in .*, a PUFFIN file, which is not read; read the table by Spark")
    with monkeypatch.context() as patch:
        from pyiceberg.table import DataScan

        def unable(self: Any) -> Any:
            raise ValueError("PyIceberg does not yet support equality deletes")

        patch.setattr(DataScan, "plan_files", unable)
        refused(place(table), "pyiceberg cannot read it: PyIceberg does not yet support equality deletes")
    oldest = table.snapshots()[0].snapshot_id
    with table.update_schema() as update:
        update.add_column("w", DoubleType())
    assert len(rows_of(place(table, oldest).listed())) == 50
    first = Path(place(table, oldest).listed().files[0].path)
    first.write_bytes(first.read_bytes() + b"x")
    refused(place(table, oldest), "bytes, and the table says")
    first.unlink()
    refused(place(table, oldest), "is not there any more: snapshots that expire")
    with table.update_schema() as update:
        update.rename_column("y", "z")
    refused(place(table, oldest), "its column 'y' has had another name, or another column had this one")
    table.append(pa.table({"x": [1.0], "z": [1], "w": [1.0]}))
    refused(place(table), "its column 'z' has had another name, or another column had this one")


def test_fields_of_structs_that_were_renamed_are_refused(table: Any, tmp_path: Path) -> None:
    """A filter would read the values of the field that had the name before."""
    from pyiceberg.catalog import load_catalog

    rows = pa.table({"x": [1.0, 2.0], "place": [{"from": 1, "to": 2}, {"from": 2, "to": 1}]})
    catalog = load_catalog(None, **properties(folder_of(table)))
    made = catalog.create_table("shop.trips", rows.schema)
    made.append(rows)
    with made.update_schema() as update:
        update.add_column(("place", "via"), update._schema.find_type("place.to"))
    assert len(rows_of(place(made).listed())) == 2
    with made.update_schema() as update:
        update.rename_column("place.from", "start")
        update.rename_column("place.to", "from")
    found = made.refresh().scan().to_arrow()
    assert found.filter(pc.field("place", "from") == 2)["x"].to_pylist() == [1.0]
    made.append(found)
    with pytest.raises(DataError, match=r"its column 'place\.(start|from)' has had another name"):
        place(made).listed()


def test_files_of_schemas_that_were_cleaned_up_are_refused(spark: Any, table: Any, tmp_path: Path) -> None:
    """Spark's ``expire_snapshots`` can drop schemas of which there are files: a name is another column's."""
    from pyiceberg.catalog import load_catalog

    rows = pa.table({"x": [1.0, 2.0], "y": [3.0, 4.0]})
    made = load_catalog(None, **properties(folder_of(table))).create_table("shop.swapped", rows.schema)
    made.append(rows)
    for before, after in (("y", "old"), ("x", "y"), ("old", "x")):
        with made.update_schema() as update:
            update.rename_column(before, after)
    made.append(pa.table({"y": [1.0], "x": [3.0]}))
    found = json.loads(Path(made.metadata_location.removeprefix("file://")).read_text())
    found["snapshots"] = [
        each for each in found["snapshots"] if each["snapshot-id"] == found["current-snapshot-id"]
    ]
    found["schemas"] = [each for each in found["schemas"] if each["schema-id"] == found["current-schema-id"]]
    metadata = tmp_path / "cleaned.metadata.json"
    metadata.write_text(json.dumps(found | {"snapshot-log": found["snapshot-log"][-1:]}))
    match = r"'x' is field 1 in .*, and 2 in the table: .* another name"
    data = Dataset.from_iceberg(str(metadata), features="x", label="y", spark=spark)
    with data, pytest.raises(DataError, match=match):
        len(data)


def test_files_without_numbers_are_read_by_the_tables_mapping_of_names(
    in_process: Any, table: Any, tmp_path: Path
) -> None:
    """As pyiceberg reads them, or not at all: by the names alone, columns would be each other's."""
    from pyiceberg.catalog import load_catalog

    rows = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "list": [[1.0], [2.0]], "at": [{"u": 1}, {"u": 2}]})
    file = tmp_path / "of another writer.parquet"
    parquet.write_table(rows, file)
    made = load_catalog(None, **properties(folder_of(table))).create_table("shop.mapped", rows.schema)
    made.add_files([f"file://{file}"])

    def read(mapping: Any = None) -> list[Any]:
        name = "schema.name-mapping.default"
        with made.transaction() as change:
            if mapping is None:
                change.remove_properties(name)
            else:
                change.set_properties({name: json.dumps(mapping)})
        first = pc.field("at", "u") == 1
        with Dataset.from_iceberg(
            made.metadata_location, features=["a", "list"], label="b", filter=first, spark=in_process
        ) as data:
            return [values.ravel().tolist() for values in data.peek().values()]

    default = json.loads(made.properties["schema.name-mapping.default"])
    assert made.scan().to_arrow().equals(rows)
    assert read(default) == [[1.0], [1.0], [3.0]]
    exchanged = {"a": ["b"], "b": ["a"]}
    swapped = [field | {"names": exchanged.get(field["names"][0], field["names"])} for field in default]
    with pytest.raises(DataError, match=r"'a' is field 2 in .*, and 1 in the table: .*name-mapping.default"):
        read(swapped)
    assert made.scan().to_arrow()["a"].to_pylist() == [3.0, 4.0]
    renamed = json.loads(json.dumps(default).replace('"u"', '"v"'))
    for mapping, name in ((None, "a"), (default[:1] + default[2:], "b"), (renamed, r"at\.u")):
        with pytest.raises(
            DataError, match=f"'{name}' has no number of a field in .* read the table by Spark"
        ):
            read(mapping)


def test_names_that_iceberg_writes_otherwise_are_not_found(in_process: Any, table: Any) -> None:
    from pyiceberg.catalog import load_catalog

    rows = pa.table({"x": [1.0], "a b": [2.0]})
    made = load_catalog(None, **properties(folder_of(table))).create_table("shop.names", rows.schema)
    made.append(rows)
    with pytest.raises(DataError, match="'a b' is not in the files; they have x"):
        Dataset.from_iceberg(made.metadata_location, features="a b", spark=in_process)
    with Dataset.from_iceberg(made.metadata_location, features="x", spark=in_process) as data:
        assert len(data) == 1


def test_folders_of_a_table_have_files_of_all_snapshots(table: Any) -> None:
    folder = table.location().removeprefix("file://")
    with pytest.raises(ConfigError, match="sales is an Iceberg table: .* by Dataset.from_iceberg"):
        list_files([folder], {})
    with pytest.raises(ConfigError, match="data is inside of .*sales, which is an Iceberg table"):
        list_files([folder + "/data"], {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": 3}, "table=3: expected a table's name"),
        ({"snapshot": "last"}, "snapshot='last': expected a number"),
        ({"catalog": "rest"}, "catalog: expected a dict of properties, got a str"),
        ({"storage_options": {"AWS_REGION": "x"}}, "storage_options are for s3:// URLs"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Dataset.from_iceberg(**({"table": "/t/m.json", "features": "x"} | options))

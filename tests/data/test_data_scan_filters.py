"""Filters of a scan: the rows that are left are those that Arrow keeps of the whole table in memory."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st
from pyarrow import fs, parquet

from sparkdl import Column, Dataset
from sparkdl.data.columns import ColumnPlan
from sparkdl.data.scan.files import File
from sparkdl.data.scan.filters import RowFilter, SelectedRows, bits_of
from sparkdl.data.scan.folders import NO_COLUMNS
from sparkdl.data.scan.listing import Listing
from sparkdl.data.scan.manifest import ScanManifest
from sparkdl.data.scan.reader import Reader, first_rows
from sparkdl.data.streams import FROM_THE_BEGINNING
from sparkdl.exceptions import ConfigError, DataError

ID = ColumnPlan("label", "id", dtype="int64", shape=())
SCHEMA = pa.schema(
    [("id", pa.int64()), ("i", pa.int32()), ("f", pa.float64()), ("s", pa.string()), ("d", pa.date32())]
)
DAY = datetime.date(2024, 1, 1)


@st.composite
def tables(draw: Any) -> pa.Table:
    rows = draw(st.integers(1, 60))
    values: dict[str, Any] = {
        "i": st.none() | st.integers(-3, 3),
        "f": st.none() | st.sampled_from([-1.0, 0.0, 2.5, math.nan, math.inf]),
        "s": st.none() | st.sampled_from(["", "a", "b"]),
        "d": st.none() | st.sampled_from([DAY, DAY + datetime.timedelta(40)]),
    }
    columns = {name: draw(st.lists(each, min_size=rows, max_size=rows)) for name, each in values.items()}
    if draw(st.booleans()):  # row groups of which footers tell all
        columns = {name: sorted(v, key=lambda x: (x is None, str(x))) for name, v in columns.items()}
    return pa.table({"id": range(rows), **columns}, SCHEMA)


@st.composite
def filters(draw: Any) -> Any:
    i, f, s, d = (pc.field(name) for name in "ifsd")
    simple = st.sampled_from(
        [
            i > 0, i == 2, i != 2, f < 1, f > 1, f == f, f != 0, s == "a", s.isin(["b", ""]), s.is_null(),
            d >= DAY + datetime.timedelta(2), d.is_valid(), i + f > 1, pc.scalar(True), f.is_nan(),
        ]
    )  # fmt: skip
    one, other = draw(simple), draw(simple)
    return draw(st.sampled_from([one, ~one, one & other, one | other, ~(one | other)]))


def scan(path: Path, table: pa.Table, given: Any, size: int, streams: int = 1) -> ScanManifest:
    """Write a table, and return the manifest of the rows that a filter leaves."""
    parquet.write_table(table, path, row_group_size=size)
    status = path.stat()
    file = File(str(path), status.st_size, status.st_mtime_ns)
    groups = parquet.read_metadata(path).num_row_groups
    rows = np.array([parquet.read_metadata(path).row_group(n).num_rows for n in range(groups)])
    selected, left = None, rows
    if given is not None:
        row_filter = RowFilter.of(given, Listing([file], table.schema, NO_COLUMNS))
        masks = row_filter.left(fs.LocalFileSystem(), file, NO_COLUMNS, dict.fromkeys(range(groups), ()))
        left = np.array([mask.sum() for mask in masks])
        selected = SelectedRows.of(rows, left, bits_of(masks))
    numbers = np.arange(groups)
    found = ScanManifest(str(path), (file,), np.zeros(groups, int), numbers, left, selected=selected)
    return found.resolved((ID,), 400, streams)


DRAWN = hypothesis.given(table=tables(), given=filters(), size=st.integers(1, 20))


@hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
@DRAWN
def test_what_is_left_is_what_arrow_keeps_in_memory(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table, given: Any, size: int
) -> None:
    check_left(tmp_path_factory, table, given, size)


@pytest.mark.whole
@hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
@DRAWN
def test_what_is_left_in_more_draws(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table, given: Any, size: int
) -> None:
    check_left(tmp_path_factory, table, given, size)


def check_left(tmp_path_factory: pytest.TempPathFactory, table: pa.Table, given: Any, size: int) -> None:
    expected = table.filter(given)["id"].to_pylist()
    found = scan(tmp_path_factory.mktemp("f") / "a.parquet", table, given, size)
    found = ScanManifest.unpack(b"".join(found.pack()))
    assert int(found.rows.sum()) == len(expected)
    if expected:
        reader = Reader(found)
        assert reader.in_order(0, len(expected)).read()["label"].tolist() == expected
        assert first_rows(found, 3)["label"].tolist() == expected[:3]
        last = divmod(expected[-1], size)
        assert found.name_row(len(expected) - 1).startswith(f"row {last[1]} of row group {last[0]} of")
        reader.close()


@pytest.mark.parametrize("shuffle", [True, False])
def test_epochs_are_those_of_a_table_that_has_these_rows_alone(tmp_path: Path, shuffle: bool) -> None:
    table = pa.table({"id": range(3000), "i": [n % 7 for n in range(3000)]})
    found = scan(tmp_path / "a.parquet", table, pc.field("i") < 3, 70, 3)
    kept = table.filter(pc.field("i") < 3)["id"].to_numpy()
    path, place = tmp_path / "b.parquet", 0
    with parquet.ParquetWriter(path, pa.schema([("id", pa.int64())])) as writer:
        for rows in found.rows.tolist():
            writer.write_table(pa.table({"id": kept[place : place + rows]}))
            place += rows
    files = (File(str(path), path.stat().st_size, path.stat().st_mtime_ns),)
    others = ScanManifest(str(path), files, found.file, found.number, found.rows)
    alone, other = Reader(found), Reader(others.resolved((ID,), 400, 3))
    visited = []
    for step in range(9):
        slots = FROM_THE_BEGINNING.slots(len(kept), 9, step)
        mine, theirs = (r.in_epoch(slots, 3, 1, shuffle, 0, 1).read()["label"] for r in (alone, other))
        np.testing.assert_array_equal(mine, theirs)
        visited.append(mine)
    assert sorted(np.concatenate(visited).tolist()) == kept.tolist()
    assert found.content != other.manifest.content
    alone.close()
    other.close()


# -- on Spark --------------------------------------------------------------------------------------


def write(spark: Any, path: Path) -> str:
    """Write rows with nulls, in folders of days of which one is null."""
    rows = spark.range(0, 600, 1, 3).selectExpr(
        "id", "if(id % 10 = 3, null, cast(id as double)) x", "if(id % 4 = 0, null, cast(id % 4 as int)) day"
    )
    rows.write.option("parquet.block.row.count.limit", 40).partitionBy("day").parquet(str(path))
    return str(path)


def test_columns_of_folders_and_nulls(spark: Any, tmp_path: Path) -> None:
    path = write(spark, tmp_path / "t")
    some = (pc.field("day") <= 2) & pc.field("x").is_valid() & (pc.field("id") < 500)
    with Dataset.from_parquet(path, features="x", label="day", filter=some, spark=spark) as data:
        expected = spark.read.parquet(path).where("day <= 2 and x is not null and id < 500")
        assert len(data) == expected.count()
        found = data.source.manifest(data.plan)  # type: ignore[attr-defined]
        reader = Reader(found)
        read = reader.in_order(0, int(found.rows.sum())).read()
        reader.close()
        pairs = sorted(zip(read["features"].ravel().tolist(), read["label"].ravel().tolist(), strict=True))
        assert pairs == sorted((row.x, row.day) for row in expected.collect())
        assert data.source.shown()["left"] == f"{expected.count()} of 600 rows"
    tuples = [("day", "in", [1, 2]), ("id", "<", 500)]
    with (
        pytest.raises(DataError, match=r"column 'x': \d+ nulls among the \d+ rows that are left of row"),
        Dataset.from_parquet(path, features="x", label="day", filter=tuples, spark=spark) as data,
    ):
        data.peek()
    with (
        pytest.raises(DataError, match="'day' is null in .*day=__HIVE_DEFAULT_PARTITION__"),
        Dataset.from_parquet(
            path, features="id", label="day", filter=[("id", "<", 100)], spark=spark
        ) as data,
    ):
        data.peek()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            pc.field("age") > 3,
            ConfigError,
            r"filter=\(age > 3\): No match for FieldRef.Name\(age\).*x \(double\)",
        ),
        (pc.field("x") > "a", ConfigError, "Function 'greater' has no kernel matching input types"),
        (pc.field("x") + 1, ConfigError, "must evaluate to bool"),
        ("x > 3", ConfigError, "filter='x > 3'.*Expected an expression, such as"),
        ([("x", "~", 3)], ConfigError, "not a valid operator.*or tuples that all must be true"),
        ([], ConfigError, "Expected an expression"),
        (pc.field("id") > 5000, DataError, "of 600 rows none is left: there is nothing"),
    ],
)
def test_filters_that_cannot_be_are_refused(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, given: Any, error: Any, message: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "filtered"
    if not path.exists():
        write(spark, path)
    with (
        pytest.raises(error, match=message),
        Dataset.from_parquet(str(path), features=Column("x"), filter=given, spark=spark) as data,
    ):
        data.peek()


def test_a_file_without_the_column_is_named(spark: Any, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [1.0, 2.0], "i": [1, 2]}), tmp_path / "a.parquet")
    parquet.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "b.parquet")
    with (
        pytest.raises(
            DataError, match=r"filter column 'i' is missing in .*b\.parquet and int64 in the first"
        ),
        Dataset.from_parquet(tmp_path, features="x", filter=pc.field("i") > 1, spark=spark) as data,
    ):
        data.peek()

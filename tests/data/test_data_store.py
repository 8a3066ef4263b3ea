import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data.columns import ColumnPlan
from sparkdl.data.store.partition import (
    PartitionMissingError,
    Token,
    delete_store,
    read_positions,
    read_rows,
    view_of,
    with_columns,
    write_partition,
)
from sparkdl.exceptions import DataError
from sparkdl.wire import frame, private

PLANS = (ColumnPlan("features", "image"), ColumnPlan("label", "digit"))


@pytest.fixture(autouse=True)
def local_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return tmp_path


def batch(first, count):
    rows = np.arange(first, first + count)
    columns = {"features": np.stack([rows, rows * 2], axis=1).astype(np.float32), "label": rows}
    return rows + 100, columns


def write(*batches, partition=0, name="store"):
    return write_partition(name, partition, "executor", PLANS, batches)


def files_in(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_write_and_read_back(local_dir):
    token = write(batch(0, 3), batch(3, 0), batch(3, 5))
    assert (token.rows, token.partition, token.executor) == (8, 0, "executor")
    assert token.columns == (("features", "float32", (2,)), ("label", "int64", ()))
    assert token.nbytes == 8 * (2 * 4 + 8 + 8)
    assert files_in(local_dir) == [
        "sparkdl/store/part-00000/_row.bin",
        "sparkdl/store/part-00000/features.bin",
        "sparkdl/store/part-00000/label.bin",
    ]
    rows = np.array([7, 0, 0, 4])
    columns = read_rows(token, rows)
    np.testing.assert_array_equal(columns["label"], rows)
    np.testing.assert_array_equal(columns["features"], np.stack([rows, rows * 2], axis=1))


def test_rows_that_were_read_are_the_callers_own(local_dir):
    token = write(batch(0, 3))
    read_rows(token, np.arange(3))["label"][:] = -1
    assert read_rows(token, np.arange(3))["label"].tolist() == [0, 1, 2]


def test_a_view_is_some_rows_of_the_same_files(local_dir):
    token = write(batch(0, 3), batch(3, 5))
    odd = view_of(token, "odd", np.array([7, 5, 3, 1]))
    again = view_of(odd, "again", np.array([3, 0]))  # of a view
    assert (odd.rows, again.rows, again.folder) == (4, 2, token.folder)
    np.testing.assert_array_equal(read_rows(odd, np.arange(4))["label"], [7, 5, 3, 1])
    np.testing.assert_array_equal(read_rows(again, np.arange(2), {"label"})["label"], [1, 7])
    np.testing.assert_array_equal(read_positions(again, np.array([1])), [107])
    assert Token.from_frame(frame.unpack(again.to_frame())) == again
    assert view_of(token, "none", np.arange(0)).rows == 0
    (Path(token.folder) / "_view.odd.bin").unlink()
    with pytest.raises(PartitionMissingError):
        read_rows(odd, np.arange(1))


def test_only_the_columns_that_are_asked_for_are_read(local_dir):
    token = write(batch(0, 3))
    for unread in ("_row", "label"):
        (local_dir / f"sparkdl/store/part-00000/{unread}.bin").unlink()
    assert list(read_rows(token, np.arange(2), {"features"})) == ["features"]


def test_positions(local_dir):
    token = write(batch(0, 3), batch(3, 0), batch(3, 5))
    positions = read_positions(token, np.array([7, 0, 4]))
    assert (positions.tolist(), positions.dtype) == ([107, 100, 104], np.int64)
    assert read_positions(write(batch(0, 0), name="empty"), np.arange(0)).tolist() == []
    (local_dir / "sparkdl/store/part-00000/_row.bin").unlink()
    with pytest.raises(PartitionMissingError, match="part-00000"):
        read_positions(token, np.arange(3))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 2)])
def test_every_dtype_and_shape_round_trips(dtype, shape):
    values = np.random.default_rng(0).integers(0, 2, (5, *shape)).astype(dtype)
    token = write_partition("store", 0, "e", [ColumnPlan("x", "x")], [(np.arange(5), {"x": values})])
    result = read_rows(token, np.arange(5))["x"]
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, values)


def test_a_partition_without_rows():
    token = write(batch(0, 0))
    assert (token.rows, token.columns, token.nbytes) == (0, (), 0)
    assert read_rows(token, np.arange(0)) == {}


def test_a_column_of_empty_arrays():
    empty = {"x": np.empty((2, 0), np.float32)}
    token = write_partition("s", 0, "e", [ColumnPlan("x", "x")], [(np.arange(2), empty)])
    assert read_rows(token, np.arange(2))["x"].shape == (2, 0)


def test_the_last_writer_of_a_partition_wins(local_dir):
    """The first may have been cut short: its input ended because an executor was lost."""
    short = write(batch(0, 2))
    token = write(batch(0, 5))
    assert token.folder == short.folder
    np.testing.assert_array_equal(read_positions(token, np.arange(5)), 100 + np.arange(5))
    assert [path.name for path in Path(token.folder).parent.iterdir()] == [Path(token.folder).name]


@pytest.mark.parametrize("cut", [(), (2,)])
def test_files_of_another_length_count_as_missing(local_dir, cut):
    token = write(batch(0, 5))
    write(*(batch(0, count) for count in cut))  # a late attempt that was cut short
    with pytest.raises(PartitionMissingError):
        read_positions(token, np.arange(5))
    with pytest.raises(PartitionMissingError):
        read_rows(token, np.arange(5))


@pytest.mark.parametrize("failure", [DataError("row 5 is null"), KeyboardInterrupt()], ids=repr)
def test_a_batch_that_fails_leaves_no_files(local_dir, failure):
    def batches():
        yield batch(0, 4)
        raise failure

    with pytest.raises(type(failure)):
        write_partition("store", 0, "executor", PLANS, batches())
    assert list((local_dir / "sparkdl/store").iterdir()) == []


def test_batches_that_disagree_on_the_shape_leave_no_files(local_dir):
    other = {"features": np.zeros((2, 3), np.float32), "label": np.zeros(2, np.int64)}
    with pytest.raises(DataError, match=r"column 'image': rows of shape \(3,\) after rows of shape \(2,\)"):
        write(batch(0, 2), (np.arange(2), other))
    assert files_in(local_dir) == []


def test_a_planned_shape_is_enforced_from_the_first_batch():
    plans = [ColumnPlan("label", "digit").resolved("int64", (2,))]
    with pytest.raises(DataError, match=r"column 'digit': rows of shape \(\) after rows of shape \(2,\)"):
        write_partition("store", 0, "e", plans, [(np.arange(3), {"label": np.arange(3)})])


def test_missing_files_are_reported_as_missing(local_dir):
    token = write(batch(0, 3))
    (local_dir / "sparkdl/store/part-00000/label.bin").unlink()
    with pytest.raises(PartitionMissingError, match="part-00000"):
        read_rows(token, np.arange(3))
    shutil.rmtree(local_dir / "sparkdl")
    with pytest.raises(PartitionMissingError, match="part-00000"):
        read_rows(token, np.arange(3))


def test_a_token_from_elsewhere_finds_what_this_executor_built(tmp_path, monkeypatch):
    token = write(batch(0, 3))
    elsewhere = Token(token.store, 0, token.rows, "/nonexistent/part-00000", "other", token.columns)
    assert read_rows(elsewhere, np.array([2]))["label"].tolist() == [2]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "empty"))
    with pytest.raises(PartitionMissingError, match="/nonexistent"):
        read_rows(elsewhere, np.array([2]))


def test_partitions_are_spread_over_the_local_directories(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/a,{tmp_path}/b")
    tokens = [write(batch(p, 1), partition=p) for p in range(3)]
    assert [t.folder.removeprefix(f"{tmp_path}/")[0] for t in tokens] == ["a", "b", "a"]
    assert [read_rows(t, np.array([0]))["label"][0] for t in tokens] == [0, 1, 2]


def test_local_folders_without_spark(monkeypatch):
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert len(private.local_folders()) == 1


def test_delete_removes_all_partitions_of_one_store(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/a,{tmp_path}/b")
    for partition in range(3):
        write(batch(0, 1), partition=partition)
        (tmp_path / "a/sparkdl/other").mkdir(parents=True, exist_ok=True)
    delete_store("store")
    assert files_in(tmp_path) == []
    assert (tmp_path / "a/sparkdl/other").is_dir()
    delete_store("store")  # a second time does no harm


COLUMNS = st.lists(
    st.tuples(st.text(), st.sampled_from(["bool", "float32"]), st.lists(st.integers(1, 9)).map(tuple))
)


@settings(deadline=None)
@given(
    st.builds(
        Token, st.text(), st.integers(0), st.integers(0), st.text(), st.text(), COLUMNS.map(tuple), st.text()
    )
)
def test_tokens_round_trip(token):
    assert Token.from_frame(frame.unpack(token.to_frame())) == token


@pytest.mark.parametrize("what", ["partition", "columns", "view"])
def test_a_full_disk_is_an_error_that_leaves_no_files(local_dir, what):
    """As a file system would say it, at any byte; the partition that was there is whole."""
    rows = 20_000
    values = np.arange(rows, dtype=np.float64)
    batches = [(np.arange(rows), {"x": values})]
    token = write_partition("full", 0, "executor", [ColumnPlan("x", "x")], batches)
    before = sorted(path for path in Path(local_dir).rglob("*"))
    added = [(np.arange(rows), {"y": values})]
    writers = {
        "partition": lambda: write_partition("full", 1, "executor", [ColumnPlan("x", "x")], batches),
        "columns": lambda: with_columns(token, [ColumnPlan("y", "y")], added, ["x", "y"]),
        "view": lambda: view_of(token, "part", np.arange(rows)[::-1]),
    }
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (0, 100_001, rows * 8 - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                writers[what]()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert sorted(path for path in Path(local_dir).rglob("*")) == before
    np.testing.assert_array_equal(read_rows(token, np.arange(rows))["x"], values)
    assert writers[what]().rows == rows

"""Columns that the names of folders give."""

from __future__ import annotations

import pytest

from sparkdl.data.scan.folders import folder_columns, is_hidden, packed, unpacked
from sparkdl.exceptions import DataError


def test_folders_are_columns_of_each_file() -> None:
    paths = ["day=1/x%3Dy=0.5/a.parquet", "day=2/more/x%3Dy=2/b.parquet"]
    found = unpacked(packed(folder_columns(paths)))
    assert found.to_pydict() == {"day": [1, 2], "x=y": [0.5, 2.0]}
    assert folder_columns(["a.parquet", "b.parquet"]).num_columns == 0


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["day=1/a", "b"], "b: its folders give no columns, those of day=1/a 'day'"),
        (["a", "day=1/b"], "day=1/b: its folders give 'day', those of a no columns"),
        (["day=1/hour=2/a", "hour=2/day=1/b"], "give 'hour' and 'day', those of .* 'day' and 'hour'"),
        (["day=1/a", "Day=1/b"], "give 'Day', those of"),
        (["day=1/day=2/a"], "give 'day' and 'day'.*each once"),
        (["day=/a"], "expected a name and a value in the folder 'day='"),
        (["=1/a"], "expected a name and a value in the folder '=1'"),
    ],
)
def test_mixed_layouts_are_refused_by_name(paths: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        folder_columns(paths)


def test_names_that_begin_with_an_underscore_are_data_if_they_tell_a_value() -> None:
    assert [is_hidden(name) for name in ("_day=1", "_SUCCESS", ".a=1", "day=1")] == [False, True, True, False]

"""Folders of a scan: columns that their names give, and those that are no folder of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from sparkdl.data.scan.files import list_files
from sparkdl.data.scan.folders import folder_columns, is_hidden, packed, unpacked
from sparkdl.exceptions import ConfigError, DataError


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


def test_folders_above_several_paths_are_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "rows" / f"day={day}" for day in range(3)]
    for path in paths:
        path.mkdir(parents=True)
        (path / "a.parquet").touch()
    asked: list[str] = []

    class Counts:
        def get_file_info(self, wanted: Any) -> Any:
            if isinstance(wanted, list):
                asked.extend(each for each in wanted if each.endswith("_delta_log"))
            return fs.LocalFileSystem().get_file_info(wanted)

    monkeypatch.setattr("sparkdl.data.scan.files.file_system", lambda path, _: (Counts(), path))
    found = list_files([str(path) for path in paths], {})
    assert [file.path for file, _ in found] == [str(path / "a.parquet") for path in paths]
    assert len(asked) == len(set(asked)) == len(paths[0].parts) + 2
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(ConfigError, match=f"day=0 is inside of {tmp_path}, which is a Delta table"):
        list_files([str(path) for path in paths], {})

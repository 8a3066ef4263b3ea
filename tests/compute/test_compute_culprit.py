"""The feature that a loss which is not finite comes from is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl.compute.culprit import find_culprit
from sparkdl.data.columns import ColumnPlan, Structure, TablePlan
from sparkdl.data.sampler import StoredRows
from sparkdl.data.store.partition import write_partition
from sparkdl.nn.batch import Batch

ROWS = np.array([4, 2, 7])
FEATURES = Structure("tuple", ("features_0", "features_1"))


def find(plan: TablePlan, x: Any, ids: Any = (0, 0, 0), inputs: Any = None) -> str:
    values = x if isinstance(x, np.ndarray) else np.asarray(x, np.float32)
    columns = {"features_0": np.asarray(ids), "features_1": values}
    plans = [ColumnPlan("y", "y")]
    positions = (1 << 33) + np.arange(8)
    token = write_partition("culprit", 0, "executor", plans, [(positions, {"y": np.zeros(8, np.float32)})])
    given = columns["features_1"] if inputs is None else inputs
    batches = [
        Batch(torch.from_numpy(np.asarray(given[i : i + 2])), None, None, len(given[i : i + 2]))
        for i in (0, 2)
    ]
    return find_culprit(plan, StoredRows(token, ROWS), columns, batches)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))


def plan(arrays: bool = False) -> TablePlan:
    columns = (ColumnPlan("features_0", "id"), ColumnPlan("features_1", "price"))
    return TablePlan(columns, FEATURES, Structure("none"), False, arrays)


def test_column_and_row_are_named() -> None:
    assert find(plan(), [[1, 2], [1, np.nan], [1, 2]]) == "column 'price', row 2 of input partition 1: nan"
    found = find(plan(arrays=True), [[1, -np.inf], [1, np.nan], [1, 2]])
    assert found == f"column 'price', row {(1 << 33) + 4}: -inf (and 1 more rows of the iteration)"


def test_integers_and_finite_features_are_innocent() -> None:
    assert find(plan(), [1, 2, 3]) == ""


def test_a_transform_may_be_why() -> None:
    inputs = np.array([1, 2, np.inf], np.float32)
    assert find(plan(), [1, 2, 0], inputs=inputs) == "the transform's output, row 7 of input partition 1: inf"


def test_of_several_columns_one_that_is_ragged_needs_a_collate() -> None:
    ids, prices = plan().columns
    ragged = replace(plan(), columns=(ids, replace(prices, ragged=True)))
    rows = np.empty(3, object)
    rows[:] = [np.float32([1]), np.float32([2, 3]), np.float32([])]
    inputs = np.array([[1, 0], [2, np.nan], [0, 0]], np.float32)
    found = find(ragged, rows, inputs=inputs)
    assert found == "collate's output, row 2 of input partition 1: nan"
    rows[1] = np.float32([3, np.inf, np.nan])
    assert find(ragged, rows, inputs=inputs) == "column 'price', row 2 of input partition 1: inf"

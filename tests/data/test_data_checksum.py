"""Checksums of rows, whatever their order and their spread over partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkdl.data.ragged import joined
from sparkdl.data.store.checksum import RowSums

DRAW = np.random.default_rng(3)
ROWS = 200
COLUMNS: dict[str, Any] = {
    "wide": DRAW.random((ROWS, 5), np.float32),
    "odd": DRAW.integers(0, 255, (ROWS, 3, 7)).astype(np.uint8),
    "flag": DRAW.random(ROWS) < 0.5,
    "small": DRAW.random((ROWS, 2)).astype(np.float16),
    "complex": DRAW.random(ROWS) + 1j * DRAW.random(ROWS),
    "empty": np.zeros((ROWS, 0), np.int64),
    "ragged": [DRAW.random((n, 2)).astype(np.float32) for n in DRAW.integers(0, 6, ROWS)],
}


def sums(numbers: Any, columns: Any = COLUMNS, batches: int = 3) -> tuple[int, int]:
    found = RowSums()
    for some in np.array_split(numbers, batches):
        found.add(np.asarray(some, np.int64))
        for key, values in columns.items():
            if isinstance(values, list):
                found.add_column(key, *joined([values[n] for n in some]))  # type: ignore[arg-type]
            else:
                found.add_column(key, np.ascontiguousarray(values[some]))
    found.end()
    return found.positions, found.values


def test_order_and_spread_do_not_matter() -> None:
    whole = sums(np.arange(ROWS))
    order = DRAW.permutation(ROWS)
    for batches in (1, 4, 13):
        assert sums(order, batches=batches) == whole
    parts = [sums(some) for some in np.array_split(order, 7)]
    assert tuple(sum(part) % 2**64 for part in zip(*parts, strict=True)) == whole


@pytest.mark.parametrize("key", [key for key in COLUMNS if key != "empty"])
def test_each_value_counts(key: str) -> None:
    whole = sums(np.arange(ROWS))
    for row in (0, 100, ROWS - 1):
        changed: Any = [one.copy() for one in COLUMNS[key]]
        if key == "ragged" and not len(changed[row]):
            changed[row] = np.zeros((1, 2), np.float32)
        elif key == "flag":
            changed[row] = ~changed[row]
        else:
            changed[row] = changed[row] + np.ones((), np.asarray(changed[row]).dtype)
        changed = changed if key == "ragged" else np.stack(changed)
        found = sums(np.arange(ROWS), COLUMNS | {key: changed})
        assert found[0] == whole[0]
        assert found[1] != whole[1]


def test_values_that_change_places_are_other_values() -> None:
    """Between rows, between columns, and within a row."""
    x, rows = DRAW.random((4, 2), np.float32), np.arange(4)
    before = sums(rows, {"a": x, "b": x + 1})[1]
    assert sums(rows, {"a": x[[1, 0, 2, 3]], "b": x + 1})[1] != before
    assert sums(rows, {"a": x + 1, "b": x})[1] != before
    assert sums(rows, {"a": x[:, ::-1], "b": x + 1})[1] != before


def test_values_move_between_ragged_rows() -> None:
    def of(*rows: list[float]) -> int:
        columns = {"a": [np.array(row, np.float32) for row in rows]}
        return sums(np.arange(len(rows)), columns, 1)[1]

    assert len({of([1, 2], [3]), of([1], [2, 3]), of([1, 2, 3], []), of([2, 1], [3])}) == 4
    assert of([1, 2], [3]) == of([3], [1, 2])

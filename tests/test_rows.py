"""Packed vectors: some rows of tables, everything of the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.wire.layout import ParamLayout, lay_out
from sparkdl.wire.touched_rows import TouchedRows, nonzero_rows, row_width, union

LAYOUT = ParamLayout(
    lay_out(
        [("a", (3,), 0), ("users", (5, 2), 0), ("items", (4, 3), 1), ("b", (2, 2), 1), ("tags", (6, 1), 1)]
    )
)
ROWS = TouchedRows(LAYOUT, {1: np.array([0, 3]), 2: np.array([2]), 4: np.array([], np.int64)})
VALUES = np.arange(LAYOUT.numel, dtype=np.float32)


def covered(rows):
    """Mask of the covered elements."""
    mask = np.ones(LAYOUT.numel, np.bool_)
    for index, own in rows.tables.items():
        spec = LAYOUT.params[index]
        table = np.zeros((spec.shape[0], row_width(spec)), np.bool_)
        table[own] = True
        mask[spec.offset : spec.end] = table.reshape(-1)
    return mask


@st.composite
def some_rows(draw):
    tables = {}
    for index in draw(st.sets(st.sampled_from([1, 2, 4]))):
        count = LAYOUT.params[index].shape[0]
        own = sorted(draw(st.sets(st.integers(0, count - 1))))
        tables[index] = np.array(own, draw(st.sampled_from([np.uint32, np.int64])))
    return TouchedRows(LAYOUT, tables)


def test_the_packed_layout_has_smaller_tables():
    assert [spec.shape for spec in ROWS.packed.params] == [(3,), (2, 2), (1, 3), (2, 2), (0, 1)]
    assert [spec.name for spec in ROWS.packed.params] == ["a", "users", "items", "b", "tags"]
    assert [spec.group for spec in ROWS.packed.params] == [0, 0, 1, 1, 1]
    assert ROWS.packed.numel == covered(ROWS).sum()
    assert TouchedRows(LAYOUT, {}).packed is LAYOUT


@given(some_rows(), st.integers(0, LAYOUT.numel), st.integers(0, LAYOUT.numel))
@settings(deadline=None)
def test_take_and_put_of_any_stretch(rows, a, b):
    start, stop = sorted((a, b))
    mask = covered(rows)[start:stop]
    taken = rows.take(VALUES[start:stop], start)
    np.testing.assert_array_equal(taken, VALUES[start:stop][mask])
    written = np.full(stop - start, -1, np.float32)
    rows.put(taken, written, start)
    np.testing.assert_array_equal(written, np.where(mask, VALUES[start:stop], -1))


@given(st.lists(some_rows(), min_size=1, max_size=4))
@settings(deadline=None)
def test_union(given):
    found = union(LAYOUT, given)
    np.testing.assert_array_equal(covered(found), np.logical_or.reduce([covered(rows) for rows in given]))
    assert set(found.tables) == set.intersection(*(set(rows.tables) for rows in given))


def test_union_of_nothing_is_everything():
    assert union(LAYOUT, []).tables == {}


@pytest.mark.parametrize("shape", [(5, 2), (5,), (5, 2, 3)])
def test_row_width(shape):
    (spec,) = lay_out([("table", shape, 0)])
    assert row_width(spec) == np.prod(shape[1:], dtype=int)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nonzero_rows(dtype):
    table = np.zeros((6, 5), dtype)
    table[1, 4], table[2], table[4, 0], table[5, 2] = 1e-45, -0.0, np.nan, -np.inf
    assert nonzero_rows(table).tolist() == [1, 4, 5]

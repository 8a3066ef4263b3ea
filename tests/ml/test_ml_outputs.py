"""Outputs as Arrow has them. No JVM."""

from __future__ import annotations

import numpy as np
import pytest

from sparkdl.ml.stages.outputs import lists


@pytest.mark.parametrize("shape", [(3,), (2, 3), (3, 0), (0, 2), (2, 3, 4), (2, 1, 3, 2)])
def test_lists_are_nested_as_the_array_is(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).random(shape, np.float32)
    assert lists(values).to_pylist() == values.tolist()
    turned = values.T.copy().T  # not in one piece
    assert lists(turned).to_pylist() == values.tolist()


def test_rows_that_are_left_out_are_null_whatever_is_in_them() -> None:
    values = np.arange(12).reshape(3, 2, 2)
    found = lists(values, np.array([False, True, False])).to_pylist()
    assert found == [[[0, 1], [2, 3]], None, [[8, 9], [10, 11]]]

"""Memory is used again once nobody refers to it, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl.wire import buffers, frame

SIZE = 1 << 20


def place(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.fixture(autouse=True)
def fresh() -> None:
    buffers.release()


def test_memory_is_used_again() -> None:
    first = buffers.empty(SIZE - 7)
    assert (first.dtype, first.shape) == (np.uint8, (SIZE - 7,))
    where = place(first)
    del first
    second = buffers.empty(SIZE)
    assert place(second) == where
    assert place(buffers.empty(SIZE)) != where


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[10:20],
        lambda array: array.view(np.float32).reshape(2, -1)[1:],
        lambda array: memoryview(array)[5:],
        lambda array: torch.from_numpy(array)[3:],
        lambda array: np.frombuffer(memoryview(array)[64:], np.float32)[7:],
        lambda array: frame.pack({}, {"one": array[:100]}),
        lambda array: torch.from_numpy(np.frombuffer(array, np.float32)).detach(),
    ],
)
def test_memory_is_not_used_again_while_there_are_views(view: Callable[[Any], Any]) -> None:
    array = buffers.empty(SIZE)
    where, seen = place(array), view(array)
    del array
    assert place(buffers.empty(SIZE)) != where
    del seen
    assert place(buffers.empty(SIZE)) == where


def test_copies_are_equal_and_apart() -> None:
    array = np.arange(SIZE, dtype=np.float64).reshape(2, -1)
    copied = buffers.copy(array)
    assert copied.dtype == array.dtype
    np.testing.assert_array_equal(copied, array)
    copied[0, 0] = -1
    assert array[0, 0] == 0
    assert buffers.copy(np.zeros(0)).shape == (0,)


def test_what_is_released_is_not_used_again() -> None:
    held, idle = buffers.empty(SIZE), buffers.empty(SIZE)
    del idle
    assert any(buffers._free.values())
    buffers.release()
    del held
    assert not any(buffers._free.values())

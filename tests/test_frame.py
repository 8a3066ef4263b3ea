import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparkdl.wire import buffers, frame

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
META = st.dictionaries(st.text(), SCALARS | st.lists(SCALARS, max_size=3), max_size=4)


def round_trip(meta, arrays=None):
    return frame.unpack(frame.join(frame.pack(meta, arrays)))


def same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return a == b and type(a) is type(b)


@settings(deadline=None, max_examples=100)
@given(META, st.dictionaries(st.text(max_size=5), ARRAYS, max_size=4))
def test_round_trip_keeps_every_bit(meta, arrays):
    result = round_trip(meta, arrays)
    assert result.meta.keys() == meta.keys()
    assert all(same(meta[name], result.meta[name]) for name in meta)
    assert list(result.arrays) == list(arrays)
    for name, array in arrays.items():
        found = result.arrays[name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 1e-320, 0.1 + 0.2])
def test_special_floats_survive_as_scalars(value):
    assert repr(round_trip({"x": value}).meta["x"]) == repr(value)


def test_arrays_come_back_read_only_and_aligned():
    data = frame.join(frame.pack({"a": 1}, {"x": np.arange(3, dtype=np.int8), "y": np.arange(5.0)}))
    start = np.frombuffer(data, np.uint8).ctypes.data
    for array in frame.unpack(data).arrays.values():
        assert not array.flags.writeable
        assert (array.ctypes.data - start) % 64 == 0
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_packing_references_arrays_instead_of_copying_them():
    array = np.zeros(1000)
    parts = frame.pack({}, {"x": array})
    array[:] = 7
    assert frame.unpack(frame.join(parts)).arrays["x"][0] == 7


def test_arrays_that_are_not_contiguous_round_trip():
    array = np.arange(12.0).reshape(3, 4)
    result = round_trip({}, {"t": array.T, "s": array[:, ::2]})
    np.testing.assert_array_equal(result.arrays["t"], array.T)
    np.testing.assert_array_equal(result.arrays["s"], array[:, ::2])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_unpack_takes_any_buffer(kind):
    data = frame.join(frame.pack({"a": [1, None]}, {"x": np.arange(4)}))
    result = frame.unpack(kind(data))
    assert result.meta == {"a": [1, None]}
    np.testing.assert_array_equal(result.arrays["x"], np.arange(4))


def test_size_is_the_length_of_the_joined_frame():
    parts = frame.pack({"name": "größe"}, {"x": np.ones((3, 7), np.float32), "empty": np.empty((0, 2))})
    assert frame.size(parts) == len(frame.join(parts))


def test_a_frame_without_arrays_is_only_its_header():
    assert len(frame.pack({})) == 2
    assert round_trip({}).arrays == {}


@pytest.mark.parametrize("kind", ["state", "shard", "a_b"])
def test_the_kind_of_a_frame_is_in_its_beginning(kind):
    data = frame.join(frame.pack({"kind": kind, "more": [1]}, {"array": np.zeros(1000)}))
    assert frame.kind_of(memoryview(data)[:40]) == kind


@pytest.mark.parametrize("meta", [{}, {"more": 1, "kind": "state"}])
def test_a_frame_that_does_not_begin_with_its_kind_is_told(meta):
    with pytest.raises(ValueError, match="without kind"):
        frame.kind_of(frame.join(frame.pack(meta)))


@pytest.mark.parametrize(
    "make", [np.copy, buffers.copy, lambda x: np.frombuffer(bytearray(x.tobytes()), x.dtype)]
)
def test_reading_again_and_again_in_one_process_makes_no_chain_of_views(make: Any) -> None:
    expected = np.arange(100_000, dtype=np.float32)
    values = make(expected)
    for _ in range(50):
        laid_out = frame.pack({"kind": "state"}, {"first": values[:10], "rest": values[10:]})
        found = frame.unpack(laid_out, writable=True).arrays
        np.testing.assert_array_equal(found["first"], expected[:10])
        np.testing.assert_array_equal(found["rest"], expected[10:])
        values = frame.unpack(frame.pack({"kind": "state"}, {"whole": found["rest"]}), writable=True).arrays[
            "whole"
        ]
        expected = expected[10:]
    depth, base = 0, values
    while base is not None:
        depth, base = depth + 1, base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    assert depth < 12

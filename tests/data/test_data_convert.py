from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from sparkdl import Dataset
from sparkdl.data.columns import STORED_DTYPES, ColumnPlan, name_id
from sparkdl.data.convert import default_dtype, from_arrow, from_rows
from sparkdl.data.loose import array_of
from sparkdl.exceptions import DataError


def row_name(index):
    return f"row {index}"


def plan(**options):
    return ColumnPlan("key", "col", **options)


def arrow(column, **options):
    return from_arrow(plan(**options), column, row_name)


def rows(values, **options):
    return from_rows(plan(**options), values, row_name)


def listed(depth, inner):
    return listed(depth - 1, pa.list_(inner)) if depth else inner


# -- types --------------------------------------------------------------------------------------

TYPES = [
    (pa.int8(), [-1, 2], "int64"),
    (pa.int16(), [-1, 2], "int64"),
    (pa.int32(), [-1, 2], "int64"),
    (pa.int64(), [-(2**63), 2**63 - 1], "int64"),
    (pa.uint8(), [0, 255], "uint8"),
    (pa.float16(), [0.5, 2.0], "float32"),
    (pa.float32(), [0.5, -2.0], "float32"),
    (pa.float64(), [0.5, -2.0], "float32"),
    (pa.bool_(), [True, False], "float32"),
    (pa.decimal128(10, 2), [Decimal("1.25"), Decimal("-3.50")], "float32"),
    (pa.decimal128(38, 0), [Decimal(7), Decimal(-7)], "float32"),
]


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize(("kind", "values", "dtype"), TYPES, ids=[str(t[0]) for t in TYPES])
def test_arrow_types_become_their_default_dtype(kind, values, dtype, depth):
    for _ in range(depth):
        values = [values, values]
    result = arrow(pa.array(values, listed(depth, kind)))
    if dtype == "uint8" and not depth:
        dtype = "int64"  # bytes of arrays are pixels, a number is a number
    assert result.dtype == dtype
    assert result.shape == (2,) * (depth + 1)
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, np.array(values).astype(dtype))


@pytest.mark.parametrize("dtype", STORED_DTYPES)
@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.bool_()], ids=str)
def test_the_planned_dtype_wins(kind, dtype):
    result = arrow(pa.array([1, 0, 1]).cast(kind), dtype=dtype)
    assert result.dtype == dtype
    assert result.tolist() == [1, 0, 1]


LARGE = [2**53 + 1, 2**60 + 1, -(2**63), 7]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", [pa.decimal128(20, 0), pa.decimal128(38, 2), pa.decimal256(50, 0)], ids=str)
def test_decimals_become_whole_numbers_exactly(kind, depth):
    values = [Decimal(value) for value in LARGE]
    nested = [[value, value] for value in values] if depth else values
    column = pa.array(nested, listed(depth, kind))
    expected = [[value, value] for value in LARGE] if depth else LARGE
    assert arrow(column, dtype="int64").tolist() == expected
    assert rows(nested, dtype="int64").tolist() == expected
    small = pa.array([[Decimal(300)], [Decimal(7)]], pa.list_(pa.decimal128(20, 0)))
    with pytest.raises(DataError, match="row 0: 300 does not fit uint8"):
        arrow(small, dtype="uint8")


@pytest.mark.parametrize(
    ("value", "kind"),
    [(Decimal(2**53) + Decimal("0.5"), pa.decimal128(20, 1)), (Decimal(2**63), pa.decimal128(20, 0))],
)
def test_decimals_that_are_no_int64_are_named(value, kind):
    with pytest.raises(DataError, match=rf"row 1: {value} does not fit int64"):
        arrow(pa.array([Decimal(1), value], kind), dtype="int64")
    with pytest.raises(DataError, match=r"row 1: [\d.e+]* does not fit int64"):
        rows([Decimal(1), value], dtype="int64")


def test_decimals_of_pandas_are_numbers():
    with pytest.raises(DataError, match="row 1: NaN does not fit int64"):
        rows([Decimal(1), Decimal("NaN")], dtype="int64")
    assert rows([Decimal("1.25"), Decimal(2)]).tolist() == [1.25, 2]
    assert rows([[Decimal("1.25"), Decimal(2)]]).tolist() == [[1.25, 2]]
    with pytest.raises(DataError, match="row 1: null"):
        rows([Decimal(1), None])


def test_large_lists_and_chunks_cut_from_a_column():
    column = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.large_list(pa.float64()))
    assert arrow(column).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert arrow(column.slice(1, 1)).tolist() == [[3, 4]]
    assert arrow(pa.array([[[1], [2]], [[3], [4]]]).slice(1)).tolist() == [[[3], [4]]]


@pytest.mark.parametrize("kind", [pa.float32(), pa.list_(pa.list_(pa.int32())), pa.decimal128(5, 1)], ids=str)
def test_a_batch_without_rows_converts(kind):
    assert len(arrow(pa.array([], kind))) == 0
    assert len(arrow(pa.array([], kind), dtype="float32", shape=(2, 3))) == 0


def test_a_binary_batch_without_rows_converts():
    assert arrow(pa.array([], pa.binary()), binary=True, dtype="uint8", shape=(2,)).shape == (0, 2)


def test_arrays_without_values_keep_their_shape():
    assert arrow(pa.array([[], []], pa.list_(pa.float32()))).shape == (2, 0)
    assert arrow(pa.array([[], []], pa.list_(pa.list_(pa.float32())))).shape == (2, 0, 0)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array(["a", "b"]), "column 'col': values of type .* are not numbers"),
        (pa.array([["a"], ["b"]]), "are not numbers"),
    ],
)
def test_text_is_rejected(column, message):
    with pytest.raises(DataError, match=message):
        arrow(column)


# -- shapes -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)))
def test_nested_lists_of_any_shape_round_trip(array):
    column = pa.array(array.tolist(), listed(array.ndim - 1, pa.float32()))
    for options in ({}, {"dtype": "float32", "shape": array.shape[1:]}):
        np.testing.assert_array_equal(arrow(column, **options), array)


def test_flat_arrays_are_reshaped_to_the_planned_shape():
    assert arrow(pa.array([[1, 2, 3, 4]]), shape=(2, 2)).tolist() == [[[1, 2], [3, 4]]]
    assert arrow(pa.array([1, 2]), shape=(1,)).tolist() == [[1], [2]]
    assert arrow(pa.array([[1], [2]]), shape=()).tolist() == [1, 2]


RAGGED = {
    "outer": ([[1], [2], [3, 4]], {}, "row 2: array of 2 values where other rows have 1"),
    "outer, planned": ([[1, 2], [3]], {"shape": (1,)}, "row 0: array of 2 values where other rows have 1"),
    "outer of nested": ([[[1]], [[2], [3]]], {}, "row 1: array of 2 values where other rows have 1"),
    "inner": ([[[1], [2]], [[3], [4, 5]]], {}, "row 1: array of 2 values where other rows have 1"),
    "inner, first row": ([[[1], [2, 3]], [[3], [4]]], {}, "row 0: array of 2 values where other rows have 1"),
    "inner, planned": (
        [[[1], [2]], [[3], [4]]],
        {"shape": (2, 3)},
        "row 0: array of 1 values where other rows have 3",
    ),
    "empty": ([[1], []], {}, "row 1: array of 0 values where other rows have 1"),
    "reshaped": ([[1, 2, 3]], {"shape": (2, 2)}, "row 0: array of 3 values where other rows have 4"),
    "nested": ([[[1], [2], [3]]], {"shape": (4,)}, r"row 0: 3 values, expected 4 for shape \(4,\)"),
    "scalar for array": ([1, 2], {"shape": (2,)}, r"row 0: 1 values, expected 2 for shape \(2,\)"),
}


@pytest.mark.parametrize(("values", "options", "message"), RAGGED.values(), ids=RAGGED)
def test_ragged_rows_are_named(values, options, message):
    with pytest.raises(DataError, match=f"column 'col', {message}"):
        arrow(pa.array(values), **options)


def test_a_short_first_row_of_a_reshaped_column_is_the_one_named():
    with pytest.raises(DataError, match="row 0"):
        arrow(pa.array([[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]]), shape=(2, 2))


# -- nulls --------------------------------------------------------------------------------------

NULLS = {
    "number": ([1.0, None], "row 1: null;"),
    "first": ([None, 1.0], "row 0: null;"),
    "list": ([[1], [1], None], "row 2: null;"),
    "in list": ([[1, 2], [3, None]], "row 1: null inside the array;"),
    "inner list": ([[[1], [2]], [[3], None]], "row 1: null inside the array;"),
    "in inner list": ([[[1], [2]], [[3], [None]]], "row 1: null inside the array;"),
    "decimal": ([Decimal(1), None], "row 1: null;"),
    "decimal in list": ([[Decimal(1)], [None]], "row 1: null inside the array;"),
    "bool": ([True, None], "row 1: null;"),
}


@pytest.mark.parametrize(("values", "message"), NULLS.values(), ids=NULLS)
def test_nulls_are_named_with_a_remedy(values, message):
    with pytest.raises(DataError, match=f"column 'col', {message}.*df.na.drop"):
        arrow(pa.array(values))


def test_nulls_in_binary_are_named():
    with pytest.raises(DataError, match="row 1: null"):
        arrow(pa.array([b"ab", None]), binary=True, dtype="uint8", shape=(2,))


# -- binary -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float64"])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_binary_holds_raw_tensors(dtype, kind):
    expected = np.arange(12).reshape(2, 2, 3).astype(dtype)
    column = pa.array([row.tobytes() for row in expected], kind)
    result = arrow(column, binary=True, dtype=dtype, shape=(2, 3))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(
        arrow(column.slice(1), binary=True, dtype=dtype, shape=(2, 3)), expected[1:]
    )


def test_binary_that_does_not_lie_at_a_multiple_of_its_items():
    column = pa.array([b"abc", np.arange(2.0).tobytes(), np.arange(2.0, 4.0).tobytes()], pa.binary())
    result = arrow(column.slice(1), binary=True, dtype="float64", shape=(2,))
    assert result.flags.aligned
    assert result.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_binary_of_the_wrong_length_is_named():
    with pytest.raises(
        DataError, match=r"column 'col', row 1: 3 bytes, expected 8 for shape \(2,\) of float32"
    ):
        arrow(pa.array([bytes(8), bytes(3)]), binary=True, dtype="float32", shape=(2,))


# -- values -------------------------------------------------------------------------------------

OUT_OF_RANGE = [
    ("uint8", [0, 256], "row 1: 256 does not fit uint8"),
    ("uint8", [-1, 0], "row 0: -1 does not fit uint8"),
    ("uint8", [0.0, 1.5], "row 1: 1.5 does not fit uint8"),
    ("uint8", [0.0, float("nan")], "row 1: nan does not fit uint8"),
    ("int8", [127, 128], "row 1: 128 does not fit int8"),
    ("int32", [0, 2**31], "row 1: 2147483648 does not fit int32"),
    ("int64", [0.0, 1e300], r"row 1: 1e\+300 does not fit int64"),
    ("int64", [0.0, float("-inf")], "row 1: -inf does not fit int64"),
    ("uint8", [[0, 1], [2, 300]], "row 1: 300 does not fit uint8"),
]


@pytest.mark.parametrize(("dtype", "values", "message"), OUT_OF_RANGE)
def test_values_that_do_not_fit_are_named(dtype, values, message):
    for convert, column in ((arrow, pa.array(values)), (rows, values), (rows, np.array(values))):
        with pytest.raises(DataError, match=f"column 'col', {message}"):
            convert(column, dtype=dtype)


def test_unsigned_values_beyond_int64_are_named():
    with pytest.raises(DataError, match="row 0: 9223372036854775808 does not fit int64"):
        rows(np.array([2**63], np.uint64))


@pytest.mark.parametrize(("dtype", "value"), [("int32", np.float32(2.0**31)), ("int64", np.float64(2.0**63))])
def test_floats_just_above_the_range_are_named(dtype, value):
    with pytest.raises(DataError, match="does not fit"):
        rows(np.array([value]), dtype=dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_the_whole_range_of_an_integer_dtype_fits(dtype):
    info = np.iinfo(dtype)
    assert arrow(pa.array([info.min, info.max]), dtype=dtype).tolist() == [info.min, info.max]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_labels_must_be_finite_after_conversion(bad):
    with pytest.raises(DataError, match=r"column 'col', row 2: .* must be finite"):
        arrow(pa.array([0.0, 1.0, bad]), finite=True)
    with pytest.raises(DataError, match=r"row 1: .* must be finite"):
        arrow(pa.array([[0.0, 1.0], [2.0, bad]]), finite=True)


def test_features_may_be_nan_and_infinite():
    result = arrow(pa.array([float("nan"), float("inf"), -float("inf")]))
    assert np.isnan(result[0])
    assert result[1:].tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("bad", [3.5e38, -1e39, 1e300])
def test_finite_numbers_that_would_be_infinite_are_named(bad):
    values = np.full((1000, 3), np.inf)  # which is a value of its own
    values[:, :2] = np.finfo(np.float32).max
    assert torch.equal(torch.from_numpy(rows(values)), torch.from_numpy(values).float())
    values[617, 1] = bad
    assert torch.from_numpy(values).float()[617, 1].isinf()
    given = values.tolist()
    for convert in (lambda: rows(values), lambda: rows(given), lambda: arrow(pa.array(given))):
        with pytest.raises(DataError, match=r"column 'col', row 617: .* does not fit float32") as caught:
            convert()
        assert caught.value.code == "data-value"
    assert rows(values, dtype="float64")[617, 1] == bad


@pytest.mark.parametrize("values", [[0.5, -0.5], [1, -1]])
def test_weights_must_not_be_negative(values):
    with pytest.raises(DataError, match=r"column 'col', row 1: -.* must not be negative"):
        arrow(pa.array(values), finite=True, non_negative=True)
    assert arrow(pa.array([0.0, -0.0, 2.0]), finite=True, non_negative=True).tolist() == [0, 0, 2]


@pytest.mark.parametrize("value", [1e-300, 1e-46, 1e-44, np.finfo(np.float32).tiny / 2])
def test_weights_that_float32_makes_0_or_rounds_are_refused(value):
    """Below its smallest normal number 1.4e-45 and 2.8e-45 are all that there is for 1e-45 to 3e-45."""
    for weights in ([1.0, value], [2.0, -value]):
        with pytest.raises(DataError, match=r"column 'col', row 1: .* (is too small for float32|negative)"):
            arrow(pa.array(weights), finite=True, non_negative=True)
    smallest = float(np.finfo(np.float32).tiny)
    assert arrow(pa.array([1, smallest]), finite=True, non_negative=True).tolist() == [1, smallest]
    assert arrow(pa.array([value]), finite=True, non_negative=True, dtype="float64").tolist() == [value]


# -- Python rows and numpy ----------------------------------------------------------------------


MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])
MASKED_ROWS = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, False], [False, True]])


@pytest.mark.parametrize(
    "take",
    [
        lambda values: array_of(plan(), values),
        lambda values: rows(list(values)),
        lambda values: Dataset.from_numpy([values]),
        lambda values: Dataset.from_numpy(np.zeros(len(values)), {"y": values}),
    ],
)
@pytest.mark.parametrize("values", [MASKED, MASKED_ROWS], ids=["numbers", "rows"])
def test_masked_values_are_null(take, values):
    with pytest.raises(DataError, match="row 1: masked, which stands for null"):
        take(values)


def test_masked_weights_are_null():
    with pytest.raises(DataError, match="column 'weight', row 1: masked"):
        Dataset.from_numpy(np.zeros((3, 1)), weight=MASKED)


def test_a_list_of_weights_is_one_column(spark):
    plan = Dataset.from_numpy(np.zeros((3, 1)), weight=[1.0, 2.0, 0.0], spark=spark).plan
    assert [column.key for column in plan.columns] == ["features", "weight"]


def test_masked_arrays_without_masked_values_are_arrays():
    values = np.ma.array([1.0, 2.0], mask=[False, False])
    assert array_of(plan(dtype="float32"), values).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ([1, 2], "int64", ()),
        ([1, 2.5], "float32", ()),
        ([True, False], "float32", ()),
        ([np.float64(1), np.float32(2)], "float32", ()),
        ([[1, 2], (3, 4)], "int64", (2,)),
        ([np.zeros((2, 3), np.uint8)] * 2, "uint8", (2, 3)),
    ],
)
def test_rows_are_stacked(values, dtype, shape):
    result = rows(values)
    assert (result.dtype, result.shape) == (dtype, (2, *shape))
    np.testing.assert_array_equal(result, np.array([np.asarray(v) for v in values]))


@pytest.mark.parametrize(
    "values",
    [
        [2**53 + 1, 1.0],
        [[2**53 + 1, 1.0], [np.float32(3), True]],
        [np.array([2**53 + 1]), np.array([4.0])],
        [np.uint64(2**63 - 1), -1],
        [np.int64(-(2**63)), -0.0],
    ],
)
def test_integers_beside_floats_are_not_rounded(values):
    """Alone numpy makes floats of all, in which these integers are others."""
    expected = [[int(item) for item in np.asarray(value, object).flat] for value in values]
    for ragged in (False, True) if np.ndim(values[0]) else (False,):
        found = rows(values, dtype="int64", ragged=ragged)
        assert [np.ravel(value).tolist() for value in found] == expected
    found = array_of(plan(dtype="int64"), values)
    assert found.tolist() == np.array(expected, object).reshape(found.shape).tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None], "row 1: null"),
        ([1, "2"], "row 1: '2' is not a number"),
        ([1, {"a": 1}], "row 1: {'a': 1} is not a number"),
        ([1, 2**70], "row 1: 1180591620717411303424 is not a number"),
        ([np.zeros(2), np.zeros(3)], r"row 1: shape \(3,\) where other rows have \(2,\)"),
        ([np.zeros(2), 1.0], r"row 1: shape \(\) where other rows have \(2,\)"),
    ],
)
def test_rows_that_are_no_tensor_are_named(values, message):
    with pytest.raises(DataError, match=f"column 'col', {message}"):
        rows(values)


def test_rows_of_equal_size_but_another_shape_are_rejected():
    with pytest.raises(DataError, match=r"row 1: shape \(3, 2\)"):
        rows([np.zeros((2, 3)), np.zeros((3, 2))])


def test_the_planned_shape_of_rows_wins():
    with pytest.raises(DataError, match=r"row 0: shape \(3,\) where other rows have \(2,\)"):
        rows([np.zeros(3), np.zeros(3)], dtype="float32", shape=(2,))


def test_no_rows_at_all():
    assert len(rows([])) == 0


def test_numpy_columns_are_converted_whole():
    array = np.arange(6, dtype=np.float64).reshape(3, 2)[::-1]
    result = rows(array)
    assert result.dtype == "float32"
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([object()]), np.array([1j])])
def test_numpy_columns_must_hold_numbers(array):
    with pytest.raises(DataError, match=r"column 'col': values of type .* are not numbers"):
        rows(array)


# -- names --------------------------------------------------------------------------------------


def test_rows_are_named_by_input_partition_and_position():
    assert name_id(5) == "row 5 of input partition 0"
    assert name_id((3 << 33) + 7) == "row 7 of input partition 3"


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("uint8", "uint8"), ("int8", "int64"), ("uint32", "int64"), ("bool", "float32"), ("float64", "float32")],
)
def test_default_dtype(dtype, stored):
    assert default_dtype(np.dtype(dtype), 2) == stored
    assert default_dtype(np.dtype(dtype), 1) == stored.replace("uint8", "int64")

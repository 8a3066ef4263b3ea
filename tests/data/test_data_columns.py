import sys
from types import SimpleNamespace

import numpy as np
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types

from sparkdl.data import columns, schema
from sparkdl.data.columns import Column, ColumnPlan, Structure, make_plan, structure_of
from sparkdl.exceptions import ConfigError, DataError

# -- Column -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "non-empty string, got ''"),
        ({"name": 3}, "non-empty string, got 3"),
        ({"name": "x", "dtype": "complex64"}, "column 'x': dtype 'complex64' is not one of bool, uint8"),
        ({"name": "x", "dtype": "float16"}, "dtype 'float16'"),
        ({"name": "x", "shape": (2, 0)}, r"column 'x': shape \(2, 0\) must be a tuple of positive integers"),
        ({"name": "x", "shape": (-1,)}, "positive integers"),
        ({"name": "x", "shape": (1.5,)}, "positive integers"),
        ({"name": "x", "shape": 3}, "column 'x': shape 3 must be a tuple of positive integers"),
    ],
)
def test_column_rejects(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Column(**arguments)


def test_column_takes_any_sequence_as_shape():
    assert Column("x", shape=[28, 28]) == Column("x", shape=(28, 28))
    assert hash(Column("x", shape=[28]))


# -- Structure ----------------------------------------------------------------------------------

VALUES = {
    "none": (None, ()),
    "single": ("a", ("features",)),
    "tuple": (("a", "b"), ("features_0", "features_1")),
    "tuple of one": (("a",), ("features_0",)),
    "dict": ({"user": "a", "item": "b"}, ("features_user", "features_item")),
}


@pytest.mark.parametrize(("value", "keys"), VALUES.values(), ids=VALUES)
def test_a_value_survives_taking_it_apart(value, keys):
    structure = structure_of(value, "features")
    assert structure.keys == keys
    parts = structure.disassemble(value)
    assert tuple(parts) == keys
    assert structure.assemble(parts) == value


def test_a_list_groups_like_a_tuple():
    structure = structure_of(["a", "b"], "features")
    assert structure == structure_of(("a", "b"), "features")
    assert structure.disassemble(["x", "y"]) == {"features_0": "x", "features_1": "y"}


def test_dicts_are_matched_by_name_not_by_order():
    structure = structure_of({"user": 1, "item": 2}, "features")
    assert structure.disassemble({"item": 20, "user": 10}) == {"features_user": 10, "features_item": 20}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"features: expected at least one column, got \[\]"),
        ((), "at least one column"),
        ({"not a name": 1}, "features: 'not a name' is not a keyword name"),
        ({0: 1}, "features: 0 is not a keyword name"),
    ],
)
def test_structure_of_rejects(value, message):
    with pytest.raises(ConfigError, match=message):
        structure_of(value, "features")


@pytest.mark.parametrize(
    ("template", "value", "message"),
    [
        (("a", "b"), (1, 2, 3), "expected a tuple of 2 values, got"),
        (("a", "b"), 5, "expected a tuple of 2 values, got 5"),
        (("a", "b"), np.zeros(2), "expected a tuple of 2 values"),
        ({"u": "a"}, {"v": 1}, r"expected a dict with keys \['u'\]"),
        ({"u": "a"}, {"u": 1, "v": 1}, "expected a dict with keys"),
        ({"u": "a"}, [1], "expected a dict with keys"),
    ],
)
def test_disassemble_rejects_other_groupings(template, value, message):
    with pytest.raises(DataError, match=message):
        structure_of(template, "features").disassemble(value)


# -- plans --------------------------------------------------------------------------------------


def test_a_plan_orders_columns_and_marks_what_must_be_finite():
    sources = {key: ColumnPlan(key, key) for key in ("weight", "label", "features_1", "features_0")}
    features = Structure("tuple", ("features_0", "features_1"))
    plan = make_plan(features, Structure("single", ("label",)), sources, weighted=True)
    assert [(c.key, c.finite, c.non_negative) for c in plan.columns] == [
        ("features_0", False, False),
        ("features_1", False, False),
        ("label", True, False),
        ("weight", True, True),
    ]
    unweighted = make_plan(features, Structure("none"), sources, weighted=False)
    assert [c.key for c in unweighted.columns] == ["features_0", "features_1"]


def test_row_bytes():
    image = ColumnPlan("features", "image", dtype="uint8", shape=(28, 28))
    label = ColumnPlan("label", "digit").resolved("int64", ())
    assert (image.row_bytes, label.row_bytes) == (784, 8)
    assert columns.TablePlan((image, label), Structure("none"), Structure("none"), False).row_bytes == 792


@pytest.mark.parametrize(
    ("data_type", "kind"),
    [
        (VectorUDT(), "vector"),
        (types.BinaryType(), "binary"),
        *[
            (t, "numeric")
            for t in (
                types.ByteType(),
                types.ShortType(),
                types.IntegerType(),
                types.LongType(),
                types.FloatType(),
                types.DoubleType(),
                types.DecimalType(10, 2),
                types.BooleanType(),
                types.ArrayType(types.ArrayType(types.FloatType())),
            )
        ],
        (types.StringType(), "StringIndexer"),
        (types.ArrayType(types.StringType()), "StringIndexer"),
        (types.DateType(), "unix_timestamp"),
        (types.TimestampType(), "unix_timestamp"),
        (types.TimestampNTZType(), "unix_timestamp"),
        (types.MapType(types.StringType(), types.FloatType()), "expected numbers"),
        (types.StructType([]), "expected numbers"),
        (types.ArrayType(types.BinaryType()), "expected numbers"),
    ],
    ids=str,
)
def test_sql_types_are_classified_or_get_advice(data_type, kind):
    assert kind in schema._kind(data_type)


def test_columns_without_vectors_need_no_spark_ml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.ml.linalg", None)  # an import of it is an error
    table = SimpleNamespace(schema=types.StructType().add("x", "double"))
    assert schema._kind(types.DoubleType()) == "numeric"
    assert schema.vector_columns(table) == []

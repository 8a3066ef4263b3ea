"""Applying modules to columns: the scorer without Spark, then transforms on it."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import nn

from sparkdl.access import models as access_models
from sparkdl.access.models import Inline
from sparkdl.data.columns import Column, ColumnPlan, Structure, structure_of
from sparkdl.exceptions import ConfigError, DataError, ModelError, SerializationError
from sparkdl.ml import TorchClassificationModel, TorchModel, TorchRegressionModel
from sparkdl.ml.stages import inference, scorer, shipped, sql, udf
from sparkdl.ml.stages.arrow_columns import ArrowColumns, null_rows
from sparkdl.ml.stages.arrow_vectors import VECTOR
from sparkdl.ml.stages.inference import Inference, apply
from sparkdl.ml.stages.outputs import OutputColumn, decide, probability_of, raw_of, raw_prediction_of, select
from sparkdl.ml.stages.scorer import Scorer

FLOATS = pa.list_(pa.float32())
DOUBLED = OutputColumn(column="doubled", kind="number")
PREDICTION = (OutputColumn(column="prediction", kind="floats"),)


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


class Sizes(nn.Module):
    """Gives each row the size of its batch."""

    def forward(self, x):
        return torch.full((len(x),), len(x))


class Pair(nn.Module):
    def forward(self, a, b):
        return {"sum": a.sum(1) + b, "grid": torch.stack([a, 2 * a], 1)}


class Threads(nn.Module):
    def forward(self, x):
        return torch.full((len(x),), torch.get_num_threads()), self.training, x


class Where(nn.Module):
    """Tells how often and in how many processes it was unpickled, by a file's lines."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def __setstate__(self, state):
        import os

        self.__dict__.update(state)
        with open(self.path, "a") as file:
            file.write(f"{os.getpid()}\n")

    def forward(self, x):
        return x


def score(module, *batches, outputs=PREDICTION, inputs=None, bare=False, **options):
    """Run a scorer in this process over Arrow batches and return its columns as lists."""
    data = cloudpickle.dumps(module)
    inputs = inputs or [f"c{n}" for n in range(len(batches[0]))]
    structure = structure_of(inputs if len(inputs) > 1 else inputs[0], "features")
    plans = tuple(ColumnPlan(k, f"c{n}") for n, k in enumerate(structure.keys))
    names = () if bare else tuple(f"o{n}" for n in range(len(outputs)))
    run = Scorer(Inline(str(hash(data)), data), structure, plans, outputs, names=names, **options)
    threads = torch.get_num_threads()
    found = list(run(iter([b if len(b) > 1 else b[0] for b in batches])))
    assert torch.get_num_threads() == threads
    if bare:
        return [value for array in found for value in array.to_pylist()]
    return [
        [row and row[f"o{n}"] for array in found for row in array.to_pylist()] for n in range(len(outputs))
    ]


def lists(*rows):
    return (pa.array(list(rows), FLOATS),)


# -- the scorer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("emitted", [1, 4 << 20])
@pytest.mark.parametrize(("size", "expected"), [(4, [4, 4, 2]), (1, [1] * 10), (7, [7, 3]), (None, [10])])
def test_batches_have_their_size_however_rows_arrive(size, expected, emitted, monkeypatch):
    monkeypatch.setattr(scorer, "_RESULT_BYTES", emitted)
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    batches = [lists(*values[a:b].tolist()) for a, b in ((0, 1), (1, 6), (6, 6), (6, 10))]
    assert score(Twice(), *batches, batch_size=size) == [(2 * values).tolist()]
    (sizes,) = score(Sizes(), *batches, batch_size=size, outputs=(DOUBLED,))
    assert sizes == [float(n) for n in expected for _ in range(n)]


def test_each_batch_has_its_result():
    """What Spark needs where it hands Arrow columns over as they are."""
    data = cloudpickle.dumps(Twice())
    plans = (ColumnPlan("features", "x"),)
    run = Scorer(Inline("aligned", data), structure_of("x", "features"), plans, PREDICTION, batch_size=4)
    rows = [[[1.0]] * 3, [[2.0]] * 6, [None, None], [[3.0], None]]
    run = replace(run, keep=True)
    assert [len(array) for array in run(pa.array(part, FLOATS) for part in rows)] == [3, 6, 2, 2]


def test_modules_are_kept_as_far_as_memory_allows(monkeypatch):
    loads = []
    monkeypatch.setattr(shipped, "_models", OrderedDict())

    @dataclass
    class Shipped:
        digest: str

        def read(self):
            loads.append(self.digest)
            return cloudpickle.dumps(nn.Linear(1, 1))

    size = len(cloudpickle.dumps(nn.Linear(1, 1)))
    monkeypatch.setattr(shipped, "_KEPT_BYTES", 2 * size + size // 2)
    for digest in "abacab":
        assert not shipped.load_shipped(Shipped(digest)).module.training
    assert loads == ["a", "b", "c", "b"]


def test_without_rows_there_is_nothing_and_no_module_is_loaded():
    class Untouchable:
        digest = "none"

        def read(self):
            raise AssertionError("loaded")

    plans = (ColumnPlan("features", "x"),)
    run = Scorer(Untouchable(), structure_of("x", "features"), plans, PREDICTION)
    assert list(run(iter([]))) == []
    assert list(run(iter([pa.array([], FLOATS)]))) == []


@pytest.mark.parametrize("size", [1, 2, 100])
def test_null_rows_are_not_seen_and_keep_their_place(size):
    rows = [None, [1.0, 2.0], [3.0, None], [float("nan"), 4.0], None]
    more = [[None, None], None]
    found = score(Twice(), lists(*rows), lists(*more), lists([5.0, 6.0]), keep=True, batch_size=size)
    (found,) = found
    assert [row is None for row in found] == [True, False, True, False, True, True, True, False]
    assert found[1] == [2.0, 4.0]
    assert np.isnan(found[3][0])
    assert found[3][1] == 8.0
    assert found[7] == [10.0, 12.0]


def test_only_nulls_give_nulls_of_every_kind():
    kinds = ("number", "floats", "doubles", "raw", "probability", "class")
    outputs = tuple(OutputColumn(column=kind, kind=kind) for kind in kinds)
    assert score(Twice(), lists(None, None), keep=True, outputs=outputs) == [[None, None]] * len(kinds)


def test_single_output_without_struct_has_nulls_of_its_own():
    for kind in ("number", "raw", "floats"):
        (output,) = (OutputColumn(column="p", kind=kind),)
        found = score(Twice(), lists(None, [1.0]), keep=True, outputs=(output,), bare=True)
        assert [value is None for value in found] == [True, False]


def test_null_is_an_error_that_names_column_and_row():
    with pytest.raises(DataError, match=r"column 'c0', row 3 of partition 0: null; handleInvalid='skip'"):
        score(Twice(), lists([1.0], [2.0]), lists([1.0], [None]))


def test_null_rows_in_nested_lists():
    column = pa.array([[[1.0], [2.0]], None, [[None], [3.0]], [None, [1.0]], []], pa.list_(FLOATS))
    assert null_rows(column).tolist() == [False, True, True, True, False]
    assert null_rows(column.slice(0, 1)) is None
    assert null_rows(column.slice(2, 2)).tolist() == [True, True]


def test_vectors_as_pandas_gives_them():
    full = {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0]}
    sparse = {"type": 0, "size": 2, "indices": [1], "values": [3.0]}
    rows = [full, dict.fromkeys(full), sparse]
    found = udf._from_pandas(pd.DataFrame(rows))
    assert found.type == VECTOR
    assert found.to_pylist() == [full, None, sparse]
    assert udf._from_pandas(pd.Series([1.5, 2.5])).to_pylist() == [1.5, 2.5]


def test_several_inputs_and_outputs():
    a, b = pa.array([[1.0, 2.0], [3.0, 4.0]], FLOATS), pa.array([10.0, 20.0])
    outputs = (
        OutputColumn(column="s", kind="number", key="sum"),
        OutputColumn(column="g", kind="doubles", key="grid", dims=2),
    )
    expected = [[13.0, 27.0], [[[1.0, 2.0], [2.0, 4.0]], [[3.0, 4.0], [6.0, 8.0]]]]
    assert score(Pair(), (a, b), outputs=outputs) == expected
    assert score(Pair(), (b, a), outputs=outputs, inputs={"b": "c0", "a": "c1"}) == expected
    flat = (OutputColumn(column="g", kind="floats", key="grid"),)
    assert score(Pair(), (a, b), outputs=flat) == [[[1.0, 2.0, 2.0, 4.0], [3.0, 4.0, 6.0, 8.0]]]


def test_runs_in_evaluation_mode():
    assert score(nn.Sequential(nn.Dropout(0.9)), lists([1.0, 2.0])) == [[[1.0, 2.0]]]


def arrow_columns(plan):
    return ArrowColumns((plan,), Structure("single", ("x",)), keep=False, name=lambda row: f"row {row}")


@pytest.mark.parametrize(
    ("column", "shape", "dtype", "expected"),
    [
        (pa.array([1, 2], pa.int32()), None, None, torch.tensor([1, 2])),
        (pa.array([True, False]), None, None, torch.tensor([1.0, 0.0])),
        (pa.array([1.5, 2.5]), None, None, torch.tensor([1.5, 2.5])),
        (pa.array([1.5, 2.5]), None, "float64", torch.tensor([1.5, 2.5], dtype=torch.float64)),
        (
            pa.array([[1, 2, 3, 4]], pa.list_(pa.int64())),
            (2, 2),
            "float32",
            torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]),
        ),
        (
            pa.array([b"\x01\x02", b"\x03\xff"]),
            (2,),
            None,
            torch.tensor([[1, 2], [3, 255]], dtype=torch.uint8),
        ),
        (pa.array([[[1.0, 2.0]], [[3.0, 4.0]]]), None, None, torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])),
    ],
)
def test_columns_become_tensors(column, shape, dtype, expected):
    valid, arrays = arrow_columns(ColumnPlan("x", "x", False, dtype, shape)).convert([column])
    assert valid.all()
    found = torch.from_numpy(arrays["x"].copy())
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_floats_come_from_arrows_memory_without_a_copy():
    column = pa.array([[1.0, 2.0], [3.0, 4.0]], FLOATS)
    _, arrays = arrow_columns(ColumnPlan("x", "x")).convert([column])
    assert np.shares_memory(arrays["x"], column.values.to_numpy())


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (
            [lists([1.0]), lists([1.0, 2.0])],
            "row 1 of partition 0: array of 2 values where other rows have 1",
        ),
        ([(pa.array(["a"]),)], "column 'c0' has type string: expected numbers"),
        ([(pa.array([b"a"]),)], "column 'c0' is binary: the shape"),
    ],
)
def test_rows_that_are_no_tensors(batches, message):
    with pytest.raises(DataError, match=message):
        score(Twice(), *batches)


def test_a_failing_module_is_explained():
    with pytest.raises(
        ModelError, match=r"layer '0', Linear.*got input float32\[1, 2\], expected float\[..., 3\]"
    ):
        score(nn.Sequential(nn.Linear(3, 1)), lists([1.0, 2.0]))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("number", {}, r"output column 'p': the module gives shape \(2,\) per row; a column of numbers"),
        ("floats", {"dims": 2}, "expected 2 dimensions"),
        ("floats", {"key": 1}, r"returned float32\[1, 2\]; expected a tensor at 1"),
        ("floats", {"key": "x"}, "expected a tensor at 'x'"),
        ("class", {"thresholds": (1.0, 1.0, 1.0)}, r"expected one per class \(2\)"),
    ],
)
def test_outputs_that_do_not_fit(kind, options, message):
    with pytest.raises((ModelError, ConfigError), match=message):
        score(Twice(), lists([1.0, 2.0]), outputs=(OutputColumn(column="p", kind=kind, **options),))


@pytest.mark.parametrize("output", [torch.zeros(3), torch.tensor(1.0), [torch.zeros(2)], None])
def test_outputs_count_rows(output):
    with pytest.raises(ModelError, match="whose first dimension counts the batch's 2 rows"):
        select(output, None, 2)


def test_low_precision_comes_out_as_float32():
    assert select(torch.ones(2, 3, dtype=torch.bfloat16), None, 2).dtype == np.float32


def test_class_outputs_of_logits():
    logits = np.array([[0.0, 1.0, -1.0], [3.0, 3.0, 0.0]])
    assert np.allclose(probability_of(logits), torch.softmax(torch.from_numpy(logits), 1).numpy(), atol=1e-15)
    assert decide(raw_of(logits), None).tolist() == [1, 0]
    one = np.array([[-2.0], [0.0], [2.0]])
    assert np.allclose(probability_of(one)[:, 1], torch.sigmoid(torch.from_numpy(one[:, 0])), atol=1e-15)
    assert raw_of(one).tolist() == [[2.0, -2.0], [0.0, 0.0], [-2.0, 2.0]]
    assert decide(raw_of(one), None).tolist() == [0, 0, 1]
    assert raw_prediction_of(logits).tolist() == logits.tolist()
    assert raw_prediction_of(one).tolist() == raw_of(one).tolist()
    assert raw_prediction_of(np.array([[1.0, 4.0], [5.0, 5.0]])).tolist() == [[-1.5, 1.5], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("probability", "thresholds", "expected"),
    [
        ([0.6, 0.3, 0.1], None, 0),
        ([0.6, 0.3, 0.1], (0.9, 0.2, 0.9), 1),
        ([0.6, 0.3, 0.1], (0.5, 0.5, 0.0), 2),
        ([0.6, 0.4, 0.0], (0.5, 0.5, 0.0), 0),
    ],
)
def test_thresholds_as_in_spark(probability, thresholds, expected):
    assert decide(np.array([probability]), thresholds).tolist() == [expected]


@pytest.mark.parametrize("thresholds", [None, (0.5, 0.2)])
def test_a_row_with_a_logit_of_nan_has_no_class(thresholds):
    logits = np.array([[0.0, 3.0], [np.nan, np.nan], [3.0, 0.0], [1.0, np.nan]])
    options = {"column": "c", "thresholds": thresholds, "labels": ("no", "yes")}
    found = OutputColumn(kind="class", **options).to_arrow(logits)
    assert np.array_equal(found.to_numpy(), [1.0, np.nan, 0.0, np.nan], equal_nan=True)
    assert OutputColumn(kind="label", **options).to_arrow(logits).to_pylist() == ["yes", None, "no", None]
    masked = OutputColumn(kind="label", **options).to_arrow(logits, np.array([True, False, False, False]))
    assert masked.to_pylist() == [None, None, "no", None]


def test_values_of_an_inference_are_checked():
    module = nn.Identity()
    with pytest.raises(ConfigError, match="expected different names"):
        Inference(module=module, inputs="x", outputs=PREDICTION * 2)
    with pytest.raises(ConfigError, match="thresholds"):
        OutputColumn(column="p", kind="class", thresholds=(0.0, 0.0))


# -- on Spark --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))


VALUES = np.random.default_rng(0).standard_normal((11, 4)).astype(np.float32)


def frame(spark, partitions=2):
    """Rows as dense and sparse vectors, arrays, nested arrays, doubles and bytes."""
    rows = []
    for n, x in enumerate(VALUES.tolist()):
        vector = Vectors.dense(x) if n % 2 else Vectors.sparse(4, range(4), x)
        bits = bytearray(np.array(x, np.float32).tobytes())
        rows.append(
            Row(
                id=n,
                vector=vector,
                array=x,
                nested=[x[:2], x[2:]],
                bits=bits,
                **dict(zip("abcd", x, strict=True)),
            )
        )
    schema = "id long, array array<float>, nested array<array<double>>, bits binary, "
    schema = T._parse_datatype_string(schema + "a double, b float, c double, d float").add(
        "vector", VectorUDT()
    )
    rows = [tuple(row[name] for name in schema.names) for row in rows]
    return spark.createDataFrame(rows, schema).repartition(partitions, "id")


def plain(module, values=VALUES):
    with torch.inference_mode():
        return module.eval()(torch.from_numpy(values)).numpy()


def check(df, column, expected):
    check_all(df, {column: expected})


def check_all(df, columns):
    """Check columns of a table in one job."""
    rows = df.select("id", *columns).collect()
    for column, expected in columns.items():
        assert sorted(row.id for row in rows) == list(range(len(expected)))
        for row in rows:
            value = row[column].toArray() if hasattr(row[column], "toArray") else np.array(row[column])
            assert np.abs(value.reshape(-1) - np.reshape(expected[row.id], -1)).max() <= 1e-6, column


class Cat(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, *parts, **named):
        parts = parts or [named[name] for name in "abcd"]
        return self.body(torch.cat([part.reshape(len(part), -1) for part in parts], 1))


INPUTS = {
    "of_vector": "vector",
    "of_array": "array",
    "of_nested": Column("nested", shape=(2, 2)),
    "of_binary": Column("bits", shape=(4,), dtype="float32"),
    "positional": ["a", "b", "c", "d"],
    "keyword": {"d": "d", "b": "b", "a": "a", "c": "c"},
}


@pytest.mark.parametrize(("size", "partitions"), [(1, 3), (3, 3), (None, 12)])  # some of 12 are empty
def test_equals_plain_torch(spark, linear, size, partitions):
    module, df = Cat(linear), frame(spark, partitions)
    for column, inputs in INPUTS.items():
        outputs = (OutputColumn(column=column, kind="floats"),)
        df = apply(df, Inference(module=module, inputs=inputs, outputs=outputs, batch_size=size))
    check_all(df, dict.fromkeys(INPUTS, plain(module)))


def test_other_columns_stay_and_their_order_does_not_matter(spark, linear):
    df = frame(spark)
    described = F.col("id").alias("id", metadata={"note": "kept"})
    df = df.select(*(described if name == "id" else name for name in df.columns))
    df = df.withColumn("a.b", F.lit("dots")).withColumn("extra", F.struct("id", "a"))
    wanted = Inference(module=linear, inputs="array", outputs=PREDICTION)
    expected = plain(linear)
    for names in (df.columns, df.columns[::-1]):
        added = apply(df.select(*(F.col(f"`{name}`") for name in names)), wanted)
        assert added.columns == [*names, "prediction"]
        assert next(f for f in added.schema if f.name == "id").metadata == {"note": "kept"}
        assert added.schema["vector"].dataType == VectorUDT()
        check(added, "prediction", expected)
        row = added.where("id = 3").first()
        assert (row["a.b"], row.extra.id, row.vector) == ("dots", 3, Vectors.dense(VALUES[3]))


def test_duplicate_names_of_other_columns_are_no_problem(spark, linear):
    df = frame(spark).select("id", "array", F.lit(1).alias("x"), F.lit(2).alias("x"))
    added = apply(df, Inference(module=linear, inputs="array", outputs=PREDICTION))
    assert added.columns == ["id", "array", "x", "x", "prediction"]
    check(added, "prediction", plain(linear))


def test_output_kinds_and_columns(spark, linear):
    outputs = (
        OutputColumn(column="raw", kind="raw", metadata={"ml_attr": {"num_attrs": 3}}),
        OutputColumn(column="probability", kind="probability"),
        OutputColumn(column="class", kind="class", thresholds=(0.5, 0.2, 0.9)),
        OutputColumn(column="doubles", kind="doubles"),
    )
    df = apply(frame(spark), Inference(module=linear, inputs="array", outputs=outputs))
    kinds = [df.schema[output.column].dataType.simpleString() for output in outputs]
    assert kinds == ["vector", "vector", "double", "array<double>"]
    assert df.schema["raw"].metadata == {"ml_attr": {"num_attrs": 3}}
    logits = plain(linear)
    probability = torch.softmax(torch.from_numpy(logits).double(), 1).numpy()
    classes = (probability / [0.5, 0.2, 0.9]).argmax(1)
    expected = dict.fromkeys(("raw", "doubles"), logits)
    check_all(df, expected | {"probability": probability, "class": classes})


def test_building_a_transform_runs_no_job_and_reuses_the_broadcast(spark, linear):
    df = frame(spark)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    wanted = Inference(module=linear, inputs="vector", outputs=PREDICTION, handle_invalid="skip")
    apply(df, wanted)
    shipped = list(access_models._broadcasts)
    apply(df, wanted).select("prediction").schema  # noqa: B018
    assert set(tracker.getJobIdsForGroup()) == before
    assert list(access_models._broadcasts) == shipped


def test_a_changed_module_is_sent_again(spark):
    module = nn.Linear(4, 1)
    for _ in range(2):
        with torch.no_grad():
            module.bias += 1.0
        df = apply(frame(spark), Inference(module=module, inputs="array", outputs=PREDICTION))
        check(df, "prediction", plain(module))


def test_module_is_loaded_once_per_python_worker_and_has_the_cores_of_the_task(spark, tmp_path):
    path = tmp_path / "loads"
    df = frame(spark, 6)
    added = apply(df, Inference(module=Where(str(path)), inputs="array", outputs=PREDICTION))
    for _ in range(2):
        check(added, "prediction", VALUES)
    loads = path.read_text().split()
    assert len(loads) == len(set(loads)) < 12  # tasks; on a busy machine Spark replaces workers of two slots
    outputs = (OutputColumn(column="threads", kind="number", key=0),)
    threads = apply(df, Inference(module=Threads(), inputs="array", outputs=outputs))
    assert {row.threads for row in threads.collect()} == {1.0}


INVALID = [
    (0, [1.0, 2.0], Vectors.dense(1.0, 2.0)),
    (1, None, None),
    (2, [1.0, None], Vectors.dense(3.0, 4.0)),
    (3, [float("nan"), 1.0], Vectors.dense(float("nan"), 1.0)),
]


def invalid(spark):
    schema = T._parse_datatype_string("id long, x array<float>").add("v", VectorUDT())
    return spark.createDataFrame(INVALID, schema)


@pytest.mark.parametrize(("column", "kept"), [("x", [0, 3]), ("v", [0, 2, 3])])
def test_invalid_rows(spark, column, kept):
    module = Twice()

    def run(mode):
        df = apply(
            invalid(spark), Inference(module=module, inputs=column, outputs=PREDICTION, handle_invalid=mode)
        )
        return {row.id: row.prediction for row in df.collect()}

    assert sorted(run("skip")) == kept
    found = run("keep")
    assert sorted(found) == [0, 1, 2, 3]
    assert [n for n in found if found[n] is not None] == kept
    assert found[0] == [2.0, 4.0]
    assert np.isnan(found[3][0])
    assert found[3][1] == 2.0
    with pytest.raises(
        Exception, match=f"column '{column}', (row . of partition .|a row): null; handleInvalid='skip'"
    ):
        run("error")


def test_columns_that_cannot_be(spark, linear):
    df = frame(spark)
    for inputs, message in (("none", "'none' is not in the DataFrame"), ("bits", "binary: say how to read")):
        with pytest.raises(DataError, match=message):
            apply(df, Inference(module=linear, inputs=inputs, outputs=PREDICTION))
    with pytest.raises(DataError, match="output column 'a' is in the DataFrame already"):
        apply(
            df, Inference(module=linear, inputs="array", outputs=(OutputColumn(column="a", kind="number"),))
        )
    stuck = nn.Identity()
    stuck.lock = (n for n in range(3))
    with pytest.raises(SerializationError, match=r"the module.*lock"):
        apply(df, Inference(module=stuck, inputs="array", outputs=PREDICTION))


def test_failures_in_tasks_are_explained(spark):
    df = apply(frame(spark), Inference(module=nn.Linear(3, 1), inputs="array", outputs=PREDICTION))
    with pytest.raises(Exception, match=r"Linear\(in_features=3.*got input float32\[\d+, 4\]"):
        df.collect()


@pytest.mark.whole
def test_without_arrow_udfs_pandas_gives_the_same(spark, linear, monkeypatch):
    for home in (udf, inference, sql):
        monkeypatch.setattr(home, "has_arrow_udf", lambda: False)
    outputs = (
        *PREDICTION,
        OutputColumn(column="p", kind="probability"),
        OutputColumn(column="c", kind="class"),
    )
    logits = plain(linear)
    for inputs in ("vector", "array", Column("nested", shape=(4,)), ["a", "b", "c", "d"]):
        module = Cat(linear)
        df = frame(spark)
        found = apply(
            df.withColumnRenamed("c", "c_").withColumnRenamed("a", "a_"),
            Inference(
                module=module,
                inputs=inputs if isinstance(inputs, str | Column) else ["a_", "b", "c_", "d"],
                outputs=outputs,
            ),
        )
        check_all(found, {"prediction": logits, "c": logits.argmax(1)})
        assert found.schema["p"].dataType == VectorUDT()
    df = invalid(spark).withColumn("y", F.expr("if(id = 1, null, if(id = 3, double('nan'), 1.0))"))
    for column, valid in (("v", [0, 2, 3]), ("x", [0, 3]), ("y", [0, 2, 3])):
        added = (*outputs, DOUBLED) if column == "y" else outputs
        wanted = Inference(module=Twice(), inputs=column, outputs=added, handle_invalid="keep")
        kept = {row.id: row for row in apply(df, wanted).collect()}
        assert [n for n in range(4) if kept[n].p is not None] == valid
        assert np.isnan(kept[3].prediction[0])
        assert column != "y" or (kept[1].doubled is None and np.isnan(kept[3].doubled))
        with pytest.raises(Exception, match=f"column '{column}', a row: null; handleInvalid='skip'"):
            apply(df, replace(wanted, handle_invalid="error")).collect()
    single = sql.inference_udf(Inference(module=linear, inputs="array", outputs=PREDICTION))
    check(frame(spark).select("id", single("array").alias("p")), "p", logits)


# -- fitted models ---------------------------------------------------------------------------------


def test_classification_columns_are_those_of_sparks_own(spark, linear):
    from pyspark.ml.classification import LogisticRegression

    df = frame(spark).withColumn("label", (F.col("id") % 3).cast("double"))
    theirs = LogisticRegression(featuresCol="vector", maxIter=1).fit(df).transform(df)
    model = TorchClassificationModel.from_module(linear, example=torch.zeros(2, 4), featuresCol="vector")
    ours = model.transform(df)
    assert ours.columns == theirs.columns
    for name in ("rawPrediction", "probability", "prediction"):
        assert ours.schema[name].dataType == theirs.schema[name].dataType
        assert ours.schema[name].metadata == theirs.schema[name].metadata
    check_all(ours, {"prediction": plain(linear).argmax(1), "rawPrediction": plain(linear)})
    only = model.copy(
        {model.rawPredictionCol: "", model.probabilityCol: "", model.thresholds: [9.0, 9.0, 1e-6]}
    )
    found = only.transform(df)
    assert found.columns == [*df.columns, "prediction"]
    assert {row.prediction for row in found.collect()} == {2.0}


def test_regression_and_module_outputs(spark, linear):
    df = frame(spark)
    several = TorchRegressionModel.from_module(linear, example=torch.zeros(2, 4), featuresCol="array")
    assert several.transform(df).schema["prediction"].dataType.simpleString() == "array<double>"
    check(several.transform(df), "prediction", plain(linear))
    head = nn.Linear(4, 1)
    single = TorchRegressionModel.from_module(head, featuresCol="array")
    assert single.transform(df).schema["prediction"].dataType == T.DoubleType()
    check(single.transform(df), "prediction", plain(head))
    pair = TorchModel.from_module(Pair(), featuresCols=["array", "a"], outputCols=["sum", "grid"])
    found = pair.transform(df)  # looks at the first rows
    assert [found.schema[name].dataType.simpleString() for name in ("sum", "grid")] == [
        "double",
        "array<array<float>>",
    ]
    check_all(found, {"sum": VALUES.sum(1) + VALUES[:, 0], "grid": np.stack([VALUES, 2 * VALUES], 1)})
    assert pair.signature.outputs
    with pytest.raises(ConfigError, match="returns 2 tensors"):
        pair.copy({pair.outputCols: ["one"]}).transform(df)
    with pytest.raises(ConfigError, match="has no row without null"):
        TorchModel.from_module(Pair(), featuresCols=["array", "a"]).transform(df.limit(0))


def test_sql_functions(spark, linear):
    df = frame(spark)
    df.createOrReplaceTempView("rows")
    model = TorchClassificationModel.from_module(linear, featuresCol="vector")
    spark.udf.register("classify", model.asUdf())
    found = spark.sql("select id, classify(vector) as c, classify(array) as d from rows where id >= 0")
    check_all(found, dict.fromkeys("cd", plain(linear).argmax(1)))
    pair = TorchModel.from_module(
        Pair(),
        featuresCols=["x", "y"],
        outputCols=["sum", "grid"],
        example=(torch.zeros(2, 4), torch.zeros(2)),
    )
    spark.udf.register("pair", pair.asUdf())
    check(spark.sql("select id, pair(array, a).sum as s from rows"), "s", VALUES.sum(1) + VALUES[:, 0])
    grouped = spark.sql(
        "select classify(array) as c, count(*) as n from rows group by 1 order by 1"
    ).collect()
    classes, counts = np.unique(plain(linear).argmax(1), return_counts=True)
    assert [(row.c, row.n) for row in grouped] == list(zip(classes, counts, strict=True))
    with pytest.raises(ConfigError, match="what the module gives is not known"):
        TorchModel.from_module(nn.Identity()).asUdf()


@pytest.mark.parametrize("name", ["vector", "array"])
@pytest.mark.parametrize("by_columns", ["true", "false"])
def test_tables_read_from_parquet(spark, tmp_path, name, by_columns):
    """Spark reads them by columns, and from 4.3 on hands them over so, but not ML vectors."""
    values = [(float(n), Vectors.dense([float(n), 1.0]), [float(n), 1.0]) for n in range(10)]
    path = str(tmp_path / "rows")
    spark.createDataFrame(values, ["n", "vector", "array"]).coalesce(1).write.parquet(path)
    torch.manual_seed(0)
    module = nn.Linear(2, 3)
    model = TorchClassificationModel.from_module(
        module, featuresCol=name, example=np.ones((2, 2)), inferenceBatchSize=3
    )
    conf = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
    before = spark.conf.get(conf, None)
    spark.conf.set(conf, by_columns)
    try:
        found = model.transform(spark.read.parquet(path)).where("n > 2").collect()
    finally:
        spark.conf.unset(conf) if before is None else spark.conf.set(conf, before)
    assert [row.n for row in found] == list(range(3, 10))
    with torch.no_grad():
        expected = module(torch.tensor([row.array for row in found])).numpy()
    np.testing.assert_allclose([row.rawPrediction for row in found], expected, rtol=1e-6)

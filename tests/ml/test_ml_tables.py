"""Tables as they are: fitting an encoding, estimators on it, and all that becomes of their models."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import StringIndexer
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit
from pyspark.sql import GroupedData
from pyspark.sql import functions as F
from pyspark.sql import types as T
from support.serving import centred
from torch import nn
from torch.optim import SGD
from torchmetrics.classification import MulticlassAccuracy

from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.ml import (
    TabularEncoder,
    TabularEncoderModel,
    TorchClassificationModel,
    TorchClassifier,
    TorchEstimator,
    TorchRegressor,
    load,
)
from sparkdl.ml.estimators import tables
from sparkdl.ml.stages import tabular_fit
from sparkdl.nn import DLRM, DeepFM, Tabular
from sparkdl.serve import Predictor
from sparkdl.summary import JsonLines
from sparkdl.table.encoding import Category, Number, TableEncoding
from sparkdl.table.values import columns_of
from sparkdl.train.planning.request import Request, take

ROWS = 240
FEATURES = ["n", "few", "s", "b", "d", "t", "same"]
SCHEMA = (
    "n double, few int, s string, b boolean, d date, t timestamp, same string, y string, z double, id int"
)


def values() -> list[tuple[Any, ...]]:
    """Rows of every kind; the label follows from s and n, and nulls in n mean yes."""
    random = np.random.default_rng(0)
    rows = []
    for i in range(ROWS):
        n = None if i % 8 == 0 else float(random.normal(100, 20))
        s = None if i % 12 == 5 else ["red", "green", "blue"][int(random.integers(3))] if i else "rare"
        yes = n is None or (s == "red") != (n > 100)
        moment = datetime(2024, 1, 1, i % 24, tzinfo=UTC) + timedelta(days=i)
        rows.append(
            (
                *(n, i % 5, s, None if i % 9 == 0 else i % 2 == 0, moment.date(), moment, "x"),
                *("yes" if yes else "no", 3.0 * (s == "red") + (0 if n is None else n / 50), i),
            )
        )
    return rows


@pytest.fixture
def table(spark: Any) -> Any:
    return spark.createDataFrame(values(), SCHEMA).coalesce(2)


@cache
def _fitted(spark: Any) -> TorchClassificationModel:
    table = spark.createDataFrame(values(), SCHEMA).coalesce(2)
    est = TorchClassifier(featuresCols=FEATURES, labelCol="y", maxEpochs=12, learningRate=0.01, seed=1)
    model: TorchClassificationModel = est.fit(table)
    return model


@pytest.fixture
def fitted(spark: Any) -> TorchClassificationModel:
    """A classifier of the table, the same one for all tests."""
    return _fitted(spark)


# -- the encoding ------------------------------------------------------------------------------------


@pytest.mark.whole
def test_three_hundred_columns_are_summarised_by_the_plan_of_one(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).normal(5, 2, (240, 300))
    rows[:, 100:200] = np.round(rows[:, 100:200])
    rows[:, 200:] *= rows[:, 200:] > 6
    names = [f"x{n}" for n in range(300)]
    df = spark.createDataFrame(rows.tolist(), ", ".join(f"{name} double" for name in names)).coalesce(2)
    plans: list[int] = []
    agg = GroupedData.agg

    def counted(grouped: Any, *wanted: Any) -> Any:
        plans.append(len(wanted))
        return agg(grouped, *wanted)

    monkeypatch.setattr(GroupedData, "agg", counted)
    encoding = TabularEncoder(inputCols=names).fit(df).encoding
    assert plans == [8, 4, 4], "moments, knots, and knots where most rows have one value"
    for number, column in zip(encoding.numbers, rows.T, strict=True):
        assert number.mean == pytest.approx(column.mean(), rel=1e-12)
        assert number.deviation == pytest.approx(column.std(), rel=1e-12)
        knots = np.array(number.knots) * number.deviation + number.mean
        assert np.abs(knots[:, None] - column).min(axis=1).max() < 1e-5, "knots are values"
        assert knots[[0, -1]] == pytest.approx([column.min(), column.max()], abs=1e-4)
    assert [len(number.knots) for number in encoding.numbers[:100]] == [33] * 100
    values = [np.unique(column).size for column in rows[:, 100:200].T]
    assert [len(number.knots) for number in encoding.numbers[100:200]] == values


@pytest.mark.slow
def test_three_thousand_columns_fit_in_the_memory_of_a_driver(spark: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = {f"x{n}": random.normal(n, 1, 4000) for n in range(3000)}
    columns["y"] = columns["x0"] - columns["x2999"]
    pq.write_table(pa.table(columns), str(tmp_path / "wide.parquet"), row_group_size=1000)
    df = spark.read.parquet(str(tmp_path / "wide.parquet"))
    names = list(columns)[:-1]
    model = TorchRegressor(featuresCols=names, labelCol="y", maxIter=2).fit(df)
    means = [number.mean for number in model.encoding.numbers]
    np.testing.assert_allclose(means, [columns[name].mean() for name in names], rtol=1e-12)
    assert model.transform(df.limit(3)).where("prediction is not null").count() == 3


def test_an_encoding_follows_from_types_and_values(table: Any, tmp_path: Path) -> None:
    encoder = TabularEncoder(inputCols=FEATURES, minFrequency=2)
    model = encoder.fit(table)
    found = model.encoding
    rows = values()
    assert found.rows == ROWS
    assert found.left_out == {"same": "all rows have one value"}
    by_name = {number.column: number for number in found.numbers}
    assert list(by_name) == ["n", "few", "b", "d", "t"]
    n = np.array([row[0] for row in rows if row[0] is not None])
    assert by_name["n"].mean == pytest.approx(n.mean())
    assert by_name["n"].deviation == pytest.approx(n.std())
    assert [by_name[name].missing for name in by_name] == [True, False, True, False, False]
    assert by_name["few"].knots == pytest.approx(tuple((np.arange(5) - 2) / 2**0.5))
    knots = np.array(by_name["n"].knots) * n.std() + n.mean()
    np.testing.assert_allclose(knots[[0, 16, 32]], np.quantile(n, [0, 0.5, 1], method="lower"), rtol=0.01)
    assert by_name["b"].knots == ()
    counts = {s: sum(row[2] == s for row in rows) for s in ("red", "green", "blue")}
    ranked = tuple(sorted(counts, key=lambda s: (-counts[s], s)))
    assert found.categories[0] == Category("s", "string", ranked)
    parts = [(c.column, c.part) for c in found.categories[1:]]
    assert parts == [("d", "weekday"), ("d", "month"), ("t", "weekday"), ("t", "month"), ("t", "hour")]

    out = model.transform(table.withColumn("v", F.lit(1)))
    assert out.columns == [*table.columns, "v", "categories", "numbers"]
    got = out.orderBy("id").select("categories", "numbers").collect()
    plain = {name: [row[at] for row in rows] for at, name in enumerate(FEATURES)}
    expected = found.encode(columns_of(plain, found.columns))
    np.testing.assert_array_equal([row.categories for row in got], expected["categories"])
    np.testing.assert_allclose([row.numbers for row in got], expected["numbers"], atol=1e-6)
    assert got[0].categories[0] == 0, "rare"
    assert got[5].categories[0] == 1, "null"

    for stage in (encoder, model):
        stage.save(str(tmp_path / type(stage).__name__))
    again = load(str(tmp_path / "TabularEncoderModel"))
    assert isinstance(again, TabularEncoderModel)
    assert again.encoding == found
    assert again.extractParamMap() == model.extractParamMap()
    assert load(str(tmp_path / "TabularEncoder")).getMinFrequency() == 2
    with pytest.raises(DataError, match="categoriesCol 'categories' is in the DataFrame already"):
        model.transform(out)


def test_a_number_that_is_mostly_zero_has_knots_among_the_others(spark: Any) -> None:
    df = spark.range(1000).selectExpr("if(id < 900, 0, id) as gains", "cast(id as string) as key", "'a' as a")
    found = TabularEncoder(inputCols=["gains", "key", "a"]).fit(df).encoding
    (number,) = found.numbers
    knots = np.array(number.knots) * number.deviation + number.mean
    assert len(knots) == 34
    assert knots[0] == pytest.approx(0, abs=1e-3)
    assert knots[1] == pytest.approx(900, abs=1e-3)
    assert knots[-1] == pytest.approx(999, abs=1e-3)
    assert len(found.categories) == 1, "with 1,000 rows each value is frequent enough"
    few = TabularEncoder(inputCols=["gains", "key"], maxCategories=3).fit(df).encoding
    assert few.categories[0].values == ("0", "1", "10"), "equal counts in the order of the alphabet"
    rare = TabularEncoder(inputCols=["gains", "key"], minFrequency=2).fit(df).encoding
    assert rare.left_out == {"key": "none of its 1000 values is in 2 rows"}


def test_columns_of_several_aggregations_have_the_knots_of_one(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"id * {n} % 199 as x{n}" for n in (1, 5, 7)]
    df = spark.range(199).selectExpr("id % 3 as few", *many).coalesce(1)
    whole = TabularEncoder(inputCols=df.columns).fit(df).encoding
    assert [len(number.knots) for number in whole.numbers] == [3, 33, 33, 33]
    monkeypatch.setattr(tabular_fit, "_AT_ONCE", 2)
    assert TabularEncoder(inputCols=df.columns).fit(df).encoding == whole


def test_mistakes_in_a_table_are_named(spark: Any, table: Any) -> None:
    vectors = spark.createDataFrame([(Vectors.dense(1.0), float("inf"), "a")], ["v", "x", "a"])
    tiny = spark.range(2).selectExpr("id * 1e-200D AS t")
    for df, columns, problem in (
        (table, ["nn"], "features column 'nn' is not in the DataFrame"),
        (vectors, ["v"], "features column 'v' has type vector, which the encoding of a table does not know"),
        (vectors, ["x"], "features column 'x' holds infinite values"),
        (tiny, ["t"], "'t': its values, from 0.0 to 1e-200, are so close to 0 that their squares are lost"),
        (vectors, ["a"], r"no features column tells rows apart \(a: all rows have one value\)"),
        (table.limit(0), ["n"], "the DataFrame has no rows"),
    ):
        with pytest.raises(DataError, match=problem):
            TabularEncoder(inputCols=columns).fit(df)
    model = TabularEncoder(inputCols=["n", "s"]).fit(table)
    with pytest.raises(DataError, match="features column 'n' has type string: .* fitted on a number column"):
        model.transform(table.withColumn("n", F.lit("x")))


@pytest.mark.whole
def test_the_stage_works_in_pipelines_and_grids(table: Any, tmp_path: Path) -> None:
    encoder = TabularEncoder(inputCols=["n", "s"])
    est = TorchRegressor(module=Head, featuresCols=["categories", "numbers"], labelCol="z", maxIter=2)
    pipeline = Pipeline(stages=[encoder, est])
    grid = ParamGridBuilder().addGrid(est.learningRate, [1e-3, 1e-2]).build()
    tuned = TrainValidationSplit(
        estimator=pipeline, estimatorParamMaps=grid, evaluator=RegressionEvaluator(labelCol="z")
    ).fit(table)
    best = tuned.bestModel
    best.save(str(tmp_path / "pipeline"))
    with pytest.raises(ConfigError, match="Head"):
        PipelineModel.load(str(tmp_path / "pipeline"))
    again = load(str(tmp_path / "pipeline"), trust=[Head])
    expected, found = (m.transform(table).select("prediction").toPandas() for m in (best, again))
    np.testing.assert_array_equal(expected, found)


class Head(nn.Module):
    """A module that takes what the stage gives."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Tabular([6], 2)

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(categories, numbers)[:, 0]
        return found


# -- estimators ----------------------------------------------------------------------------------------


def test_a_classifier_of_a_table_has_labels(fitted: Any, table: Any) -> None:
    assert set(fitted.labels) == {"yes", "no"}
    yes = sum(row[7] == "yes" for row in values())
    assert fitted.labels == (("yes", "no") if yes >= ROWS / 2 else ("no", "yes"))
    assert isinstance(fitted.module, Tabular)
    assert fitted.getBatchSize() == 32
    assert fitted.numFeatures == len(FEATURES)
    out = fitted.transform(table)
    assert out.columns[-4:] == ["rawPrediction", "probability", "prediction", "predictedLabel"]
    assert out.schema["prediction"].metadata["ml_attr"]["vals"] == list(fitted.labels)
    rows = out.select("y", "prediction", "predictedLabel").collect()
    assert all(fitted.labels[int(row.prediction)] == row.predictedLabel for row in rows)
    assert np.mean([row.y == row.predictedLabel for row in rows]) > 0.9
    assert "predictedLabel" not in fitted.copy().setPredictedLabelCol("").transform(table).columns


def test_a_model_of_a_table_gives_the_same_everywhere(fitted: Any, table: Any, tmp_path: Path) -> None:
    expected = fitted.transform(table).orderBy("id").select("rawPrediction", "prediction").toPandas()
    raw = np.stack([vector.toArray() for vector in expected.rawPrediction])
    path = str(tmp_path / "model")
    fitted.save(path)
    again = TorchClassificationModel.load(path)
    assert again.labels == fitted.labels
    assert again.encoding == fitted.encoding
    found = again.transform(table).orderBy("id").select("rawPrediction").toPandas().rawPrediction
    np.testing.assert_array_equal(np.stack([vector.toArray() for vector in found]), raw)

    pandas = table.orderBy("id").toPandas()
    plain = {name: [row[at] for row in values()] for at, name in enumerate(FEATURES)}
    for predictor in (Predictor.load(path), fitted.predictor(batch_size=50)):
        assert predictor.labels == fitted.labels
        np.testing.assert_allclose(centred(predictor(plain)), raw, atol=1e-5)
        np.testing.assert_allclose(centred(predictor(**plain)), raw, atol=1e-5)
        first = pandas[["n", "few", "s", "b", "d"]].assign(t=plain["t"])
        np.testing.assert_allclose(centred(predictor(first)), raw, atol=1e-5)
    with pytest.raises(DataError, match="column 's' is missing; the model was fitted on n, few, "):
        predictor({name: plain[name] for name in plain if name != "s"})
    with pytest.raises(DataError, match="expected the columns of a table"):
        predictor(1.0)
    for missing in (FEATURES[0], "s"):
        with pytest.raises(DataError, match=f"'{missing}'"):
            fitted.transform(table.drop(missing))
    one = tuple(plain[name][7] for name in FEATURES)
    np.testing.assert_allclose(fitted.predictRaw(one).toArray(), raw[7], atol=1e-5)
    assert fitted.predict(one) == expected.prediction[7]

    spark = table.sparkSession
    spark.udf.register("judge", fitted.asUdf())
    table.createOrReplaceTempView("rows")
    judged = spark.sql(f"select judge({', '.join(FEATURES)}) as p from rows order by id").toPandas().p
    np.testing.assert_array_equal(judged, expected.prediction)


def test_a_saved_table_that_was_tampered_with_is_refused(fitted: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    fitted.save(str(path))
    (file,) = (path / "metadata").glob("part-*")
    metadata = json.loads(file.read_text())
    assert metadata["sparkdl"]["format"] == 3
    metadata["sparkdl"]["table"]["labels"] = ["no", "yes"][:: -1 if fitted.labels[0] == "no" else 1]
    file.write_text(json.dumps(metadata))
    for crc in (path / "metadata").glob(".*.crc"):
        crc.unlink()
    with pytest.raises(ConfigError, match="metadata is"):
        Predictor.load(str(path))


def test_a_regression_of_a_table_and_modules_that_take_one(table: Any, tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "run.jsonl")
    est = TorchRegressor(
        featuresCols=["n", "s"], labelCol="z", maxEpochs=20, learningRate=0.01, hooks=[lines]
    )
    model = est.fit(table)
    told = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[0])["settings"]
    assert (sorted(told["features"].strip("[]").split(", ")), told["label"]) == (["n", "s"], "[z]")
    assert (told["learning_rate"], told["loss"]) == (0.01, "squared_error")
    rmse = RegressionEvaluator(labelCol="z").evaluate(model.transform(table))
    assert rmse < 0.5
    assert model.module.output_mean[0] == pytest.approx(np.mean([row[8] for row in values()]), rel=1e-3)

    clicks = TorchClassifier(module=DeepFM, featuresCols=["n", "s"], labelCol="y", maxIter=2)
    clicks.setHyper(hidden=[8])
    found = clicks.fit(table)
    assert found.module.cardinalities == (6,)
    assert found.module.numbers == 2
    assert [spec.key for spec in found.signature.inputs] == ["categories", "numbers"]
    assert found.transform(table).where("predictedLabel is null").count() == 0


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Embedding(10, 2)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.row(b).sum(1) + a


def test_ids_that_are_doubles_are_an_error_that_names_the_column(table: Any) -> None:
    df = StringIndexer(inputCol="s", outputCol="s_id", handleInvalid="keep").fit(table).transform(table)
    est = TorchRegressor(module=Embed, featuresCols=["z", "s_id"], labelCol="z", maxIter=1)
    with pytest.raises(ModelError, match=r"features column 's_id': layer 'row'.*inputTypes"):
        est.fit(df)
    est.setInputTypes([None, "int64"]).fit(df)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"encode": "off"}, "column 's' has type string: turn strings into numbers first"),
        ({"featuresCols": ["s", "v"]}, "column 'v' has type array<double>, which the encoding"),
        ({"labelCol": "same"}, "label column 'same' holds 'x' in all rows: expected 2 to 1,000"),
        ({"labelCol": "zz"}, "label column 'zz' is not in the DataFrame"),
        ({"encode": "on", "inputNames": ["a"]}, "encode='on' and inputNames are both set"),
    ],
)
def test_what_cannot_be_learned_is_said_before_any_job(
    table: Any, params: dict[str, Any], problem: str
) -> None:
    df = table.withColumn("v", F.array(F.lit(1.0)))
    est = TorchClassifier(**{"featuresCols": ["s"], "labelCol": "y", **params})
    with pytest.raises((ConfigError, DataError), match=problem):
        est.fit(df)


def test_null_labels_are_an_error_or_left_out(table: Any) -> None:
    df = table.withColumn("y", F.when(F.col("id") != 3, F.col("y")))
    est = TorchClassifier(featuresCols=["n", "s"], labelCol="y", maxEpochs=1)
    with pytest.raises(DataError, match="column 'y': null in 1 row; .*handleInvalid='skip'"):
        est.fit(df)
    model = est.setHandleInvalid("skip").setValidationFraction(0.2).fit(df)
    assert sum(model.summary.history.column("samples")) < ROWS - 1
    assert model.summary.scores
    assert model.transform(df).count() == ROWS, "null features are values"


# -- without a JVM -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "size"), [(0, 32), (3_000, 32), (10_000, 128), (50_000, 512), (10**9, 1024)]
)
def test_larger_tables_have_larger_batches(rows: int, size: int) -> None:
    assert tables.batch_size(rows) == size


def test_the_rate_falls_to_zero_over_a_fit() -> None:
    encoding = TableEncoding((Number("a", "number", 0, 1),), (), {}, 1000)
    est = TorchClassifier(maxEpochs=3)
    found = tables.training(est, encoding, nn.Identity())
    assert found["batch_size"] == 32
    assert found["schedule"].factory.keywords["total_iters"] == 3 * 32
    limited = tables.training(est.copy().setMaxIter(5), encoding, nn.Identity())
    assert limited["schedule"].factory.keywords["total_iters"] == 5
    own = est.copy().setBatchSize(7).setOptimizer(torch.optim.SGD)
    assert tables.training(own, encoding, nn.Identity()) == {"batch_size": 7}


def test_a_plan_for_more_rows_has_the_batch_of_their_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = TableEncoding((Number("a", "number", 0, 1),), (), {}, 1000)
    request = Request(kind="plan", answer="unused", rows=1_000_000)
    monkeypatch.setenv(*next(iter(request.variable().items())))
    planned = tables.training(TorchClassifier(), encoding, nn.Identity())
    assert take() == request, "it is still there for the fit"
    real = tables.training(TorchClassifier(), replace(encoding, rows=1_000_000), nn.Identity())
    assert planned["batch_size"] == real["batch_size"] == 1024
    assert tables.training(TorchClassifier(), encoding, nn.Identity())["batch_size"] == 32
    totals = [found["schedule"].factory.keywords["total_iters"] for found in (planned, real)]
    assert totals[0] == totals[1]


def test_the_module_of_few_rows_drops_more() -> None:
    encoding = TableEncoding((Number("a", "number", 0, 1),), (), {}, 4999)
    assert tables.of_default(encoding, 2) == {
        "numbers": 1,
        "knots": [[]],
        "cardinalities": [],
        "outputs": 2,
    } | {"dropout": 0.3}
    est = TorchClassifier()
    few, _ = est._build(Tabular, **tables.of_default(encoding, 2))
    many, _ = est._build(Tabular, **tables.of_default(replace(encoding, rows=5000), 2))
    own, _ = est.setHyper(dropout=0.0)._build(Tabular, **tables.of_default(encoding, 2))
    assert (few.dropout, many.dropout, own.dropout) == (0.3, Tabular(numbers=1).dropout, 0.0)


def test_factories_are_told_what_they_ask_for() -> None:
    encoding = TableEncoding((Number("a", "number", 0, 1),), (Category("b", "string", ("x",)),), {}, 9)
    known = {"cardinalities": [3], "numbers": 1}
    assert tables.layout(encoding, DeepFM, outputs=2) == known
    assert tables.layout(encoding, Tabular, outputs=2) == {**known, "knots": [[]], "outputs": 2}
    assert tables.layout(encoding, partial(DeepFM, numbers=0)) == {"cardinalities": [3]}
    assert tables.layout(encoding, DeepFM([3])) == {}
    inputs: Any = tables.inputs_of(encoding, DLRM)
    assert list(inputs) == ["categories", "numbers"]
    assert isinstance(tables.inputs_of(encoding, None), list)


def test_params_of_an_encoding_are_refused_where_there_is_none() -> None:
    table: Any = SimpleNamespace(schema=T.StructType().add("n", T.DoubleType()).add("v", VectorUDT()))
    for name, least in (("maxCategories", 2), ("minFrequency", 2)):
        for chosen in (
            {"featuresCol": "v"},
            {"featuresCols": ["n"], "encode": "off"},
            {"featuresCols": ["n"], "module": nn.Linear(1, 2)},
        ):
            est = TorchClassifier(**chosen, **{name: least})
            with pytest.raises(ConfigError, match=f"^{name} is set, but no column is encoded"):
                tables.encodes(est, table)
            est.clear(est.getParam(name))
            assert not tables.encodes(est, table)
        assert tables.encodes(TorchClassifier(featuresCols=["n"], **{name: least}), table)


def test_params_that_are_given_none_are_left_open() -> None:
    """With ``inputTypes=None`` the strings of a table were no categories any more."""
    table: Any = SimpleNamespace(schema=T.StructType().add("n", T.DoubleType()).add("s", T.StringType()))
    nothing: dict[str, Any] = dict.fromkeys(("inputNames", "inputShapes", "inputTypes", "minFrequency"))
    for encode in ("auto", "on"):
        assert tables.encodes(TorchClassifier(featuresCols=["n", "s"], encode=encode, **nothing), table)
    assert not tables.encodes(TorchClassifier(featuresCols=["n"], encode="off", **nothing), table)
    module = {"module": nn.Linear(1, 2)}
    assert not tables.encodes(TorchClassifier(featuresCols=["n"], **module, **nothing), table)
    built = SGD(module["module"].parameters(), lr=0.1)
    TorchClassifier(optimizer=built, learningRate=None, **module)._check()  # type: ignore[arg-type]


def test_a_classifier_of_a_table_has_nothing_to_leave_unstandardised() -> None:
    encoding = TableEncoding((Number("a", "number", 0, 1),), (), {}, 9)
    rows: Any = SimpleNamespace(encoding=encoding)
    with pytest.raises(ConfigError, match=r"^standardization=False: numbers of a table .* encode='off'"):
        TorchClassifier(standardization=False)._build_default(rows, 2)
    module, _ = TorchRegressor(standardization=False)._build_default(rows, ())
    assert isinstance(module, Tabular)  # whose labels are those of the rows


def test_an_estimator_without_a_module_of_its_own_says_so(table: Any) -> None:
    with pytest.raises(ConfigError, match=r"module|loss"):
        TorchEstimator(featuresCols=["n", "s"], labelCol="z").fit(table)


def test_loss_and_metrics_of_a_table(fitted: Any, table: Any) -> None:
    found = fitted.transform(table).select("y", "predictedLabel", "probability").collect()
    scores = fitted.evaluate(table, MulticlassAccuracy(2, average="micro"))
    assert scores["multiclass_accuracy"] == pytest.approx(np.mean([r.y == r.predictedLabel for r in found]))
    right = [r.probability[fitted.labels.index(r.y)] for r in found]
    assert scores["loss"] == pytest.approx(-np.mean(np.log(right)), rel=1e-4)
    with pytest.raises(DataError, match=r"holds 'perhaps', for which the model has no class"):
        fitted.evaluate(table.withColumn("y", F.lit("perhaps")))


# -- with other rows -----------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_fit_on_other_rows_keeps_what_numbers_mean(spark: Any, tmp_path: Path) -> None:
    """The other rows have other frequencies, so their own encoding would give other numbers."""

    def day(cooks: int, nurses: int) -> Any:
        rows = [("cook", 30.0 + i % 9, "yes") for i in range(cooks)]
        rows += [("nurse", 40.0 + i % 7 if i % 5 else None, "no") for i in range(nurses)]
        return spark.createDataFrame(rows, "job string, age double, y string").coalesce(1)

    first, second = day(90, 60), day(50, 250)
    path = str(tmp_path / "run")
    est = TorchClassifier(featuresCols=["job", "age"], labelCol="y", learningRate=0.02, checkpointPath=path)
    before = est.copy().setMaxEpochs(6).setWarmStartFrom(path).fit(first)  # nothing is there yet
    after = est.copy().setMaxEpochs(2).setWarmStartFrom(path).fit(second)

    assert before.labels == after.labels == ("yes", "no")
    assert after.encoding == replace(before.encoding, rows=300)
    assert after.encoding.categories[0].values == ("cook", "nurse")
    lr = after.summary.history.column("lr")
    done, more = 6 * 5, 2 * 10  # iterations of 32 rows
    assert len(lr) == done + more
    np.testing.assert_allclose(lr[done:], 0.02 * (1 - np.arange(more) / more), rtol=1e-9)  # falls anew
    for rows in (first, second):
        assert rows.count() == after.transform(rows).where("y = predictedLabel").count()

    # what was interrupted goes on with the same rows, and the rate goes on to fall
    again = est.copy().setMaxEpochs(3).setResume(True).fit(second)
    assert again.encoding == after.encoding
    assert again.summary.history.column("lr")[-1] == pytest.approx(0.02 / 30)

    with pytest.raises(
        DataError, match=r"holds 'perhaps', for which the model has no class; .* for yes, no\."
    ):
        est.copy().setWarmStartFrom(path).fit(second.withColumn("y", F.lit("perhaps")))
    wider = est.copy().setFeaturesCols(["job", "age", "city"]).setWarmStartFrom(path)
    with pytest.raises(ConfigError, match=r"'city' was not among the columns of the run before"):
        wider.fit(second.withColumn("city", F.lit("x")))
    with pytest.raises(ConfigError, match=r"'age' is missing, which the run before had"):
        est.copy().setFeaturesCols(["job"]).setWarmStartFrom(path).fit(second)
    for rows, message in (
        (second.withColumn("y", F.col("y") == "yes"), r"'y' holds no strings, .* were strings \(yes, no\)"),
        (second.withColumn("age", F.lit(float("inf"))), r"'age' holds infinite values"),
        (second.drop("age"), r"'age' is not in the DataFrame; it has job, y"),
        (second.drop("y"), r"'y' is not in the DataFrame; it has age, job \["),
        (second.withColumn("age", F.array("age")), r"'age' has type array<double>, which the encoding"),
        (second.where("false"), r"has no rows|holds no labels"),
    ):
        for warm in (path, str(tmp_path / "none")):
            fitting = est.copy().setCheckpointPath(warm).setWarmStartFrom(warm)
            if warm == path or "strings" not in message:  # the first fit takes any labels
                with pytest.raises(DataError, match=message):
                    fitting.fit(rows)


def test_a_checkpoint_that_does_not_tell_what_numbers_mean(spark: Any, tmp_path: Path) -> None:
    rows = spark.createDataFrame(
        [(float(i), float(i % 2), "ab"[i % 2]) for i in range(8)], "x double, y double, s string"
    )
    path = str(tmp_path / "run")
    plain = TorchClassifier(featuresCols=["x"], encode="off", labelCol="y", checkpointPath=path, maxIter=1)
    plain.fit(rows)
    for labelled, what in (
        (plain.copy().setEncode("auto"), "what became of the table's columns"),
        (plain.copy().setLabelCol("s"), "which label is which"),
    ):
        with pytest.raises(ConfigError, match=f"the checkpoint does not tell {what}"):
            labelled.setWarmStartFrom(path).fit(rows)
    plain.copy().setWarmStartFrom(path).fit(rows)

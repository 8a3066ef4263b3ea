"""Rows that no model can be made of: the estimators name column and row, before long work."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.exceptions import DataError
from sparkdl.ml import (
    TabularEncoder,
    TextIndexer,
    TimeSeriesEstimator,
    TorchClassifier,
    TorchEstimator,
    TorchRegressor,
)
from sparkdl.ml.estimators import fitting
from sparkdl.nn.losses import squared_error
from sparkdl.recsys import with_hash

SCHEMA = T.StructType([T.StructField("x", VectorUDT()), T.StructField("y", T.DoubleType())])
GOOD = [(Vectors.dense(float(i), 1.0), float(i % 2)) for i in range(8)]


def table(spark: Any, *more: Any, first: bool = False) -> Any:
    rows = [*more, *GOOD] if first else [*GOOD, *more]
    return spark.createDataFrame(rows, SCHEMA).coalesce(1)


def classifier(**params: Any) -> TorchClassifier:
    return TorchClassifier(featuresCol="x", labelCol="y", maxIter=1, **params)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((None, 1.0), "column 'x', row ROW of input partition 0: null; drop or fill nulls"),
        (
            (Vectors.dense(1.0, float("nan")), 1.0),
            "column 'x', row ROW of input partition 0: nan is not a fin",
        ),
        (
            (Vectors.dense(1.0, float("-inf")), 1.0),
            "column 'x', row ROW of input partition 0: -inf is not a fi",
        ),
        ((Vectors.dense(1.0, 1e300), 1.0), "column 'x', row ROW of input partition 0: 1e.300 is not a fi"),
        ((Vectors.dense(1.0), 1.0), "column 'x', row .* of input partition 0: array of . values where other"),
        (
            (Vectors.dense(1.0, 1.0), float("inf")),
            r"label column 'y' holds inf \(1 such rows\): expected integ",
        ),
        ((Vectors.dense(1.0, 1.0), -1.0), r"label column 'y' holds -1.0 \(1 such rows\): expected integers"),
        (
            (Vectors.dense(1.0, 1.0), 3e6),
            r"label column 'y' holds 3000000, which would make 3000001 classes; up",
        ),
    ],
)
def test_a_bad_row_of_a_default_module_is_named(spark: Any, row: Any, message: str) -> None:
    with pytest.raises(DataError, match=message.replace("ROW", str(len(GOOD)))):
        classifier().fit(table(spark, row))


@pytest.mark.parametrize(
    "first", [pytest.param(True, marks=pytest.mark.whole), False], ids=["first row", "a later row"]
)
def test_null_vectors_are_named_or_left_out_in_fit_and_transform(spark: Any, first: bool) -> None:
    df = table(spark, (None, 1.0), first=first)
    with pytest.raises(DataError, match="column 'x'.*null"):
        TorchRegressor(featuresCol="x", labelCol="y", maxIter=1, standardization=False).fit(df)
    model = classifier(handleInvalid="skip").fit(df)
    assert model.transform(df).count() == len(GOOD)
    kept = [row.prediction for row in model.setHandleInvalid("keep").transform(df).collect()]
    assert [value is None for value in kept] == [first, *[False] * 7, not first]
    with pytest.raises(Exception, match="column 'x', row . of partition 0: null; handleInvalid="):
        model.setHandleInvalid("error").transform(df).collect()


def test_a_null_vector_among_labels_is_named(spark: Any) -> None:
    schema = T.StructType([T.StructField("f", T.DoubleType()), T.StructField("t", VectorUDT())])
    df = spark.createDataFrame([(float(n), x) for n, (x, _) in enumerate(GOOD)] + [(-1.0, None)], schema)
    with pytest.raises(DataError, match="column 't': null in 1 row"):
        TorchRegressor(featuresCols=["f"], labelCol="t", maxIter=1).fit(df.coalesce(1))


def test_weights_are_one_number_per_row(spark: Any) -> None:
    df = table(spark).withColumn("w", F.array(F.lit(1.0)))
    with pytest.raises(
        DataError, match=r"weight column 'w' has type array<double>; expected one number per row"
    ):
        classifier(weightCol="w").fit(df)
    with pytest.raises(DataError, match="weight column 'x' has type vector"):
        classifier(weightCol="x").fit(df)


def test_more_classes_than_are_inferred_can_be_told(spark: Any) -> None:
    df = table(spark, (Vectors.dense(1.0, 1.0), 1500.0))
    assert classifier().setHyper(outputs=1501, hidden=[]).fit(df).numClasses == 1501
    classes = {"ml_attr": {"type": "nominal", "num_vals": 1501}}
    nominal = df.select("x", F.col("y").alias("y", metadata=classes))
    assert classifier().setHyper(hidden=[]).fit(nominal).numClasses == 1501
    with pytest.raises(DataError, match="holds 1500, which would make 1501 classes.*setHyper.outputs=1501"):
        fitting.infer_classes(df, "y")


def test_names_that_spark_does_not_tell_apart(spark: Any) -> None:
    df = table(spark)
    model = classifier().fit(df)
    doubled = df.select("*", F.lit(1.0).alias("X"))
    for act in (classifier().fit, model.transform):
        with pytest.raises(
            DataError, match="features column 'x' is ambiguous: the DataFrame has 'x' and 'X'"
        ):
            act(doubled)
    with pytest.raises(DataError, match="output column 'prediction' is in the DataFrame already"):
        model.transform(df.withColumn("Prediction", F.lit(1)))
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert model.transform(doubled).count() == len(GOOD)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.skipif(not hasattr(T.StringType(), "collation"), reason="Spark 4 brought collations")
def test_strings_of_which_a_collation_takes_some_for_one(spark: Any) -> None:
    """A panel had two series, of which a backtest made one; an encoding had two categories."""
    df = spark.range(4).selectExpr(
        "collate(IF(id < 2, 'a', 'A'), 'UTF8_LCASE') AS s", "array(s) AS w", "id AS t", "double(id) AS n"
    )
    assert df.select("s").distinct().count() == 1 < len({row.s for row in df.collect()})
    series = TimeSeriesEstimator(idCol="s", timeCol="t", labelCol="n", horizon=1, frequency="1")
    for act, what in (
        (series.fit, "id column 's'"),
        (TorchRegressor(featuresCols=["s", "n"], labelCol="t").fit, "features column 's'"),
        (TabularEncoder(inputCols=["s", "n"]).fit, "features column 's'"),
        (TorchClassifier(featuresCols=["n"], labelCol="s", encode="off").fit, "label column 's'"),
        (TextIndexer(inputCol="w", outputCol="i").fit, "inputCol 'w': its element"),
    ):
        with pytest.raises(DataError, match=f"{what} has type string collate UTF8_LCASE.* cast it to STRING"):
            act(df)
    for name in ("s", "w"):
        with pytest.raises(DataError, match=f"with_hash: column '{name}' has type string collate UTF8_LCASE"):
            with_hash(df, "i", name)
    binary = df.withColumn("s", F.expr("CAST(s AS STRING COLLATE UTF8_BINARY)"))
    assert with_hash(binary, "i", "s").select("i").distinct().count() == 2


def test_streams_and_tables_of_other_kinds(spark: Any) -> None:
    stream = spark.readStream.format("rate").load()
    estimator = TorchEstimator(module=None, loss=squared_error, featuresCol="value", labelCol="value")
    with pytest.raises(DataError, match=r"TorchEstimator.fit: the DataFrame is a stream.*foreachBatch"):
        estimator.fit(stream)
    frame = table(spark).select("y").toPandas()
    for found in (frame, frame.to_dict()):
        with pytest.raises(DataError, match=r"TorchEstimator.fit: found a .*, expected a Spark DataFrame"):
            estimator.fit(found)
    with pytest.raises(DataError, match=r"TorchClassificationModel.transform: found a pandas"):
        classifier().fit(table(spark)).transform(frame)

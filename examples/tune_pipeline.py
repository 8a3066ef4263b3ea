"""Tune a pipeline: Spark's CrossValidator over the hyper-parameters of a network.

    pip install 'sparkdl[examples]'
    python examples/tune_pipeline.py --master 'local[2]'

The pipeline scales handwritten digits, which come with scikit-learn, and classifies them with the multilayer
perceptron that TorchClassifier is without a module. Params of Spark ML and arguments of the network are tuned
alike: ``classifier.hyper("hidden")`` is a Param for the argument ``hidden`` of :class:`sparkdl.nn.MLP`.
"""

from __future__ import annotations

import argparse

from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sklearn.datasets import load_digits

from sparkdl import TorchClassifier, session


def read_digits(spark: SparkSession, rows: int | None) -> tuple[DataFrame, DataFrame]:
    """Return rows of pixels (a vector) and label, four fifths to train on and one to test with."""
    pixels, labels = load_digits(return_X_y=True)
    table = [(row.tolist(), int(label)) for row, label in zip(pixels[:rows], labels, strict=False)]
    frames = []
    for part in ([row for index, row in enumerate(table) if index % 5], table[::5]):
        df = spark.createDataFrame(part, "values array<double>, label int")
        frames.append(df.select(array_to_vector(F.col("values")).alias("pixels"), "label").cache())
    return frames[0], frames[1]


def tuner(args: argparse.Namespace) -> CrossValidator:
    """Return the search: a pipeline, a grid, and folds to judge each point by."""
    scaler = StandardScaler(inputCol="pixels", outputCol="features", withMean=True)
    classifier = TorchClassifier(maxEpochs=args.epochs, batchSize=args.batch_size, seed=args.seed)
    grid = (
        ParamGridBuilder()
        .addGrid(classifier.hyper("hidden"), [[16], [128]])
        .addGrid(classifier.learningRate, [1e-3, 1e-2])
        .build()
    )
    return CrossValidator(
        estimator=Pipeline(stages=[scaler, classifier]),
        estimatorParamMaps=grid,
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        numFolds=args.folds,
        parallelism=args.parallelism,
        seed=args.seed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune a classifier of digits with Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--rows", type=int, help="rows to use at most; all 1,797 by default")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--parallelism", type=int, default=2, help="fits at the same time")
    parser.add_argument("--batch-size", type=int, default=200, help="rows per iteration, over all executors")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="tuning").getOrCreate()
    train, test = read_digits(spark, args.rows)
    search = tuner(args)
    tuned = search.fit(train)
    accuracy = search.getEvaluator().evaluate(tuned.transform(test))
    points = search.getEstimatorParamMaps()
    for score, point in sorted(zip(tuned.avgMetrics, points, strict=True), key=lambda found: -found[0]):
        values = ", ".join(f"{param.name}={value}" for param, value in point.items())
        print(f"validation_accuracy={score:.4f} with {values}")
    spark.stop()
    print(f"test_accuracy={accuracy:.4f}")
    print(f"best_accuracy={max(tuned.avgMetrics):.4f}")


if __name__ == "__main__":
    main()

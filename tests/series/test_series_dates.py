"""Dates of steps, against the calendars of pandas and dateutil; without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dateutil.relativedelta import relativedelta

from sparkdl.ml.series.forecast import ForecastTask
from sparkdl.series.frequency import Frequency
from sparkdl.series.layout import PanelLayout


def forecast(
    times: Sequence[Any], frequency: str, horizon: int = 6, origins: tuple[int, ...] = (), **more: Any
) -> pd.DataFrame:
    """Return the rows that a task makes of the rows of one series."""
    layout = PanelLayout(
        id="id", time="time", target="y", frequency=Frequency.of(frequency), steps=2, horizon=horizon
    )
    count = len(times)
    columns = {
        "__hash": np.zeros(count, np.int64),
        "__id": ["a"] * count,
        "__time": pd.DatetimeIndex(times).to_numpy().astype("datetime64[us]").astype(np.int64),
        "target": np.arange(1.0, count + 1),
        **more,
    }
    task = ForecastTask(lambda values: np.repeat(values[-1], horizon), layout, ("f",), None, 1, 10, origins)
    (found,) = task(iter(pa.table(columns).to_batches()))
    return found.to_pandas()


def shown(found: pd.DataFrame, column: str = "time") -> list[datetime]:
    return [time.to_pydatetime() for time in pd.to_datetime(found[column], unit="us")]


@pytest.mark.parametrize("day", [1, 15, 27, 28, 29, 30])
@pytest.mark.parametrize(("frequency", "months"), [("M", 1), ("2M", 2), ("Q", 3), ("Y", 12)])
def test_a_day_of_the_month_stays_whatever_month_a_series_ends_in(
    day: int, frequency: str, months: int
) -> None:
    """On the 28th to the 30th a series passes ends of months, and is not at their end."""
    start = datetime(2023, 1, day, 6)
    every = [start + relativedelta(months=months * step) for step in range(40)]
    for length in range(2, 30):
        assert shown(forecast(every[:length], frequency)) == every[length : length + 6], length


@pytest.mark.parametrize(("frequency", "alias"), [("M", "ME"), ("Q", "QE"), ("Q", "QE-NOV"), ("Y", "YE-FEB")])
def test_ends_of_months_stay_ends_of_months(frequency: str, alias: str) -> None:
    """Of the leap day, too: a series of the ends of February is on the 28th in three of four years."""
    every = list(pd.date_range("2019-01-15", periods=40, freq=alias).to_pydatetime())
    for length in range(1, 30):
        assert shown(forecast(every[:length], frequency)) == every[length : length + 6], length


def test_most_times_decide_on_the_day() -> None:
    """One late row moves no others; its own date is shown for what is past."""
    every = [date(2024, 1, 15) + relativedelta(months=step) for step in range(12)]
    late = [*every[:5], date(2024, 6, 17), *every[6:8]]
    assert [time.date() for time in shown(forecast(late, "M", 3))] == every[8:11]
    past = forecast(late, "M", 3, origins=(3,))
    assert [time.date() for time in shown(past)] == late[5:]
    assert [time.date() for time in shown(past, "cutoff")] == [late[4]] * 3


@pytest.mark.parametrize(("frequency", "alias"), [("M", "MS"), ("W", "W-WED"), ("D", "D"), ("Y", "YS")])
def test_forecasts_of_the_past_have_the_dates_of_the_rows(frequency: str, alias: str) -> None:
    """And those of steps without a row have the dates between them."""
    every = list(pd.date_range("2024-01-03", periods=20, freq=alias).to_pydatetime())
    kept = [time for step, time in enumerate(every[:16]) if step not in (9, 13)]
    found = forecast(kept, frequency, 4, origins=(8, 4))
    assert shown(found) == every[8:12] + every[12:16]
    assert shown(found, "cutoff") == [every[7]] * 4 + [every[11]] * 4


def test_rows_to_come_show_their_dates() -> None:
    """Rows after the last value are the future; theirs are the dates of the forecast."""
    times = [date(2024, 1, 31), date(2024, 2, 29), date(2024, 3, 31), date(2024, 4, 29)]
    found = forecast(times, "M", 3, target=[1.0, 2.0, None, None])
    assert [time.date() for time in shown(found)] == [*times[2:], date(2024, 5, 31)]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "America/Havana", "UTC"])
@pytest.mark.parametrize(("frequency", "alias"), [("D", "D"), ("W", "W-SUN"), ("M", "MS"), ("Q", "QE")])
def test_steps_on_the_clock_of_a_zone(zone: str, frequency: str, alias: str) -> None:
    """Rows keep their instant, and what follows is on the zone's clock, as pandas has it."""
    clock = pd.date_range("2024-01-01", periods=320, freq=alias)
    local = clock.tz_localize(zone, nonexistent="shift_forward", ambiguous=True)
    instants = local.tz_convert("UTC").tz_localize(None)
    walls = local.tz_localize(None)
    micros = walls.to_numpy().astype("datetime64[us]").astype(np.int64)
    found = forecast(instants[:312].to_list(), frequency, 8, __clock=micros[:312])
    assert shown(found) == list(clock[312:].to_pydatetime())
    assert found.time_instant.isna().all()
    past = forecast(instants[:312].to_list(), frequency, 8, origins=(300,), __clock=micros[:312])
    assert pd.to_datetime(past.time_instant, unit="us").tolist() == instants[12:20].tolist()
    assert pd.to_datetime(past.cutoff_instant, unit="us").tolist() == [instants[11]] * 8


@pytest.mark.parametrize(("frequency", "alias", "last"), [("D", "D", 69), ("W", "W-SUN", 9), ("M", "MS", 12)])
def test_midnights_go_on_after_one_that_a_clock_skips(frequency: str, alias: str, last: int) -> None:
    """Of 10 March 2024 in Havana, and of 1 October 2017 in Asuncion, whose first hour is 1 o'clock."""
    zone, start = ("America/Asuncion", "2016-10-01") if frequency == "M" else ("America/Havana", "2024-01-01")
    clock = pd.date_range(start, periods=last + 10, freq=alias)
    local = clock.tz_localize(zone, nonexistent="shift_forward")
    micros = local.tz_localize(None).to_numpy().astype("datetime64[us]").astype(np.int64)
    instants = local.tz_convert("UTC").tz_localize(None)
    assert (local.hour == 1).nonzero()[0].tolist() == [last]
    for length in (last, last + 1, last + 2):
        found = forecast(instants[:length].to_list(), frequency, 8, __clock=micros[:length])
        assert shown(found) == list(clock[length : length + 8].to_pydatetime())
    gap = [*range(last + 1), *range(last + 4, last + 8)]  # no rows after it
    past = forecast(instants[gap].to_list(), frequency, 2, origins=(7,), __clock=micros[gap])
    assert shown(past) == list(clock[last + 1 : last + 3].to_pydatetime())


def test_times_of_day_without_a_usual_one_follow_the_last_row() -> None:
    times = [datetime(2024, 1, day, 6 + day % 3) for day in range(1, 10)]
    assert shown(forecast(times, "D", 1)) == [datetime(2024, 1, 10, 6)]
    late = [*(datetime(2024, 1, day) for day in range(1, 9)), datetime(2024, 1, 8, 23, 50)]
    assert shown(forecast(late, "D", 1)) == [datetime(2024, 1, 10)]  # it was the row of 9 January

"""Steps, grids and scales, against plain numpy; without Spark."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sparkdl.exceptions import ConfigError, DataError
from sparkdl.series.frequency import Frequency
from sparkdl.series.grid import on_grid, scaled
from sparkdl.series.layout import PanelLayout
from sparkdl.series.scaling import scale_of


def micros(*times: str) -> Any:
    return np.array(times, "datetime64[us]").astype(np.int64)


def layout(**more: Any) -> PanelLayout:
    given = {"frequency": Frequency.of("1"), "steps": 3, "horizon": 2, **more}
    return PanelLayout(id="id", time="time", target="y", **given)


def rows(time: Any, target: Any, **groups: Any) -> dict[str, Any]:
    count = len(target)
    empty = {name: np.empty((count, 0)) for name in ("past", "known", "static")}
    return {"time": np.asarray(time, np.int64), "target": np.asarray(target, float), **empty, **groups}


@pytest.mark.parametrize("text", ["s", "15min", "h", "D", "2W", "M", "Q", "Y", "3M"])
def test_the_times_after_are_those_of_pandas(text: str) -> None:
    aliases = {"M": "MS", "Q": "QS", "Y": "YS", "W": "W-WED"}
    unit = text.lstrip("0123456789")
    alias = text.replace(unit, aliases.get(unit, unit))
    times = (
        pd.date_range("2023-11-01", periods=30, freq=alias)
        .to_numpy()
        .astype("datetime64[us]")
        .astype(np.int64)
    )
    frequency = Frequency.of(text)
    assert (frequency.steps(times) == np.arange(30)).all()
    assert (frequency.after(int(times[4]), np.arange(1, 26), frequency.day(times)) == times[5:]).all()


def test_the_last_day_of_a_month_stays_the_last_one() -> None:
    ends = (
        pd.date_range("2023-10-31", periods=14, freq="ME")
        .to_numpy()
        .astype("datetime64[us]")
        .astype(np.int64)
    )
    frequency = Frequency.of("M")
    assert (frequency.steps(ends) == np.arange(14)).all()
    assert (frequency.after(int(ends[0]), np.arange(1, 14), frequency.day(ends)) == ends[1:]).all()
    (kept,) = frequency.after(int(micros("2024-01-30T06:00")[0]), np.array([1]), 30)
    assert np.datetime64(int(kept), "us").item() == datetime(2024, 2, 29, 6)


def test_a_time_belongs_to_the_nearest_step() -> None:
    """Midnights of a clock that shifts by an hour are a day apart all the same, before 1970 too."""
    times = micros("1958-03-28T23:00", "1958-03-29T22:00", "1958-03-30T22:00", "1958-04-01T22:30")
    assert Frequency.of("D").steps(times).tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize("text", ["", "x", "0D", "D15", "1.5h", None])
def test_what_is_no_frequency_is_an_error(text: Any) -> None:
    with pytest.raises(ConfigError, match="frequency="):
        Frequency.of(text)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        *(("D", True), ("2W", True), ("M", True), ("Q", True), ("Y", True), ("24h", True), ("48h", True)),
        *(
            ("1440min", True),
            ("86400s", True),
            ("h", False),
            ("12h", False),
            ("36h", False),
            ("90min", False),
        ),
    ],
)
def test_dates_tell_steps_apart_that_are_whole_days(text: str, whole: bool) -> None:
    assert Frequency.of(text).whole_days is whole


def test_seasons() -> None:
    assert [Frequency.of(t).season for t in ("h", "D", "W", "M", "Q", "Y", "3M", "1")] == [
        24,
        7,
        52,
        12,
        4,
        1,
        4,
        1,
    ]


@pytest.mark.parametrize("text", ["2D", "3D", "5h", "5M", "3Q", "2Y", "90min", "2"])
def test_steps_that_no_season_is_a_multiple_of_have_none(text: str) -> None:
    """As `get_seasonality` of GluonTS has it: three steps of two days are no week."""
    assert Frequency.of(text).season == 1


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("linear", [1, 2, 3, 4, 7]), ("previous", [1, 1, 1, 4, 7]), ("zero", [1, 0, 0, 4, 7])],
)
def test_gaps_are_filled_as_the_rule_says(missing: str, expected: list[float]) -> None:
    """Null, missing rows, what comes before the first value, and the future after the last one."""
    nan = np.nan
    found = on_grid("a", rows([5, 6, 7, 9, 10, 11], [nan, 1, nan, 4, 7, nan]), layout(missing=missing))
    assert found.target.tolist() == expected
    assert found.observed.tolist() == [True, False, False, True, True]
    assert found.dates.clock[: len(found)].tolist() == [6, 7, 8, 9, 10]


def test_each_gap_is_looked_at_once() -> None:
    """All steps for each of the gaps would take a minute here."""
    steps = np.arange(400_000)[np.arange(400_000) % 4 != 2]
    found = on_grid("a", rows(60_000_000 * steps, steps), layout(frequency=Frequency.of("min")))
    assert (found.dates.clock[: len(found)] == 60_000_000 * np.arange(400_000)).all()
    assert (found.target == np.arange(400_000)).all()


@pytest.mark.parametrize(
    ("missing", "steps", "expected"),
    [
        ("linear", 5, [1, 2, 3, 3, 3]),  # not on the way to 9, which is not known yet
        ("linear", 6, [1, 2, 3, 5, 7, 9]),
        ("previous", 5, [1, 1, 3, 3, 3]),
        ("zero", 5, [1, 0, 3, 0, 0]),
    ],
)
def test_a_series_that_is_cut_in_a_gap_knows_nothing_of_what_came_after(
    missing: str, steps: int, expected: list[float]
) -> None:
    found = on_grid("a", rows([0, 2, 5], [1, 3, 9]), layout(missing=missing)).until(
        steps, layout(missing=missing)
    )
    assert found.target.tolist() == expected


def test_a_series_that_is_cut_before_a_column_begins_is_an_error_that_names_it() -> None:
    nan = np.nan
    given = rows(
        [3, 4, 5, 7, 8, 9],
        [nan, 1, 2, 3, 4, nan],
        past=np.array([[9], [nan], [nan], [5], [nan], [nan]]),
        static=np.array([[nan, 1], [nan, nan], [nan, nan], [nan, nan], [nan, nan], [7, nan]]),
    )
    columns = layout(past=["p"], static=["s", "t"])
    found = on_grid("a", given, columns)
    assert found.since == {"p": 3, "s": 4, "t": 0}  # steps from time 4; the future is known at the end
    assert found.until(5, columns).static.tolist() == [7, 1]
    for steps, message in [
        (4, "series 'a': column 's' has no value up to 7, .*: its first is at 8; fill it before, leave"),
        (3, "series 'a': column 'p' has no value up to 6, .*: its first is at 7; fill it before, leave"),
    ]:
        with pytest.raises(DataError, match=message):
            found.until(steps, columns)


def test_covariates_keep_the_value_of_the_step_before() -> None:
    nan = np.nan
    given = rows(
        [0, 1, 3, 4],
        [1, 2, 3, nan],
        past=np.array([[nan], [5], [nan], [9]]),
        known=np.array([[1.0], [2], [nan], [4]]),
        static=np.array([[7.0], [7], [nan], [7]]),
    )
    found = on_grid("a", given, layout(past=["p"], known=["k"], static=["s"]))
    assert found.past[:, 0].tolist() == [5, 5, 5, 5]
    assert found.known[:, 0].tolist() == [1, 2, 2, 2, 4]  # one more step than the target
    assert found.static.tolist() == [7]


@pytest.mark.parametrize(
    ("values", "steps"),
    [([1, 2, 3, 4], 5), ([1, 2, 3, None], 4), ([1, None, 3, None], 4), ([1, 2, None, None], 4), ([1] * 3, 4)],
)
def test_the_known_future_ends_with_the_last_value(values: list[float | None], steps: int) -> None:
    """A null after it would have the value of the step before, for as long as anybody asks."""
    given = np.array([values, range(len(values))], float).T
    target = [1.0, 2, 3, np.nan][: len(values)]
    found = on_grid("a", rows([0, 1, 3, 4][: len(values)], target, known=given), layout(known=["k", "l"]))
    assert len(found.known) == steps
    assert np.isfinite(found.known).all()


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        (rows([1, 2], [np.nan, np.nan]), {}, "series 'a': column 'y' has no value; drop the series"),
        (rows([1, 2, 2], [1, 2, 3]), {}, "series 'a': two rows in one step, at 2 and 2"),
        (rows([1, 2, 3], [1, np.inf, 2]), {}, "series 'a': column 'y' is inf at 2; expected a finite number"),
        (rows([1, 2], [-np.inf, 1]), {}, "series 'a': column 'y' is -inf at 1"),
        (
            rows([1, 2], [1, 2], known=np.array([[0, 1], [1, np.inf]])),
            {"known": ["k", "l"]},
            "series 'a': column 'l' is inf at 2",
        ),
        (
            rows([1, 2], [1, 2], static=np.array([[1], [np.inf]])),
            {"static": ["s"]},
            "series 'a': column 's' is inf at 2",
        ),
        (rows([1, 3], [1, 2]), {"missing": "error"}, "series 'a': column 'y' has no value at 2"),
        (rows([0, 10_000], [1, 2]), {}, "2 rows span 10,001 steps; choose a coarser frequency than '1'"),
        (
            rows([0, 1], [1, 2], static=np.array([[1.0], [2.0]])),
            {"static": ["s"]},
            "column 's' has 2 different values",
        ),
        (
            rows(micros("2024-01-01", "2024-01-05"), [1, 2]),
            {"frequency": Frequency.of("M")},
            r"two rows in one step, at 2024-01-01T00:00:00\.000000 and 2024-01-05",
        ),
    ],
)
def test_errors_name_series_and_time(given: Any, more: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        on_grid("a", given, layout(**more))


def test_scales_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).normal(5, 3, (50, 2))
    known = np.where(np.random.default_rng(1).random((50, 2)) < 0.2, np.nan, values)
    centre, size = scale_of(known, "standard")
    np.testing.assert_allclose(centre, np.nanmean(known, 0))
    np.testing.assert_allclose(size, np.nanstd(known, 0))
    centre, size = scale_of(known, "mean")
    np.testing.assert_allclose(size, np.nanmean(np.abs(known), 0))
    assert not centre.any()
    assert [x.tolist() for x in scale_of(known, "none")] == [[0, 0], [1, 1]]


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-13, 1e-5, 1.0, 1e9, 1e200, 1e300])
@pytest.mark.parametrize("scaling", ["standard", "mean"])
def test_scales_are_relative(scale: float, scaling: str) -> None:
    """Powers of two change no bit: those of a series of any size are those of one near 1."""
    wave = np.sin(np.arange(40.0)) + np.arange(40) / 100
    exact = 2.0 ** round(np.log2(scale))
    for values in (wave, np.where(np.arange(40) % 7 == 3, np.nan, wave)):
        near, far = scale_of(values, scaling), scale_of(exact * values, scaling)
        assert [exact * value for value in near] == list(far)
    centre = np.mean(wave) if scaling == "standard" else 0.0
    assert scale_of(wave, scaling)[0] == centre
    size = np.std(wave) if scaling == "standard" else np.mean(np.abs(wave))
    assert scale_of(wave, scaling)[1] == size


@pytest.mark.parametrize("value", [0.0, 0.1, -0.001, 1e-13, 1e-300, 12345.678, -1e300])
def test_a_constant_is_forecast_as_the_constant_whatever_a_module_says(value: float) -> None:
    """And a step after it, which validates, is on its own scale."""
    found = on_grid("a", rows(np.arange(9), [*[value] * 7, 2 * value, value]), layout())
    values, centre, size = scaled(found, layout(), until=7)
    assert centre == value
    assert size == 0
    assert values["target"].tolist() == [0] * 7 + [np.sign(value), 0]
    assert scaled(found, layout(scaling="mean"), until=7)[2] == pytest.approx(abs(value), rel=1e-15)


def test_zeros_between_equal_values_are_no_constant() -> None:
    """Of sales of one piece each, the days without one are in no row."""
    found = on_grid("a", rows([0, 2, 3, 7], [1, 1, 1, 1]), layout(missing="zero"))
    values, centre, size = scaled(found, layout(missing="zero"), until=6)
    assert (centre, size) == (0.5, 0.5)
    assert values["target"].tolist() == [1, -1, 1, 1, -1, -1, -1, 1]
    line = on_grid("a", rows([0, 1, 5], [1, 1, 5]), layout())  # what fills up leads to a later value
    assert scaled(line, layout(), until=3)[1:] == (1, 0)


def test_the_scale_depends_on_observed_steps_up_to_the_cut_alone() -> None:
    found = on_grid("a", rows([0, 1, 3, 4, 5], [1, 3, 5, 100, 100]), layout())
    values, centre, size = scaled(found, layout(), until=4)
    assert (centre, size) == (3, pytest.approx(np.std([1, 3, 5])))
    np.testing.assert_allclose(values["target"] * size + centre, found.target)

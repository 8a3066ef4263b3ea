"""A table's encoding: what it computes, against plain Python, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sparkdl.exceptions import ConfigError, DataError
from sparkdl.table.calendar import part_of
from sparkdl.table.encoding import Category, Number, TableEncoding, read_table, table_of
from sparkdl.table.values import arrow, columns_of, doubles, numbers_of
from sparkdl.table.zones import local, zone_named

AGE = Number("age", "number", 40.0, 10.0, missing=True, knots=(-1.0, 0.0, 1.0))
MEMBER = Number("member", "boolean", 0.5, 0.5)
SINCE = Number("since", "date", 19_000.0, 100.0)
CITY = Category("city", "string", ("Rome", "Oslo"))
DAY = Category("since", "date", ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"), "weekday")
ENCODING = TableEncoding((AGE, MEMBER, SINCE), (CITY, DAY), {"id": "all rows have one value"}, 100)
TABLE: dict[str, Any] = {
    "age": [50, None, 30.0],
    "member": [True, False, None],
    "since": [date(2022, 1, 8), date(2022, 1, 10), None],
    "city": ["Oslo", None, "Bonn"],
}


def encode(table: Any, encoding: TableEncoding = ENCODING) -> dict[str, Any]:
    return encoding.encode(columns_of(table, encoding.columns))


def test_rows_become_categories_and_numbers() -> None:
    found = encode(TABLE)
    assert found["categories"].dtype == np.int32
    assert found["categories"].tolist() == [[3, 7], [1, 2], [0, 1]], "Saturday is 5, Monday 0, null is 1"
    assert found["numbers"].dtype == np.float32
    days = [(date(2022, 1, d) - date(1970, 1, 1)).days for d in (8, 10)]
    expected = [[1, 0, 1, (days[0] - 19_000) / 100], [0, 1, -1, (days[1] - 19_000) / 100], [-1, 0, 0, 0]]
    np.testing.assert_allclose(found["numbers"], expected, atol=1e-6)


def test_what_modules_are_told() -> None:
    assert ENCODING.columns == ("age", "member", "since", "city")
    assert ENCODING.cardinalities == (4, 9)
    assert ENCODING.width == 4
    assert ENCODING.names == ("age", "age is null", "member", "since")
    assert ENCODING.knots == ((-1.0, 0.0, 1.0), (), (), ())
    assert ENCODING.outputs == {"categories": (2, "int32"), "numbers": (4, "float32")}
    lines = ENCODING.describe().splitlines()
    assert lines[0] == "age: number, mean 40, deviation 10, and whether it is null"
    assert lines[-2:] == [
        "since: weekday of a date, category of 7 values",
        "id: left out, all rows have one value",
    ]


@pytest.mark.parametrize(
    "values",
    [
        [50, None, 30],
        [50.0, float("nan"), 30.0],
        np.array([50.0, np.nan, 30.0]),
        [Decimal("50"), None, Decimal("30")],
        pa.array([50, None, 30], pa.int8()),
        pa.chunked_array([[50, None], [30]]),
    ],
    ids=["list", "nan", "numpy", "decimal", "arrow", "chunked"],
)
def test_numbers_of_any_origin(values: Any) -> None:
    found = encode({**TABLE, "age": values})
    np.testing.assert_array_equal(found["numbers"][:, :2], [[1, 0], [0, 1], [-1, 0]])


def test_large_integers_beside_others() -> None:
    """Arrow refuses those that a double does not hold, and Spark rounds them; whole numbers stay exact."""
    large = 2**53 + 1
    assert arrow("n", [large, 0.5, None]).to_pylist() == [2.0**53, 0.5, None]
    assert numbers_of([[2**64, 0.5], None]).to_pylist() == [[2.0**64, 0.5], None]
    for whole in ([large, 1.0], [[large, 1.0], [-(2.0**63)]]):
        assert str(numbers_of(whole).type) in ("int64", "list<item: int64>")
        assert numbers_of(whole).to_pylist() == whole
    assert numbers_of([large, 2.0**63]).to_pylist() == [2.0**53, 2.0**63]
    with pytest.raises(pa.ArrowInvalid, match="tried to convert to boolean"):
        numbers_of([True, large, 0.5])


@pytest.mark.parametrize(
    "values",
    [
        np.array(["Oslo", None, "Bonn"], object),
        pa.array(["Oslo", None, "Bonn"]).dictionary_encode(),
        pa.array(["Oslo", None, "Bonn"], pa.large_string()),
        pa.array(["Oslo", None, "Bonn"], getattr(pa, "string_view", pa.string)()),
    ],
    ids=["numpy", "dictionary", "large", "view"],
)
def test_strings_of_any_origin(monkeypatch: pytest.MonkeyPatch, values: Any) -> None:
    monkeypatch.delattr(pa.types, "is_string_view", raising=False)  # Arrow 15 does not have it
    assert encode({**TABLE, "city": values})["categories"][:, 0].tolist() == [3, 1, 0]


def test_a_column_of_nulls_may_have_any_type() -> None:
    nan = np.array([np.nan] * 3)
    assert encode({**TABLE, "city": nan})["categories"][:, 0].tolist() == [1, 1, 1]


def test_dates_of_any_origin_and_extremes() -> None:
    days = encode({**TABLE, "since": [18_999.0, 19_000.0, float("nan")]})
    np.testing.assert_allclose(days["numbers"][:, 3], [-0.01, 0, 0], atol=1e-7)
    stamps = pa.array([datetime(2022, 1, 8, 23, tzinfo=UTC), None, None])
    assert encode({**TABLE, "since": stamps})["categories"][:, 1].tolist() == [7, 1, 1]
    far = encode({**TABLE, "age": [1e300, -1e300, float("inf")]})
    assert np.isfinite(far["numbers"]).all()


def test_parts_of_dates_are_those_of_the_calendar() -> None:
    first = date(1899, 12, 25)
    dates = [first + timedelta(days=n) for n in range(0, 100_000, 7)]
    dates += [first + timedelta(days=n) for n in range(60_000, 61_500)]
    days = np.array([(day - date(1970, 1, 1)).days for day in dates], float)
    assert part_of(days, "month", True).tolist() == [day.month - 1 for day in dates]
    assert part_of(days, "weekday", True).tolist() == [day.weekday() for day in dates]
    seconds = np.arange(-200_000, 200_000, 997.3)
    stamps = [datetime.fromtimestamp(second, UTC) for second in seconds]
    assert part_of(seconds, "hour", False).tolist() == [stamp.hour for stamp in stamps]
    assert part_of(seconds, "weekday", False).tolist() == [stamp.weekday() for stamp in stamps]


def test_timestamps_are_seconds_in_utc() -> None:
    number = Number("t", "timestamp", 0.0, 1.0)
    encoding = TableEncoding((number,), (Category("t", "timestamp", ("0",) * 24, "hour"),), {}, 2)
    zoned = pa.array([3_600_000, None], pa.timestamp("ms", "Europe/Berlin"))
    found = encode({"t": zoned}, encoding)
    assert found["numbers"].tolist() == [[3600.0], [0.0]]
    assert found["categories"].tolist() == [[3], [1]]
    assert encode({"t": [date(1970, 1, 2)]}, encoding)["numbers"].tolist() == [[86400.0]]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_times_without_a_zone_follow_the_clock_of_the_fit(zone: str) -> None:
    encoding = TableEncoding((Number("t", "timestamp", 0.0, 1.0),), (), {}, 2, zone)
    # Also hours that the clock shows twice or never: the library's fold=0 is what Java does.
    clock = [datetime(2024, month, 1) for month in range(1, 13)]
    clock += [
        datetime(2024, 3, 31, 2, 30),
        datetime(2024, 10, 27, 2, 30),
        datetime(1969, 1, 1, 0, 0, 0, 250_000),
    ]
    clock += [datetime(2024, 3, 10, 2, 30), datetime(2024, 11, 3, 1, 30), datetime(2024, 10, 6, 2, 10)]
    there = [time.replace(tzinfo=ZoneInfo(zone)) for time in clock]
    expected = [time.timestamp() for time in there]
    for times in (clock, there, pd.Series(clock), pa.array(clock, pa.timestamp("ns"))):
        assert doubles("t", arrow("t", times), "timestamp", encoding.zone_of("t")).tolist() == expected
    assert doubles("t", arrow("t", [date(2024, 7, 1)]), "timestamp", zone).tolist() == [expected[6]]
    late = pa.array([datetime(2024, 7, 1, 23, 59, tzinfo=ZoneInfo(zone))])
    for day in (late, pa.array([datetime(2024, 7, 1)]), pa.array([date(2024, 7, 1)], pa.date64())):
        assert doubles("d", day, "date", zone).tolist() == [19_905.0]
    assert replace(encoding, clocks=("t",)).zone_of("t") == "UTC"
    assert TableEncoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "+05:30"])
def test_dates_of_instants_follow_the_clock_in_any_year(zone: str) -> None:
    """Arrow's clocks have no summer time after 2037."""
    there = timezone(timedelta(hours=5, minutes=30)) if zone[0] == "+" else ZoneInfo(zone)
    times: list[datetime | None] = [
        datetime(year, month, day, hour, 45, tzinfo=UTC)
        for year in (1, 1900, 1969, 2024, 2038, 2087, 2400, 2799, 2800, 3333, 9998)
        for month, day in ((1, 15), (4, 6), (7, 1), (10, 5))
        for hour in range(3, 24)
    ]
    shown = [time.astimezone(there).replace(tzinfo=None) for time in times if time is not None]
    for unit in ("s", "us"):
        found = pa.array([*times, None], pa.timestamp(unit, "UTC"))
        assert local("t", found, zone).to_pylist() == [*shown, None]
        expected = [float((time.date() - date(1970, 1, 1)).days) for time in shown]
        assert doubles("t", found, "date", zone)[:-1].tolist() == expected


def test_an_encoding_without_a_zone_is_what_earlier_releases_read() -> None:
    assert ENCODING.to_json()["format"] == 1
    assert replace(ENCODING, zone="Europe/Berlin").to_json()["format"] == 2


def test_zones_of_java_and_those_that_this_machine_does_not_know() -> None:
    names = ("UTC", "Z", "GMT+2", "UTC-03:30", "+05:30", "Etc/UTC", "Europe/Berlin")
    assert [zone_named(name) for name in names] == [
        *("UTC", "UTC", "+02:00", "-03:30", "+05:30", "UTC", "Europe/Berlin")
    ]
    noon = pa.array([datetime(2024, 1, 1, 12)])
    assert doubles("t", noon, "timestamp", "+05:30") == [datetime(2024, 1, 1, 6, 30, tzinfo=UTC).timestamp()]
    mars = pa.array([0], pa.timestamp("us", "Mars/Phobos"))
    assert doubles("t", mars, "timestamp", "Europe/Berlin").tolist() == [0.0]
    assert doubles("t", mars, "date", "Europe/Berlin").tolist() == [0.0]
    with pytest.raises(DataError, match="column 't': its times follow the clock of 'Mars/Phobos'"):
        doubles("t", noon, "timestamp", "Mars/Phobos")


@pytest.mark.parametrize(
    ("change", "problem", "code"),
    [
        ({"age": ["x", "y", "z"]}, "column 'age' has type string: .* fitted on numbers", "data-type"),
        ({"since": ["x", "y", "z"]}, "column 'since' has type string: .* fitted on dates", "data-type"),
        (
            {"member": [1.0, None, 7.5]},
            "column 'member', row 2: 7.5 .* on booleans, or 0 and 1",
            "data-value",
        ),
        ({"city": [0.5, 1.5, 2.5]}, "column 'city' has type double: .* fitted on strings", "data-type"),
        ({"city": [101, 1, 2]}, "column 'city' has type int64: .* on strings; pass the strings", "data-type"),
        ({"city": [{}, 1, "x"]}, "column 'city': .* is no column of one type", "data-type"),
        ({"city": ["Rome"]}, "different numbers of rows: age 3, member 3, since 3, city 1", "data-shape"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], problem: str, code: str) -> None:
    with pytest.raises(DataError, match=problem) as raised:
        encode({**TABLE, **change})
    assert raised.value.code == code


def test_a_missing_column_is_named() -> None:
    with pytest.raises(DataError, match="column 'member' is missing; .* the table has age") as raised:
        columns_of({"age": [1]}, ENCODING.columns)
    assert raised.value.code == "data-column"
    with pytest.raises(DataError, match="column 'age' is missing"):
        ENCODING.encode({})


def test_an_encoding_goes_through_json() -> None:
    table = json.loads(json.dumps(table_of(ENCODING, ("no", "yes"))))
    encoding, labels = read_table(table)
    assert (encoding, labels) == (ENCODING, ("no", "yes"))
    assert table_of(None, ()) is None
    assert read_table(None) == (None, ())


def test_what_is_no_encoding_is_refused() -> None:
    good = ENCODING.to_json()
    for bad in (
        None,
        {},
        {**good, "format": 99},
        {**good, "numbers": [], "categories": []},
        {**good, "numbers": [{**good["numbers"][0], "deviation": 0}]},
        {**good, "numbers": [{**good["numbers"][0], "kind": "os.system"}]},
        {**good, "categories": [{**good["categories"][0], "values": [1]}]},
        {**good, "categories": [{**good["categories"][0], "part": "weekday"}]},
    ):
        with pytest.raises(ConfigError, match=r"encoding (cannot be read|has format)"):
            TableEncoding.from_json(bad)
    with pytest.raises(ConfigError, match="labels="):
        read_table({"labels": "ab", "encoding": None})


@pytest.mark.parametrize("kind", ["date", "timestamp"])
@pytest.mark.parametrize("value", [2.0**63, -1e300, float("inf")])
def test_numbers_that_no_date_can_be(kind: Any, value: float) -> None:
    with pytest.raises(DataError, match=rf"column 't', row 1: .*fitted on {kind}s, or .* since 1970"):
        doubles("t", pa.array([0.0, value]), kind)
    assert np.isnan(doubles("t", pa.array([float("nan"), None]), kind)).all()
    assert doubles("t", pa.array([2.0**30]), kind).tolist() == [2.0**30]

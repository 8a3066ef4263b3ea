"""The Params of series stand in the table that all estimators share."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import pytest

from sparkdl.exceptions import ConfigError
from sparkdl.ml import TimeSeriesEstimator, TimeSeriesModel
from sparkdl.ml.params.attributes import ATTRIBUTES
from sparkdl.ml.params.entries import describe, entries
from sparkdl.ml.params.keywords import SeriesKeywords
from sparkdl.nn.models.forecaster import Forecaster


@pytest.mark.parametrize("cls", [TimeSeriesEstimator, TimeSeriesModel])
def test_every_param_is_a_line_of_the_table_and_has_accessors(cls: Any) -> None:
    stage, table = cls(), entries(cls)
    assert {param.name for param in stage.params} == set(table)
    for name, entry in table.items():
        upper = name[0].upper() + name[1:]
        assert hasattr(cls, f"get{upper}"), name
        assert entry.default is None or stage.getOrDefault(name) == entry.default
        if cls is TimeSeriesEstimator:
            assert hasattr(cls, f"set{upper}"), name
            assert describe(entry) in (cls.__doc__ or "")


def test_keywords_name_what_the_table_has() -> None:
    hints, table = get_type_hints(SeriesKeywords), entries(TimeSeriesEstimator)
    assert set(hints) == set(table) | set(ATTRIBUTES)
    assert {*inspect.signature(TimeSeriesEstimator).parameters} == set(hints)
    for name, entry in table.items():
        allowed = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
        assert (NoneType in allowed) == (entry.default is None), name


def test_lengths_follow_from_frequency_and_horizon() -> None:
    assert TimeSeriesEstimator(frequency="M", horizon=3).getInputLength() == 24
    assert TimeSeriesEstimator(frequency="M", horizon=18).getInputLength() == 54
    assert TimeSeriesModel(Forecaster(7, 3)).getInputLength() == 7, "a module knows what it was made for"
    assert TimeSeriesEstimator(frequency="M", seasonality=6).getSeasonality() == 6
    assert TimeSeriesEstimator(quantiles=[0.025, 0.5]).outputNames() == [
        "forecast",
        "forecast_q2_5",
        "forecast_q50",
    ]


@pytest.mark.parametrize(("name", "value"), [("architecture", "tcn"), ("level", "last")])
def test_params_of_the_librarys_modules_are_refused_beside_another(name: str, value: str) -> None:
    TimeSeriesEstimator(**{name: value})._check()
    TimeSeriesEstimator(module=Forecaster)._check()
    with pytest.raises(ConfigError, match=f"^{name} is set, .* but module is given"):
        TimeSeriesEstimator(module=Forecaster, **{name: value})._check()


def test_values_that_cannot_work() -> None:
    for name, value in [
        ("frequency", "fortnight"),
        ("quantiles", [0.9, 0.5]),
        ("scaler", "max"),
        ("horizon", 0),
    ]:
        with pytest.raises(ConfigError, match=name):
            TimeSeriesEstimator(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="TimeSeriesEstimator has no parameter 'featuresCol'"):
        TimeSeriesEstimator().setParams(featuresCol="x")  # type: ignore[call-arg]

"""Params of panels of series, which their estimator and model share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasHandleInvalid, HasLabelCol

from sparkdl.exceptions import ConfigError
from sparkdl.ml.params import converters
from sparkdl.ml.params.columns import HasPrediction, value_of
from sparkdl.ml.params.entries import ParamEntry, accessors, getter, setter
from sparkdl.ml.params.training import HasRun
from sparkdl.nn.models.forecaster import ARCHITECTURES, LEVELS, check_quantiles
from sparkdl.series.frequency import Frequency
from sparkdl.series.layout import MISSING, PanelLayout
from sparkdl.series.scaling import SCALINGS


def _frequency(value: Any) -> str:
    Frequency.of(value)
    return str(value)


def _levels(value: Any) -> list[float]:
    found = TypeConverters.toListFloat(value)
    check_quantiles(found)
    return found


class HasSeries(HasRun, HasPrediction, HasHandleInvalid):
    """Mixin for the columns of a panel, and how its series become windows and forecasts."""

    labelCol = ParamEntry.of(HasLabelCol.labelCol, "value")
    predictionCol = ParamEntry.of(HasPrediction.predictionCol, "forecast")
    batchSize = ParamEntry.of(HasRun.batchSize, 128)
    learningRate = ParamEntry.of(HasRun.learningRate, 3e-3)
    idCol = ParamEntry(
        "idCol",
        "column that tells series apart, of strings, numbers or dates; an empty name if all rows are one "
        "series.",
        TypeConverters.toString,
        "id",
    )
    timeCol = ParamEntry(
        "timeCol", "column of dates, timestamps or integers.", TypeConverters.toString, "time"
    )
    pastCols = ParamEntry(
        "pastCols", "columns of numbers that are known up to the present.", converters.names("pastCols")
    )
    knownCols = ParamEntry(
        "knownCols",
        "columns of numbers whose future is known, such as calendars and plans; to forecast, the rows of the "
        "horizon hold them, with null as value.",
        converters.names("knownCols"),
    )
    staticCols = ParamEntry(
        "staticCols",
        "columns with one number for each series, which enter as they are.",
        converters.names("staticCols"),
    )
    frequency = ParamEntry(
        "frequency",
        "distance of the steps: a number of s, min, h, D, W, M, Q or Y, such as 15min; of times that are "
        "integers a number.",
        _frequency,
        "D",
    )
    seasonality = ParamEntry(
        "seasonality",
        "steps of a season, for naive forecasts and scaled errors; by frequency if not set: a day of hours, "
        "a week of days, a year of weeks, months or quarters.",
        converters.whole("seasonality", 1, "steps of a season"),
    )
    inputLength = ParamEntry(
        "inputLength",
        "steps of the past that the module sees; if not set the longer of two seasons and three horizons.",
        converters.whole("inputLength", 1, "steps of the past"),
    )
    horizon = ParamEntry(
        "horizon", "steps to forecast.", converters.whole("horizon", 1, "steps to forecast"), 1
    )
    scaler = ParamEntry(
        "scaler",
        "how each series is scaled, by its past alone: standard (mean 0, deviation 1), mean (mean of "
        "absolute values 1), none. Forecasts are scaled back. Covariates of pastCols and knownCols likewise.",
        converters.one_of("scaler", *SCALINGS),
        "standard",
    )
    missing = ParamEntry(
        "missing",
        "what a series has at steps between its first and last value that have none: linear (on the line "
        "between the values around), previous, zero, or error.",
        converters.one_of("missing", *MISSING),
        "linear",
    )
    handleInvalid = ParamEntry(
        "handleInvalid",
        "how to handle series that cannot be used, such as ones that are too short or have two rows in one "
        "step. Options are error (throw an error that names the series), skip (leave the series out).",
        converters.one_of("handleInvalid", "error", "skip"),
        "error",
    )
    quantiles = ParamEntry(
        "quantiles",
        "levels of the quantiles to forecast, with 0.5 among them, which is the forecast; one value per step "
        "if not set.",
        _levels,
    )
    architecture = ParamEntry(
        "architecture",
        "what forecasts if no module is given: linear (a linear map from the past to the horizon), nbeats, "
        "tcn, patch (a transformer over patches), naive (the value of a season ago).",
        converters.one_of("architecture", *ARCHITECTURES),
        "linear",
    )
    level = ParamEntry(
        "level",
        "what is subtracted from a window and added to its forecast if no module is given: the last value, "
        "the mean, or none; standard: the mean, and the window is divided by its deviation.",
        converters.one_of("level", *LEVELS),
        "standard",
    )
    inferenceBatchSize = ParamEntry(
        "inferenceBatchSize",
        "series per forward pass in transform; 1,024 if not set.",
        converters.whole("inferenceBatchSize", 1, "series per forward pass"),
    )

    getIdCol, setIdCol = accessors(idCol)
    getTimeCol, setTimeCol = accessors(timeCol)
    getPastCols = getter(pastCols)
    getKnownCols = getter(knownCols)
    getStaticCols = getter(staticCols)
    getFrequency = getter(frequency)
    getHorizon = getter(horizon)
    getScaler = getter(scaler)
    getMissing = getter(missing)
    getQuantiles = getter(quantiles)
    getArchitecture = getter(architecture)
    getLevel = getter(level)
    getInferenceBatchSize, setInferenceBatchSize = accessors(inferenceBatchSize)

    setHandleInvalid = setter(handleInvalid)

    def getSeasonality(self) -> int:
        """Gets the value of seasonality, or the usual one of the frequency."""
        return value_of(self, self.seasonality) or Frequency.of(self.getFrequency()).season

    def getInputLength(self) -> int:
        """Gets the value of inputLength, or the longer of two seasons and three horizons."""
        return value_of(self, self.inputLength) or max(2 * self.getSeasonality(), 3 * self.getHorizon())

    def outputNames(self) -> list[str]:
        """Return the names of the columns of a forecast: its value, and its quantiles in order.

        Of ``forecast`` and a level of 0.025 it is ``forecast_q2_5``.
        """
        base = self.getPredictionCol()
        return [base, *(f"{base}_q{100 * level:g}".replace(".", "_") for level in self._quantiles())]

    def _quantiles(self) -> Sequence[float]:
        """Return the levels that are forecast besides the middle; none by default."""
        return value_of(self, self.quantiles) or []

    def _layout(self) -> PanelLayout:
        """Return the panel's columns, and how windows are made."""
        levels = value_of(self, self.quantiles)
        if levels is not None and 0.5 not in levels:
            raise ConfigError(f"quantiles={levels}: expected 0.5 among them, which is the forecast")
        names = {
            "idCol": [self.getIdCol()] if self.getIdCol() else [],
            "timeCol": [self.getTimeCol()],
            "labelCol": [self.getOrDefault("labelCol")],
            "pastCols": value_of(self, self.pastCols) or [],
            "knownCols": value_of(self, self.knownCols) or [],
            "staticCols": value_of(self, self.staticCols) or [],
        }
        every = [name for columns in names.values() for name in columns]
        twice = next((name for name in every if every.count(name) > 1), None)
        if twice is not None:
            roles = [role for role, columns in names.items() if twice in columns]
            raise ConfigError(f"column {twice!r} is {' and '.join(roles)}: expected one role for each column")
        return PanelLayout(
            id=self.getIdCol(),
            time=self.getTimeCol(),
            target=self.getOrDefault("labelCol"),
            past=names["pastCols"],
            known=names["knownCols"],
            static=names["staticCols"],
            frequency=Frequency.of(self.getFrequency()),
            steps=self.getInputLength(),
            horizon=self.getHorizon(),
            scaling=self.getScaler(),
            missing=self.getMissing(),
            skip=self.getHandleInvalid() == "skip",
        )


class HasSeriesTraining(HasSeries):
    """Mixin for what the estimator of series asks besides."""

    windowStep = ParamEntry(
        "windowStep",
        "steps from the start of a window to that of the next one.",
        converters.whole("windowStep", 1, "steps between windows"),
        1,
    )
    validationSteps = ParamEntry(
        "validationSteps",
        "steps at the end of each series that are not trained on: windows whose horizon lies in them "
        "validate. At least the horizon; 0 for none.",
        converters.whole("validationSteps", 0, "steps that validate"),
        0,
    )

    getWindowStep, setWindowStep = accessors(windowStep)
    getValidationSteps, setValidationSteps = accessors(validationSteps)

    setPastCols = setter(HasSeries.pastCols)
    setKnownCols = setter(HasSeries.knownCols)
    setStaticCols = setter(HasSeries.staticCols)
    setFrequency = setter(HasSeries.frequency)
    setSeasonality = setter(HasSeries.seasonality)
    setInputLength = setter(HasSeries.inputLength)
    setHorizon = setter(HasSeries.horizon)
    setScaler = setter(HasSeries.scaler)
    setMissing = setter(HasSeries.missing)
    setQuantiles = setter(HasSeries.quantiles)
    setArchitecture = setter(HasSeries.architecture)
    setLevel = setter(HasSeries.level)

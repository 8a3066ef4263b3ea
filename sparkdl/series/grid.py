"""The rows of one series on its grid of steps: gaps filled (``missing``), times checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from sparkdl.exceptions import DataError
from sparkdl.series.dates import Dates
from sparkdl.series.layout import PanelLayout
from sparkdl.series.scaling import divisor_of, scale_of
from sparkdl.wire.frame import Array

_MOST_EMPTY = 1000  # steps of a gap for each row of the series: a frequency that is too fine makes more


@dataclass(frozen=True, slots=True)
class Series:
    """One series on its grid."""

    id: Any  # what its id column holds
    dates: Dates  # when its steps are
    target: Array  # value of each step, without gaps, float64
    observed: Array  # which of them were there
    past: Array  # covariates of these steps, shape (steps, columns)
    known: Array  # covariates whose future is known; it may have more steps
    static: Array  # shape (columns,)
    # by name of a past or static column, the first step that has a value of its own: none knows one before
    since: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.target)

    def until(self, steps: int, layout: PanelLayout) -> Series:
        """Return the series as it was after so many steps of the target; the known covariates keep theirs.

        DataError names a column that had no value then.
        """
        late = next((name for name, step in self.since.items() if step >= steps), None)
        if late is not None:
            before, first = (name_time(self.dates.clock[n], layout) for n in (steps - 1, self.since[late]))
            _fail(
                layout,
                self.id,
                f"column {late!r} has no value up to {before}, before the steps to forecast: its first is at "
                f"{first}",
                "fill it before, leave it out, or forecast fewer steps of the past. handleInvalid='skip' "
                "leaves such series out",
            )
        target, observed = self.target[:steps], self.observed[:steps]
        if layout.missing == "linear" and not observed[-1]:  # the line leads to a value that came later
            last = int(np.flatnonzero(observed)[-1])
            target = np.concatenate([target[:last], np.full(steps - last, target[last])])
        return replace(self, target=target, observed=observed, past=self.past[:steps])


def on_grid(id: Any, rows: Mapping[str, Array], layout: PanelLayout) -> Series:
    """Put the rows of one series on its grid.

    Steps before the first value of the target are left out. Steps after the last one are the future: only
    their known covariates are used, up to the last step that has a value of each. Steps in between without a
    row, or with null, are filled as ``layout.missing`` says; covariates keep their value of the step before,
    or have the next one if there is none. ``rows`` are ``time``, int64, ascending; ``target``, ``past``,
    ``known``, ``static``, float64 with NaN for null; ``instant`` where the times are those of a zone's clock,
    see :class:`Dates`. DataError names series and time.
    """
    times, target = rows["time"], rows["target"]
    _check_finite(id, rows, layout)
    filled = np.flatnonzero(np.isfinite(target))
    if not len(filled):
        _fail(layout, id, f"column {layout.target!r} has no value", "drop the series")
    first = int(filled[0])
    times, target = times[first:], target[first:]
    steps = layout.frequency.steps(times)
    repeated = np.flatnonzero(np.diff(steps) <= 0)
    if len(repeated):
        at = int(repeated[0])
        _fail(
            layout,
            id,
            f"two rows in one step, at {name_time(times[at], layout)} and {name_time(times[at + 1], layout)}",
            f"aggregate them, or choose another frequency than {str(layout.frequency)!r}",
        )
    count = int(steps[-1]) + 1
    if count > _MOST_EMPTY * len(times):
        _fail(
            layout,
            id,
            f"{len(times)} rows span {count:,} steps",
            f"choose a coarser frequency than {str(layout.frequency)!r}",
        )
    length = int(steps[filled[-1] - first]) + 1  # of the past
    values = np.full(count, np.nan)
    values[steps] = target
    instants = rows.get("instant")
    dates = Dates.of_rows(layout.frequency, steps, times, None if instants is None else instants[first:])
    observed = np.isfinite(values[:length])
    past = _spread(rows["past"][first:], steps, count)[:length]
    own = dict(zip(layout.past, _first(past), strict=True))
    for name, row in zip(layout.static, _first(rows["static"]), strict=True):
        own[name] = min(int(steps[max(0, row - first)]), length - 1)
    known = _spread(rows["known"][first:], steps, count)
    ends = [count - own for own in _first(known[::-1])]  # after the last step of each that has a value
    known = _carried(known, id, layout.known, layout)[: max(length, min(ends, default=count))]
    return Series(
        id,
        dates,
        _filled(values[:length], observed, dates.clock, id, layout),
        observed,
        _carried(past, id, layout.past, layout),
        known,
        _static(rows["static"], id, layout),
        own,
    )


def _check_finite(id: Any, rows: Mapping[str, Array], layout: PanelLayout) -> None:
    """Refuse infinite values; null and NaN are missing ones."""
    for group, names in (
        ("target", [layout.target]),
        ("past", layout.past),
        ("known", layout.known),
        ("static", layout.static),
    ):
        found = rows[group].reshape(len(rows["time"]), len(names))
        for place, column in np.argwhere(np.isinf(found)):
            time = name_time(rows["time"][place], layout)
            _fail(
                layout,
                id,
                f"column {names[column]!r} is {found[place, column]} at {time}",
                "expected a finite number, or null for a missing one",
            )


def _spread(values: Array, steps: Array, count: int) -> Array:
    found = np.full((count, values.shape[1]), np.nan)
    found[steps] = values
    return found


def _filled(values: Array, observed: Array, times: Array, id: Any, layout: PanelLayout) -> Array:
    gaps = np.flatnonzero(~observed)
    if not len(gaps):
        return values
    if layout.missing == "error":
        _fail(
            layout,
            id,
            f"column {layout.target!r} has no value at {name_time(times[gaps[0]], layout)}",
            "fill it, or say missing='linear', 'previous' or 'zero'",
        )
    if layout.missing == "zero":
        return np.where(observed, values, 0.0)
    if layout.missing == "linear":
        places = np.arange(len(values))
        return np.interp(places, places[observed], values[observed])
    return values[last_known(observed)]


def _carried(values: Array, id: Any, names: Any, layout: PanelLayout) -> Array:
    """Return covariates with the step before's value where there is none."""
    values = values.copy()
    for column, name in enumerate(names):
        known = np.isfinite(values[:, column])
        if not known.any():
            _fail(layout, id, f"column {name!r} has no value", "fill it, or leave the column out")
        if not known.all():
            values[:, column] = values[last_known(known), column]
    return values


def _first(values: Array) -> list[int]:
    """Return the place of the first known value of each column, 0 if there is none."""
    found: list[int] = np.isfinite(values).argmax(0).tolist()
    return found


def last_known(known: Array) -> Array:
    """Return the place of the last known value up to each place, or of the first one before any."""
    first = int(np.argmax(known))
    return np.maximum.accumulate(np.where(known, np.arange(len(known)), first))


def _static(values: Array, id: Any, layout: PanelLayout) -> Array:
    found = np.empty(values.shape[1])
    for column, name in enumerate(layout.static):
        given = np.unique(values[np.isfinite(values[:, column]), column])
        if len(given) != 1:
            _fail(
                layout,
                id,
                f"column {name!r} has {len(given)} different values",
                "staticCols hold one number for each series",
            )
        found[column] = given[0]
    return found


def scaled(
    series: Series, layout: PanelLayout, until: int | None = None
) -> tuple[dict[str, Array], float, float]:
    """Return target and covariates on the common scale, and centre and size of the target.

    A size of 0 is that of a constant, whose scaled values are 0 as long as it is one. The steps before
    ``until`` decide on the scale, all of the target by default; static values stay as they are. Filled steps
    have no say, but for zeros between values that are all equal, such as sales of one piece each.
    """
    until, scaling = len(series) if until is None else until, layout.scaling
    centre, size = scale_of(np.where(series.observed, series.target, np.nan)[:until], scaling)
    if size == 0 and layout.missing == "zero":
        centre, size = scale_of(series.target[:until], scaling)
    found = {"target": (series.target - centre) / divisor_of(centre, size)}
    for name, values in (("past", series.past), ("known", series.known)):
        if values.shape[1]:
            middle, spread = scale_of(values[:until], scaling)
            found[name] = (values - middle) / divisor_of(middle, spread)
    return found, float(centre), float(size)


def name_time(time: Any, layout: PanelLayout) -> str:
    """Return a time as people write it."""
    return str(np.datetime64(int(time), "us")) if layout.frequency.unit else str(int(time))


def _fail(layout: PanelLayout, id: Any, found: str, remedy: str) -> NoReturn:
    who = f"series {id!r}" if layout.id else "the series"
    raise DataError(f"{who}: {found}; {remedy}", code="data-value")

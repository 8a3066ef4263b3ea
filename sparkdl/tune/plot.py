"""A search as a picture: learning curves, and parallel coordinates of the params."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from sparkdl.train.plot import Shown
from sparkdl.tune.shown import metric_value
from sparkdl.tune.trial import Trial, names_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(trials: Sequence[Trial], metric: str, mode: str, best: int | None) -> Figure:
    """Draw a search: learning curves above, params below."""
    figure = Shown(figsize=(7, 6.5), dpi=100, layout="constrained", facecolor="white")
    curves, coordinates = figure.subplots(2, 1)
    _curves(curves, trials, metric, mode, best)
    _coordinates(coordinates, trials, metric, mode)
    return figure


def _curves(axes: Axes, trials: Sequence[Trial], metric: str, mode: str, best: int | None) -> None:
    sign = 1 if mode == "max" else -1
    for trial in trials:
        epochs = [epoch for epoch in sorted(trial.values) if math.isfinite(trial.values[epoch])]
        wins = trial.number == best
        axes.plot(
            epochs,
            [sign * trial.values[epoch] for epoch in epochs],
            marker="." if len(epochs) == 1 else "",
            color="tab:red" if wins else "tab:blue",
            alpha=1.0 if wins else 0.4,
            zorder=2 if wins else 1,
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel(metric)
    axes.set_title("learning curves (best in red)")


def _coordinates(axes: Axes, given: Sequence[Trial], metric: str, mode: str) -> None:
    """Draw a line for each trial through its params and its value, coloured by the value."""
    trials = [trial for trial in given if math.isfinite(trial.last)]
    names = names_of(trials)
    if not trials:
        axes.set_axis_off()
        return
    columns = [*names, metric]
    placed = [_placed([trial.params.get(name) for trial in trials]) for name in names]
    placed.append(_placed([metric_value(trial, mode) for trial in trials]))
    order = sorted(range(len(trials)), key=lambda n: trials[n].last)
    colours = mpl.colormaps["viridis"]
    for rank, n in enumerate(order):
        axes.plot(
            range(len(columns)),
            [places[n] for places, _ in placed],
            color=colours(rank / max(len(order) - 1, 1)),
            alpha=0.7,
        )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks([])
    for x, (_, marks) in enumerate(placed):
        axes.axvline(x, color="black", linewidth=0.5)
        for y, text in marks:
            axes.annotate(text, (x, y), fontsize=7, ha="center", va="bottom" if y > 0.5 else "top")
    axes.set_ylim(-0.15, 1.15)
    axes.set_title("params (yellow is best)")


def _placed(values: list[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return a place from 0 to 1 for each value, and texts at some places."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not numbers:
        kinds = sorted({str(value) for value in values})
        places = {kind: n / max(len(kinds) - 1, 1) for n, kind in enumerate(kinds)}
        return [places[str(value)] for value in values], [(y, kind) for kind, y in places.items()]
    low, high = min(values), max(values)
    logarithmic = low > 0 and high / low > 50
    scale: Callable[[float], float] = math.log if logarithmic else float
    span = scale(high) - scale(low) or 1.0
    marks = [(0.0, f"{low:.3g}"), (1.0, f"{high:.3g}")] if low < high else [(0.0, f"{low:.3g}")]
    return [(scale(value) - scale(low)) / span for value in values], marks

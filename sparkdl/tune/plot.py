"""A search as a picture: learning curves, and parallel coordinates of the params."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparkdl.train.plot import Shown
from sparkdl.tune.shown import metric_value
from sparkdl.tune.trial import Trial, names_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEST = "#c1121f"
_OTHERS = "#7f9cc0"
_LARGE = 50  # a metric whose values differ by this factor is drawn by its logarithms
_WIDE = 4  # curves are cut off where they are so many times farther from the middle value than the best one

_GROUND = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.3}  # of texts that lines cross


def plot(
    trials: Sequence[Trial], metric: str, mode: str, best: int | None, logarithmic: Collection[str] = ()
) -> Figure:
    """Draw a search: learning curves above, params below."""
    figure = Shown(figsize=(7, 6.5), dpi=100, layout="constrained", facecolor="white")
    curves, coordinates = figure.subplots(2, 1)
    _curves(curves, trials, metric, mode, best)
    _coordinates(coordinates, trials, metric, mode, best, logarithmic)
    return figure


def _curves(axes: Axes, trials: Sequence[Trial], metric: str, mode: str, best: int | None) -> None:
    sign = 1 if mode == "max" else -1
    ends: list[int] = [1]
    values: list[float] = []
    for trial in trials:
        epochs = [epoch for epoch in sorted(trial.values) if math.isfinite(trial.values[epoch])]
        line = [sign * trial.values[epoch] for epoch in epochs]
        wins = trial.number == best
        axes.plot(
            epochs,
            line,
            marker="o" if wins or len(epochs) == 1 else "",
            markersize=4,
            color=_BEST if wins else _OTHERS,
            linewidth=2.4 if wins else 1.0,
            alpha=1.0 if wins else 0.6,
            zorder=3 if wins else 2,
            label=f"best: trial {best}, {line[-1]:.4g}" if wins and line else None,
        )
        ends, values = ends + epochs, values + line
    cut = _limit(axes, np.array(values), sign)
    axes.set_xlim(min(ends) - 0.3, max(ends) + 0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="y", color="#e8eaed")
    axes.set_xlabel("epoch")
    axes.set_ylabel(metric)
    axes.set_title(f"learning curves{', the worst values cut off' if cut else ''}")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize=8)


def _limit(axes: Axes, values: np.ndarray[Any, Any], sign: int) -> bool:
    """Cut off values that would leave the best ones one flat line; return whether there are such."""
    if not len(values):
        return False
    towards = sign * values
    best, middle = float(towards.max()), float(np.median(towards))
    fence = middle - _WIDE * (best - middle)
    if towards.min() >= fence or best == middle:
        return False
    most = float(towards[towards >= fence].min())
    room = 0.05 * (best - most)
    axes.set_ylim(*sorted((sign * (most - room), sign * (best + room))))
    return True


def _coordinates(
    axes: Axes,
    given: Sequence[Trial],
    metric: str,
    mode: str,
    best: int | None,
    logarithmic: Collection[str],
) -> None:
    """Draw a line for each trial through its params and its value, coloured by the value."""
    trials = [trial for trial in given if math.isfinite(trial.last)]
    names = names_of(trials)
    if not trials:
        axes.set_axis_off()
        return
    columns = [*(f"{name}\n(log)" if name in logarithmic else name for name in names), metric]
    placed = [_placed([trial.params.get(name) for trial in trials], name in logarithmic) for name in names]
    values = [metric_value(trial, mode) for trial in trials]
    placed.append(_placed(values, min(values) > 0 and max(values) / min(values) > _LARGE))
    order = sorted(range(len(trials)), key=lambda n: trials[n].last)
    colours = mpl.colormaps["viridis"]
    for rank, n in enumerate(order):
        wins = trials[n].number == best
        axes.plot(
            range(len(columns)),
            [places[n] for places, _ in placed],
            color=_BEST if wins else colours(rank / max(len(order) - 1, 1)),
            alpha=1.0 if wins else 0.6,
            linewidth=2.4 if wins else 1.2,
            zorder=3 if wins else 2,
        )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks([])
    for x, (_, marks) in enumerate(placed):
        axes.axvline(x, color="black", linewidth=0.5)
        for y, text in marks:
            up = "bottom" if y >= 1 else "top" if y <= 0 else "center"
            axes.annotate(f" {text}", (x, y), fontsize=8, ha="left", va=up, zorder=4, bbox=_GROUND)
    axes.set_xlim(-0.1, len(columns) - 0.65)  # the texts of the last line are beside it
    axes.set_ylim(-0.15, 1.15)
    axes.set_title("params (red is best, then yellow)")


def _placed(values: list[Any], logarithmic: bool) -> tuple[list[float], list[tuple[float, str]]]:
    """Return a place from 0 to 1 for each value, and texts at some places."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not numbers:
        kinds = sorted({str(value) for value in values})
        places = {kind: n / max(len(kinds) - 1, 1) for n, kind in enumerate(kinds)}
        return [places[str(value)] for value in values], [(y, kind) for kind, y in places.items()]
    low, high = min(values), max(values)
    scale: Callable[[float], float] = math.log10 if logarithmic and low > 0 else float
    first, span = scale(low), scale(high) - scale(low) or 1.0
    marks = [(0.0, f"{low:.3g}"), (1.0, f"{high:.3g}")] if low < high else [(0.0, f"{low:.3g}")]
    if scale is math.log10:
        powers = [(n, (n - first) / span) for n in range(math.ceil(first), math.floor(scale(high)) + 1)]
        marks += [(y, f"{10.0**n:g}") for n, y in powers if 0.08 < y < 0.92]
    return [(scale(value) - first) / span for value in values], marks

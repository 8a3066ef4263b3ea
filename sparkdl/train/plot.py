"""A picture of a history; imported by ``History.plot`` alone, for it needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sparkdl.wire.frame import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sparkdl.train.history import History

_INK = "#2b2f36"
_FAINT = "#8a9099"
_GRID = "#e8eaed"
_LOSS = "#1f5fa8"
_SERIES = ("#d1495b", "#2a9d8f", "#edae49", "#7b5ea7", "#3d7ea6", "#8c564b")
# Warm for work, cool for what surrounds it: a look tells whether the time goes into training.
_PHASES = {
    "compute": "#e07a3f",
    "update": "#f2b880",
    "data": "#b5c99a",
    "weights_in": "#9ad1d4",
    "gradient_out": "#64a6bd",
    "shuffle": "#3d7ea6",
    "broadcast": "#7d8cc4",
    "launch": "#b8bfcc",
    "other": "#dfe2e7",
}
_BINS = 300  # more than that no eye tells apart
_MAX_EPOCH_LINES = 30


class Shown(Figure):
    """A figure that notebooks show, whether pyplot is set up or not."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def plot(history: History) -> Figure:
    """Draw loss, validation scores, learning rate and seconds by phase of a run."""
    losses, scores = _split(_validations(history))
    panels = list(_panels(scores))
    middle: list[str] = [*(title for title, _ in panels), "Learning rate"]
    rows: list[Any] = [["Loss"] * 2, *_pairs(middle), ["Seconds per iteration, by phase"] * 2]
    heights = [1.6, *([1.0] * (len(rows) - 2)), 1.3]
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Shown(figsize=(10, 2.3 * sum(heights)), dpi=110, layout=layout, facecolor="white")
    axes = figure.subplot_mosaic(rows, height_ratios=heights, sharex=True)
    for title, ax in axes.items():
        _style(ax, str(title))
    marked = False
    if len(history):
        figure.suptitle(_summary(history), x=0.01, ha="left", fontsize=9, color=_FAINT)
        iterations = np.array(history.column("iteration"))
        _draw_loss(axes["Loss"], iterations, np.array(history.column("loss")), losses)
        for title, series in panels:
            _draw_scores(axes[title], series)
        _draw_rate(axes["Learning rate"], iterations, np.array(history.column("lr")))
        _draw_phases(axes["Seconds per iteration, by phase"], iterations, history)
        marked = _draw_epochs(list(axes.values()), history)
        axes["Loss"].set_xlim(iterations[0] - 0.5, iterations[-1] + 0.5)
    for title in dict.fromkeys(rows[-1]):
        axes[title].set_xlabel(
            "iteration (lines: epochs)" if marked else "iteration", color=_FAINT, fontsize=9
        )
    return figure


Series = dict[str, tuple[Array, Array]]
"""Iterations and values by ``"set metric"``."""


def _validations(history: History) -> Series:
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in history.validations:
        for metric, value in row.items():
            if metric not in ("epoch", "iteration", "name") and np.isfinite(value):
                at, values = found.setdefault(f"{row['name']} {metric}", ([], []))
                at.append(row["iteration"])
                values.append(value)
    return {name: (np.array(at), np.array(values, float)) for name, (at, values) in found.items()}


def _split(series: Series) -> tuple[Series, Series]:
    """Separate validation losses, which are compared with the training loss, from other scores."""
    losses = {name: points for name, points in series.items() if name.split(" ")[-1] == "loss"}
    return losses, {name: points for name, points in series.items() if name not in losses}


def _panels(scores: Series) -> Iterator[tuple[str, Series]]:
    """Put scores between 0 and 1 into one panel; any other has a scale, and so a panel, of its own."""
    shared = {name: p for name, p in scores.items() if p[1].min() >= 0 and p[1].max() <= 1}
    if shared:
        yield "Validation", shared
    for name, points in scores.items():
        if name not in shared:
            yield f"Validation: {name}", {name: points}


def _pairs(titles: list[str]) -> list[list[str]]:
    """Two panels to a row; an odd one out takes the whole row."""
    return [[*titles[i : i + 2], titles[i]][:2] for i in range(0, len(titles), 2)]


def _summary(history: History) -> str:
    seconds, samples = sum(history.column("seconds")), sum(history.column("samples"))
    epochs = history[-1]["epoch"]
    return (
        f"{len(history):,} iteration{'s' * (len(history) > 1)} to epoch {epochs:,}: "
        f"{samples:,} records in {_duration(seconds)}, {samples / max(seconds, 1e-9):,.0f} records/s"
    )


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds) // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds % 60:.0f} s" if minutes else f"{seconds:.1f} s"


def _style(ax: Axes, title: str) -> None:
    ax.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=_INK)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(_FAINT)
    ax.grid(axis="y", color=_GRID, linewidth=0.9)
    ax.set_axisbelow(True)
    ax.tick_params(colors=_FAINT, labelcolor=_INK, length=0, labelsize=8.5)
    ax.tick_params(axis="x", labelbottom=True)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10], min_n_ticks=1))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _draw_loss(ax: Axes, iterations: Array, loss: Array, validation: Series) -> None:
    """Draw every loss faintly (as the band they fill, when there are many) and their running mean."""
    finite = np.isfinite(loss)
    if not finite.any():
        return
    iterations, loss = iterations[finite], loss[finite]
    few = len(loss) < 20
    smooth = loss if few else _smooth(loss)
    if few:
        ax.plot(iterations, loss, color=_LOSS, linewidth=1.8, marker="o", markersize=3.5, label="training")
    elif len(loss) > 4 * _BINS:
        at, low, high = _bins(iterations, np.mean), _bins(loss, np.min), _bins(loss, np.max)
        ax.fill_between(at, low, high, color=_LOSS, alpha=0.18, linewidth=0)
        ax.plot(at, _bins(smooth, np.mean), color=_LOSS, linewidth=1.8, label="training, smoothed")
    else:
        ax.plot(iterations, loss, color=_LOSS, linewidth=0.9, alpha=0.35)
        ax.plot(iterations, smooth, color=_LOSS, linewidth=1.8, label="training, smoothed")
    for color, (name, (at, values)) in zip(cycle(_SERIES), validation.items(), strict=False):
        ax.plot(at, values, color=color, **_points(at), label=name)
    shown = np.concatenate([smooth, *(values for _, values in validation.values())])
    if smooth.min() > 0 and smooth.max() > 50 * smooth.min() and loss.min() > 0:
        ax.set_yscale("log")
    elif not few:  # a few wild losses at the start would flatten all that follows
        least = float(min(np.min(loss), np.min(shown)))
        most = float(max(np.quantile(loss, 0.995), np.max(shown)))
        margin = 0.06 * (most - least) or 0.5
        ax.set_ylim(least - margin if least < 0 else max(least - margin, 0.0), most + margin)
    _legend(ax)
    ax.annotate(
        f"{smooth[-1]:.4g}",
        (iterations[-1], smooth[-1]),
        xytext=(5, 0),
        textcoords="offset points",
        color=_LOSS,
        fontsize=9,
        fontweight="bold",
        va="center",
        annotation_clip=False,
    )


def _draw_scores(ax: Axes, series: Series) -> None:
    for color, (name, (at, values)) in zip(cycle(_SERIES), series.items(), strict=False):
        ax.plot(at, values, color=color, **_points(at), label=f"{name}  {values[-1]:.4g}")
    _legend(ax)


def _points(at: Array) -> dict[str, Any]:
    """Style of a line through points that lie apart, the last one on the edge."""
    return {"linewidth": 1.6, "marker": "o" if len(at) <= 60 else "", "markersize": 4, "clip_on": False}


def _draw_rate(ax: Axes, iterations: Array, rate: Array) -> None:
    step = max(1, len(rate) // 2000)
    ax.plot(iterations[::step], rate[::step], color=_SERIES[3], linewidth=1.6)
    ax.set_ylim(0, (float(np.nanmax(rate)) if np.isfinite(rate).any() else 1.0) * 1.15 or 1.0)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def _draw_phases(ax: Axes, iterations: Array, history: History) -> None:
    """Stack the phases' mean seconds; small ones are part of ``other``."""
    seconds = np.array(history.column("seconds"))
    found = (name.removeprefix("phases.") for name in history.columns if name.startswith("phases."))
    names = [name for name in found if name != "other"]
    order = sorted(names, key=lambda name: list(_PHASES).index(name) if name in _PHASES else len(_PHASES))
    steady = slice(1 if len(seconds) > 2 else 0, None)  # the first iteration starts Python and loads torch
    total = max(float(seconds[steady].sum()), 1e-9)
    layers, shares, rest = {}, {}, seconds
    every = {name: np.array(history.column(f"phases.{name}")) for name in order}
    added = np.sum([*every.values(), np.zeros_like(seconds)], axis=0)
    # In histories of earlier releases phases overlap.
    fitting = np.minimum(1.0, seconds / np.where(added > 0, added, 1.0))
    for name in order:
        values = every[name] * fitting
        if values[steady].sum() >= 0.005 * total:
            layers[name], shares[name] = values, values[steady].sum() / total
            rest = rest - values
    layers["other"] = np.clip(rest, 0, None)
    shares["other"] = layers["other"][steady].sum() / total
    at = _bins(iterations, np.mean)
    at = np.concatenate([[iterations[0] - 0.5], at, [iterations[-1] + 0.5]])
    binned = [np.pad(_bins(values, np.mean), 1, mode="edge") for values in layers.values()]
    colors = [_PHASES.get(name, color) for name, color in zip(layers, cycle(_SERIES), strict=False)]
    labels = [f"{name}  {share:.0%}" for name, share in shares.items()]
    ax.stackplot(at, *binned, colors=colors, labels=labels, linewidth=0, step="mid")
    height = np.sum(binned, axis=0)
    ax.set_ylim(0, min(float(height.max()), 2.5 * float(np.median(height))) * 1.08 or 1)
    handles, texts = ax.get_legend_handles_labels()
    ax.legend(
        handles[::-1],
        texts[::-1],
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        fontsize=8.5,
        labelcolor=_INK,
        handlelength=1.0,
        handleheight=1.0,
    )


def _draw_epochs(axes: list[Axes], history: History) -> bool:
    """Mark where epochs begin, unless there are too many to tell apart."""
    epochs = np.array(history.column("epoch"))
    starts = np.flatnonzero(np.diff(epochs)) + 1
    if not 0 < len(starts) <= _MAX_EPOCH_LINES or len(epochs) <= 2 * len(starts):
        return False
    for ax in axes:
        for start in starts:
            ax.axvline(history[int(start)]["iteration"] - 0.5, color="#cfd4da", linewidth=0.8, zorder=0.5)
    return True


def _legend(ax: Axes) -> None:
    ax.legend(frameon=False, fontsize=8.5, labelcolor=_INK, loc="best", handlelength=1.4)


def _smooth(values: Array) -> Array:
    """Return the centred running mean over a fiftieth of the values, shorter at the ends."""
    half = max(1, len(values) // 100)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return np.asarray((sums[high] - sums[low]) / (high - low))


def _bins(values: Array, reduce: Any) -> Array:
    """Reduce a long column to a few hundred values."""
    if len(values) <= _BINS:
        return np.asarray(values, float)
    return np.array([reduce(chunk) for chunk in np.array_split(values, _BINS)])

"""The picture of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from sparkdl import tune
from sparkdl.tune.trial import Trial

pytest.importorskip("matplotlib")

from sparkdl.tune.plot import plot
from sparkdl.tune.space import Space


def trials(losses: Sequence[float], rates: Sequence[float] = (1e-4, 1e-3, 1e-2, 1.0)) -> list[Trial]:
    return [
        Trial(
            number=n,
            params={"lr": rates[n % 4], "width": 16 * (n + 1)},
            first_params={},
            values={1: -2 * loss, 2: -loss},
            epochs=2,
            status="finished",
        )
        for n, loss in enumerate(losses)
    ]


def test_epochs_are_whole_and_the_best_line_is_above_the_others() -> None:
    curves, params = plot(trials([0.4, 0.3, 0.2, 0.5]), "val/loss", "min", 2).axes
    assert {*map(float.is_integer, curves.get_xticks())} == {True}
    for axes in (curves, params):
        best = axes.lines[2] if axes is curves else max(axes.lines, key=lambda line: line.get_linewidth())
        others = [line for line in axes.lines if line is not best]
        assert all(best.get_linewidth() > line.get_linewidth() for line in others)
        assert all(best.get_zorder() > line.get_zorder() for line in others if len(line.get_xdata()) > 1)
    assert curves.get_legend().get_texts()[0].get_text() == "best: trial 2, 0.2"


def test_a_trial_far_off_does_not_flatten_the_best() -> None:
    curves = plot(trials([0.4, 0.3, 0.2, 1e4]), "val/loss", "min", 2).axes[0]
    assert curves.get_ylim()[0] < 0.2
    assert 0.8 < curves.get_ylim()[1] < 1.0
    assert "cut off" in curves.get_title()
    assert "cut off" not in plot(trials([0.4, 0.3]), "val/loss", "min", 1).axes[0].get_title()


def test_params_of_logarithmic_spaces_are_drawn_by_their_logarithms() -> None:
    space = Space({"lr": tune.loguniform(1e-4, 1), "width": [16, 32], "n": tune.lograndint(1, 9)})
    assert space.logarithmic == ("lr", "n")
    params = plot(trials([0.4, 0.3, 0.2, 0.5]), "val/loss", "min", 2, space.logarithmic).axes[1]
    lines = [line.get_ydata() for line in params.lines if len(line.get_xdata()) == 3]
    assert sorted(y[0] for y in lines) == pytest.approx(
        [math.log10(r) / 4 + 1 for r in (1e-4, 1e-3, 1e-2, 1)]
    )
    assert params.get_xticklabels()[0].get_text() == "lr\n(log)"
    plain = plot(trials([0.4, 0.3, 0.2, 0.5]), "val/loss", "min", 2).axes[1]
    lines = [line.get_ydata() for line in plain.lines if len(line.get_xdata()) == 3]
    assert sorted(y[0] for y in lines) == pytest.approx(
        [(r - 1e-4) / (1 - 1e-4) for r in (1e-4, 1e-3, 1e-2, 1)]
    )


def test_nothing_to_draw_is_no_error() -> None:
    assert len(plot([], "val/loss", "min", None).axes) == 2

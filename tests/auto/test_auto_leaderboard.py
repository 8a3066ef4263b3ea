"""The leaderboard: sorted entries, as a table."""

from __future__ import annotations

import math

import pytest

from sparkdl.auto import Entry, Leaderboard
from sparkdl.exceptions import ConfigError


def entry(model: str, value: float, **params: object) -> Entry:
    return Entry(model=model, value=value, seconds=1.5, epochs=3, params=params)


def test_the_best_is_first_and_what_has_no_value_last() -> None:
    entries = [entry("a", 0.5, lr=0.1), entry("none", math.nan), entry("b", 0.7), entry("c", 0.5)]
    most = Leaderboard(entries, "val/accuracy", "max")
    assert [e.model for e in most.entries] == ["b", "a", "c", "none"]
    least = Leaderboard(entries, "val/loss", "min")
    assert [e.model for e in least.entries] == ["a", "c", "b", "none"]
    assert least.best.model == "a"
    table = least.dataframe()
    assert list(table["rank"]) == [1, 2, 3, 4]
    assert list(table.columns) == ["rank", "model", "val/loss", "epochs", "seconds", "status", "params.lr"]
    assert "<table>" in least._repr_html_()
    assert repr(least) == "Leaderboard(4 models, best a val/loss=0.5)"


def test_a_leaderboard_without_values_has_no_best() -> None:
    with pytest.raises(ConfigError, match="no model has a finite val/loss, of 1 that were tried"):
        _ = Leaderboard([entry("a", math.inf)], "val/loss", "min").best
    assert Leaderboard([], "val/loss", "min").dataframe().empty
    with pytest.raises(ConfigError, match="mode='best'"):
        Leaderboard([], "val/loss", "best")  # type: ignore[arg-type]

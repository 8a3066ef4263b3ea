"""A list of the models that were tried, with their scores: the best first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sparkdl import html
from sparkdl.exceptions import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from sparkdl.tune.result import SearchResult

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model that was tried.

    Attributes:
        model: its kind, such as ``"Tabular"``.
        value: its score on rows that it was not trained on; NaN if it has none.
        seconds: how long it was trained.
        epochs: epochs that it was trained for; 0 for models without.
        status: of a trial see :data:`sparkdl.tune.trial.Status`; ``"finished"`` for other models.
        params: what was chosen for it.
    """

    model: str
    value: float
    seconds: float
    epochs: int = 0
    status: str = "finished"
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The models that were tried, the best first.

    Args:
        entries: in any order. Of equal ones the earlier is the better; those without a value are last.
        metric: names the score.
        mode: ``"min"`` or ``"max"``: which scores are better.

    Attributes:
        entries: sorted.
        metric: as given.
        mode: as given.
    """

    entries: Iterable[Entry]
    metric: str
    mode: Literal["max", "min"]

    def __post_init__(self) -> None:
        if self.mode not in ("max", "min"):
            raise ConfigError(f"mode={self.mode!r:.100}: expected 'max' or 'min'")
        sign = -1 if self.mode == "max" else 1

        def order(entry: Entry) -> float:
            return sign * entry.value if math.isfinite(entry.value) else math.inf

        object.__setattr__(self, "entries", tuple(sorted(self.entries, key=order)))

    @property
    def best(self) -> Entry:
        """The best entry.

        Raises:
            ConfigError: if no entry has a finite value.
        """
        found = next(iter(self.entries), None)
        if found is None or not math.isfinite(found.value):
            raise ConfigError(
                f"no model has a finite {self.metric}, of {len(self)} that were tried; give more time, or "
                "look at the leaderboard's dataframe()"
            )
        return found

    def dataframe(self) -> pd.DataFrame:
        """Return one row per entry, the best first.

        The columns are ``rank`` (from 1), ``model``, the score by the metric's name, ``epochs``, ``seconds``,
        ``status``, and what was chosen as ``params.*``.
        """
        import pandas as pd

        columns = ["rank", "model", self.metric, "epochs", "seconds", "status"]
        rows = [
            {
                "rank": rank,
                "model": entry.model,
                self.metric: entry.value,
                "epochs": entry.epochs,
                "seconds": entry.seconds,
                "status": entry.status,
                **{f"params.{name}": value for name, value in entry.params.items()},
            }
            for rank, entry in enumerate(self.entries, 1)
        ]
        return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)

    def __len__(self) -> int:
        return len(tuple(self.entries))

    def __repr__(self) -> str:
        best = next(iter(self.entries), None)
        told = "" if best is None else f", best {best.model} {self.metric}={best.value:.6g}"
        return f"Leaderboard({len(self)} models{told})"

    def _repr_html_(self) -> str:
        shown = list(self.entries)[:_SHOWN]
        head = ["rank", "model", self.metric, "epochs", "seconds", "status", "params"]
        rows = [
            (
                rank,
                entry.model,
                f"{entry.value:.6g}",
                entry.epochs,
                f"{entry.seconds:.1f}",
                entry.status,
                ", ".join(f"{name}={html.short(value)}" for name, value in entry.params.items()),
            )
            for rank, entry in enumerate(shown, 1)
        ]
        return html.block("Leaderboard", {"models": len(self), "shown": len(shown)}, html.table(head, rows))


def entries_of(result: SearchResult, model: str) -> list[Entry]:
    """Return the trials of a search as entries.

    The best trial has the score and the epochs of its best state, which may be an earlier one than its last.
    """
    states = {trial.number: (result.value_of(trial), trial.epochs) for trial in result.trials}
    if result.best is not None:
        states[result.best.number] = result.best.value, result.best.epoch
    return [
        Entry(
            model=model,
            value=states[trial.number][0],
            seconds=trial.seconds,
            epochs=states[trial.number][1],
            status=trial.status,
            params=dict(trial.params),
        )
        for trial in result.trials
    ]

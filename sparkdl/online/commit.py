"""A checkpoint for each batch of a stream: the batch is learned if, and only if, it is there.

Its ledger lists the batches that were learned, with the model's score on each before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.saved.identity import Identity, identity_of
from sparkdl.train.checkpoint import Path
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.hooks.checkpoint import Checkpoint
from sparkdl.train.run import Run
from sparkdl.train.state import TrainState
from sparkdl.wire.frame import Array, under

_COLUMNS = ("batch", "rows", "iteration")
_SCORE, _TOTAL, _OTHER = "score.", "total.", "other."


@dataclass(frozen=True, slots=True)
class Ledger:
    """The batches that a checkpoint has learned; a part of the checkpoint, so that both are of one moment."""

    stream: str = ""  # id of the query whose batches these are; empty for batches from elsewhere
    batch: int = -1  # number of the last batch, -1 before the first
    batches: int = 0  # how many there were, of all streams
    # of the last batches, number, rows, and completed iterations after it; shape (n, 3)
    numbers: Array = field(default_factory=lambda: np.empty((0, len(_COLUMNS)), np.int64))
    # likewise the prequential scores by name, NaN where there was none
    scores: Mapping[str, Array] = field(default_factory=dict)
    # by score, its sum over all batches, weighted by rows, and the sum of these weights
    totals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # numbers of the last batches of other streams, by id
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def iteration(self) -> int:
        """Completed iterations after the last batch."""
        return int(self.numbers[-1, 2]) if len(self.numbers) else 0

    def last(self, stream: str) -> int:
        """Return the number of a stream's last batch, -1 before the first."""
        return self.batch if stream == self.stream else self.others.get(stream, -1)

    def elsewhere(self) -> Ledger:
        """Return the ledger of another folder that begins with the checkpoint, of which no batch is its own.

        A query keeps its id wherever its batches are learned. Without one batches are those of the folder,
        and numbers begin anew.
        """
        named = {**self.others, self.stream: self.batch}
        return Ledger(others={name: last for name, last in named.items() if name and last >= 0})

    def added(
        self, stream: str, batch: int, rows: int, iteration: int, scores: Mapping[str, float], keep: int
    ) -> Ledger:
        """Return the ledger with one more batch, and rows of the last ``keep`` batches."""
        before, totals = len(self.numbers), dict(self.totals)
        for name, value in scores.items():
            total, weight = totals.get(name, (0.0, 0.0))
            known = not math.isnan(value)
            totals[name] = (total + rows * value, weight + rows) if known else (total, weight)
        columns = {}
        for name in dict.fromkeys([*self.scores, *scores]):
            old = self.scores.get(name, np.full(before, np.nan))
            columns[name] = np.append(old, scores.get(name, math.nan))[-keep:]
        numbers = np.concatenate([self.numbers, np.array([[batch, rows, iteration]], np.int64)])[-keep:]
        others = {name: last for name, last in {**self.others, self.stream: self.batch}.items() if last >= 0}
        others.pop(stream, None)
        return Ledger(stream, batch, self.batches + 1, numbers, columns, totals, others)

    def mean(self, last: int | None = None) -> dict[str, float]:
        """Return the mean of each score, weighted by rows: over all batches, or over the last ones."""
        if last is None:
            return {
                name: total / weight if weight else math.nan for name, (total, weight) in self.totals.items()
            }
        found = {}
        for name, values in self.scores.items():
            values, rows = values[-last:], self.numbers[-last:, 1]
            known = ~np.isnan(values) & (rows > 0)
            found[name] = float(np.average(values[known], weights=rows[known])) if known.any() else math.nan
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each of the last batches: its number, rows, iteration, and scores."""
        return [
            dict(zip(_COLUMNS, map(int, numbers), strict=True))
            | {name: float(values[n]) for name, values in self.scores.items()}
            for n, numbers in enumerate(self.numbers)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return it as a hook's state."""
        found: dict[str, Any] = {
            name: getattr(self, name) for name in ("stream", "batch", "batches", "numbers")
        }
        found |= {f"{_SCORE}{name}": values for name, values in self.scores.items()}
        found |= {f"{_OTHER}{name}": batch for name, batch in self.others.items()}
        return found | {f"{_TOTAL}{name}": np.array(values) for name, values in self.totals.items()}

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> Ledger:
        """Read what :meth:`state_dict` returned; an empty state is that of a run without a stream."""
        if not state:
            return cls()
        try:
            stream, batch, batches = (state[name] for name in ("stream", "batch", "batches"))
            numbers = np.asarray(state["numbers"], np.int64).reshape(-1, len(_COLUMNS))
            if not isinstance(stream, str) or type(batch) is not int or type(batches) is not int:
                raise TypeError(f"stream {stream!r:.60}, batch {batch!r:.40} of {batches!r:.40}")
            scores = _named(state, _SCORE, len(numbers))
            totals = {name: (float(v[0]), float(v[1])) for name, v in _named(state, _TOTAL, 2).items()}
            others = under(_OTHER, state)
            if any(type(last) is not int for last in others.values()):
                raise TypeError(f"batches of other streams {others!r:.80}")
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigError(
                f"the checkpoint's list of the stream's batches cannot be read: {error!r:.300}",
                code="config-resume",
            ) from error
        return cls(stream, batch, batches, numbers, scores, totals, others)


def _named(state: Mapping[str, Any], prefix: str, length: int) -> dict[str, Array]:
    """Return the columns whose names begin with a prefix, without it."""
    found = {name: np.asarray(values, np.float64) for name, values in under(prefix, state).items()}
    for name, array in found.items():
        if array.shape != (length,):
            raise ValueError(f"{prefix}{name} has shape {array.shape}, expected {(length,)}")
    return found


class Commit(Checkpoint):
    """Writes a checkpoint at the end of a run that went well, and never else; a write that fails is an error.

    What a failed run has learned of a batch counts for nothing: the batch comes again, and begins with the
    checkpoint before it.
    """

    # returns the ledger with this batch, for the number of completed iterations
    entry: Callable[[int], Ledger] = staticmethod(lambda iteration: Ledger())

    def __init__(self, path: Path) -> None:
        super().__init__(path, keep=None, background=False, max_failures=0)
        self._state: Mapping[str, Any] = {}

    def looks(self, previous: TrainState, current: TrainState) -> bool:
        """Return that the weights are not needed before the end."""
        return False

    def on_boundary(self, run: Run, last: bool) -> None:
        """Write at the end, unless an error or Ctrl-C has ended the run."""
        if last and run.error is None and run.stopped != "interrupt":
            self._state = self.entry(run.state.iteration).state_dict()
            super().on_boundary(run, last)

    def state_dict(self) -> dict[str, Any]:
        """Return the ledger with this batch."""
        return dict(self._state)


def begun(module: nn.Module, point: ResumePoint | None) -> Identity | None:
    """Return of which run a module is that training goes on with; ``None`` if it is of none."""
    found = identity_of(module)
    return Identity("", point.state.iteration) if found is None and point is not None else found


def continued(point: ResumePoint | None, own: Identity | None) -> dict[str, Any]:
    """Return what ``fit`` goes on from; the same start goes on from the last commit of this program."""
    if point is None:
        return {}
    continues = own is not None and own.is_same(point.identity)
    return {"resume": replace(point, continues=continues), "rows": "new"}


def ledger_of(point: ResumePoint | None) -> Ledger:
    """Return which batches a checkpoint has learned; none if a plain run has written it."""
    return Ledger.read(point.hooks.get(f"{Commit.__name__}.0", {})) if point is not None else Ledger()

"""From rows of the history to points worth keeping: which iterations, and what stands for the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sparkdl.train.options.triggers import Trigger
from sparkdl.train.state import TrainState


class Thinning(Trigger):
    """Fires after each of the first 1,000 iterations, then after every 10th, from 10,000 every 100th.

    Short runs are kept whole, long ones do not fill disks: a million iterations give 11,800 points.
    """

    def __call__(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether this iteration is one of those to keep."""
        done = current.iteration
        return done % (1 if done <= 1_000 else 10 if done <= 10_000 else 100) == 0

    def __repr__(self) -> str:
        return "Thinning()"


class Interval:
    """Sums rows up until a point is taken, so that iterations between two points count as well."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.samples = 0
        self.seconds = 0.0
        self._loss = 0.0
        self.lr = math.nan  # of the last iteration
        self._phases: dict[str, float] = {}
        self._bytes: dict[str, float] = {}
        self._extras: dict[str, list[float]] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row of the history in."""
        self.rows += 1
        self.samples += row["samples"]
        self.seconds += row["seconds"]
        if row["samples"]:  # an iteration without rows repeats the loss before it
            self._loss += row["loss"] * row["samples"]
        self.lr = row["lr"]
        for sums, values in ((self._phases, row["phases"]), (self._bytes, row["bytes"])):
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value
        for name, value in row.get("extras", {}).items():
            self._extras.setdefault(name, []).append(value)

    @property
    def loss(self) -> float:
        """Mean loss of the samples; NaN without any."""
        return self._loss / self.samples if self.samples else math.nan

    @property
    def records_per_second(self) -> float:
        """Samples by seconds of the iterations."""
        return self.samples / max(self.seconds, 1e-9)

    def shares(self) -> dict[str, float]:
        """Return the share of the seconds that each phase took, largest first."""
        shares = {name: seconds / max(self.seconds, 1e-9) for name, seconds in self._phases.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def take(self) -> dict[str, float]:
        """Return the values of a point by tag, and start the next point; empty without rows.

        ``train/loss`` is the mean over the samples, ``train/lr`` the last one; ``phases/*`` are seconds
        per iteration, ``bytes/*`` bytes per iteration, ``extras/*`` means.
        """
        if not self.rows:
            return {}
        point = {
            "train/loss": self.loss,
            "train/lr": self.lr,
            "train/records_per_second": self.records_per_second,
            "train/seconds_per_iteration": self.seconds / self.rows,
        }
        if not self.samples:
            del point["train/loss"]
        point |= {f"phases/{name}": total / self.rows for name, total in self._phases.items()}
        point |= {f"bytes/{name}": total / self.rows for name, total in self._bytes.items()}
        point |= {f"extras/{name}": sum(values) / len(values) for name, values in self._extras.items()}
        self._clear()
        return point

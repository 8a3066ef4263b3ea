"""The layout of a panel: what its columns are, and how its series become windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl.data.store.partition import Stretch
from sparkdl.series.frequency import Frequency

TARGET, PAST, KNOWN, STATIC = "target", "past", "known", "static"
MISSING = ("error", "linear", "previous", "zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelLayout:
    """What the columns of a panel are, and how its series become windows."""

    id: str  # column that tells series apart; empty if all rows are one series
    time: str  # column of times: dates, timestamps or integers
    target: str  # column to forecast
    past: Sequence[str] = ()  # columns of covariates that are known up to the present
    known: Sequence[str] = ()  # columns of covariates whose future is known, such as calendars and plans
    static: Sequence[str] = ()  # columns with one number for each series
    frequency: Frequency  # distance of the steps
    steps: int  # steps of the past that the module sees
    horizon: int  # steps to forecast
    scaling: str = "standard"  # how each series is scaled: ``standard``, ``mean``, ``none``
    # what the target is at steps without a value: ``error``, ``linear``, ``previous``, ``zero``
    missing: str = "linear"
    skip: bool = False  # whether series that cannot be used are left out; they are an error otherwise

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the module's arguments."""
        given = {TARGET: True, PAST: self.past, KNOWN: self.known, STATIC: self.static}
        return tuple(name for name, columns in given.items() if columns)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one window of each of the module's inputs."""
        every = {
            TARGET: (self.steps,),
            PAST: (self.steps, len(self.past)),
            KNOWN: (self.steps + self.horizon, len(self.known)),
            STATIC: (len(self.static),),
        }
        return {name: every[name] for name in self.inputs}

    @property
    def stretches(self) -> list[Stretch]:
        """The columns of a window, in terms of the stored columns: inputs, then the label."""
        lengths = {TARGET: self.steps, PAST: self.steps, KNOWN: self.steps + self.horizon, STATIC: 0}
        inputs = [Stretch(f"features_{name}", name, 0, lengths[name]) for name in self.inputs]
        return [*inputs, Stretch("label", TARGET, self.steps, self.horizon)]

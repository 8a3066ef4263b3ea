"""Back-off: when tasks exchange directly again after a loss, and how long groups are until then."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds by shuffles after somebody was lost again; twice as many each time, fewer when all goes well."""

_UNTIL_AGAIN_SECONDS = 1.0
"""After a loss, groups by shuffles take about so long, or as long as the pause: the loss may soon be over."""

_UNTIL_BACK_SECONDS = 0.25
"""So long is the first group without an executor that was there: it may be back soon, and takes part from the
next group on. Each further one is twice as long."""

_MOST_PATIENCE = 4
"""After losses a rank may be silent for up to so many times as long, until a group is completed."""


@dataclass(slots=True)
class BackOff:
    """Pause after losses.

    Attributes:
        failures: losses in a row.
        patience: how many times as long as usual a rank may be silent.
    """

    failures: int = 0
    patience: int = 1
    _pause: float = 0.0
    _again: float = -float("inf")

    def is_over(self, now: float) -> bool:
        """Return whether tasks may exchange directly."""
        return now >= self._again

    @property
    def seconds(self) -> float:
        """About how long the groups until then take."""
        return max(_UNTIL_AGAIN_SECONDS, self._pause)

    def lost(self, now: float, *, begun: bool, gone: bool = False) -> float:
        """Note a loss; return the seconds until tasks exchange directly again."""
        if begun:  # or it takes longer than anybody has waited
            self.patience = min(2 * self.patience, _MOST_PATIENCE)
        elif self.failures or not gone:  # other jobs may hold the slots for longer
            self._pause = max(self._pause, _FIRST_PAUSE)
        pause = self._pause
        self._again = now + pause
        self._pause = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self.failures += 1
        return pause

    def completed(self) -> None:
        """Note a group without a loss."""
        self._pause = self._pause / 2 if self._pause > _FIRST_PAUSE else 0.0
        self.failures, self.patience = 0, 1


@dataclass(slots=True)
class Pace:
    """Seconds that steps have taken.

    Attributes:
        direct: a step of the latest group whose tasks exchanged directly; a guess until there is one.
        shuffled: likewise by shuffles.
        longest: the longest step of all.
        short: about how long the next group takes while executors are away.
    """

    direct: float = 0.01
    shuffled: float = 0.5
    longest: float = 0.0
    short: float = _UNTIL_BACK_SECONDS

    def took(self, step: float, *, direct: bool) -> None:
        """Note a step of a completed group."""
        if direct:
            self.direct = step
        else:
            self.shuffled = step
        self.longest = max(self.longest, step)

    def is_short(self, short: bool) -> None:
        """Note whether executors were away in a group whose tasks exchanged directly."""
        self.short = min(2 * self.short, _LONGEST_PAUSE) if short else _UNTIL_BACK_SECONDS

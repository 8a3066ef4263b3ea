"""The straggler policy: going on without the last rows of slow tasks, within bounds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from sparkdl.compute.forward_backward import Allowance
from sparkdl.exceptions import ConfigError, integer_option, is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStragglers:
    """Lets tasks that take much longer than usual leave rows out.

    A task goes through its rows of the iteration in ``chunks`` pieces. After its deadline, ``patience``
    times the median time of recent tasks, it leaves the rest out. The gradient is the mean over the
    samples that were computed. (BigDL's ``dropPercentage`` does this for whole tasks.) If more than
    ``max_fraction`` of the iteration's rows would be missing, it runs again without a deadline.

    Timing determines which rows count, so two runs may differ. A run that recovers from a
    loss repeats an iteration with the same rows.

    Attributes:
        max_fraction: largest share of an iteration's rows that may be missing, in (0, 1).
        patience: deadline as a multiple of the median time, above 1.
        window: iterations whose times count; there is no deadline before half of them have run.
        chunks: pieces in which a task goes through its rows. BatchNorm sees a piece at a time, as with
            ``micro_batch_size``.

    Raises:
        ConfigError: if a value cannot work.
    """

    max_fraction: float = 0.1
    patience: float = 2.0
    window: int = 20
    chunks: int = 8

    def __post_init__(self) -> None:
        for name, number, low, high in (
            ("max_fraction", self.max_fraction, 0.0, 1.0),
            ("patience", self.patience, 1.0, math.inf),
        ):
            if not is_number(number) or not low < number < high:
                limits = f"above {low:g}" + (f" and below {high:g}" if high < math.inf else "")
                raise ConfigError(f"DropStragglers({name}={number!r}): expected a number {limits}")
        for name, integer in (("window", self.window), ("chunks", self.chunks)):
            integer_option("DropStragglers", name, integer, 2)


@dataclass(slots=True)
class Deadlines:
    """Sets the deadline of the coming iteration from the times of those before."""

    rules: DropStragglers
    _times: deque[Sequence[float]] = field(init=False)

    def __post_init__(self) -> None:
        self._times = deque(maxlen=self.rules.window)

    def add(self, seconds: Sequence[float]) -> None:
        """Record how long the tasks of an iteration took, from their start to their gradient."""
        self._times.append(tuple(seconds))

    def allowance(self) -> Allowance:
        """Return the allowance of the next iteration's tasks."""
        if 2 * len(self._times) < self.rules.window:
            return Allowance(self.rules.chunks)
        usual = median(seconds for tasks in self._times for seconds in tasks)
        return Allowance(self.rules.chunks, self.rules.patience * usual, most=self.rules.max_fraction)

"""Running ahead of the loop: several iterations at once, delivered one by one.

Triggers, hooks, schedules and history go through a run iteration by iteration. A group of iterations is
planned from what they say before it; where what they do afterwards does not agree with the plan (a trigger
fires that nobody could foresee, a hook changes something or looks at the weights), the group is undone and
only the iterations that count are run again. Tasks are deterministic, so the result is that of running
them one by one, to the bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from sparkdl.allreduce.directives import Step
from sparkdl.allreduce.outcome import Outcome, fixed_seconds
from sparkdl.allreduce.plans.base import LONGEST_GROUP, seconds_of_group
from sparkdl.train.recovery import Recovery

_FULL_GROUPS = 8
"""So many groups in a row have to be used up before a limit that an undone group has set is raised."""


class Ahead:
    """Runs iterations in groups.

    Args:
        recovery: runs a group.
        size: iterations of a group; ``None`` to fit the plan's ``group_seconds``, or what keeps the part of
            its fixed cost small, which grows with the number of tasks and with what is persisted.
    """

    def __init__(self, recovery: Recovery, size: int | None) -> None:
        self._recovery = recovery
        self._size = size
        self._now = size or 1
        self._limit = LONGEST_GROUP
        self._used_up = 0
        self._waiting: deque[tuple[Step, Outcome]] = deque()
        self._delivered: list[Step] = []
        self._owed: list[Step] = []
        self._each = 0.0

    @property
    def lead(self) -> float:
        """Seconds that iterations took that are still to be delivered."""
        return self._each * len(self._waiting)

    def run(self, iteration: Step, upcoming: Callable[[int], list[Step]]) -> Outcome:
        """Return the outcome of an iteration, after running it if that has not been done yet.

        Args:
            iteration: the step to run now.
            upcoming: returns the steps that are expected after it, at most so many.

        Raises:
            TaskError: if it keeps failing.
        """
        if self._owed or (self._waiting and not self._waiting[0][0].same_as(iteration)):
            self.settle()
        if not self._waiting:
            most = min(self._now, self._limit, self._recovery.engine.longest_group)
            self._run_group([iteration, *upcoming(most - 1)])
        planned, outcome = self._waiting.popleft()
        self._delivered.append(planned)
        if not self._waiting:
            self._used_up += 1
        return outcome

    def settle(self) -> None:
        """Let the model be that of the iteration delivered last.

        Raises:
            TaskError: if running iterations again keeps failing; the next call tries once more.
        """
        if self._waiting:
            self._waiting.clear()
            # Whoever has ended this group will probably end the next ones as early.
            self._limit, self._used_up = len(self._delivered), 0
            self._owed = list(self._delivered)
            self._recovery.undo(self._delivered)
        while self._owed:  # where an executor has lost its files, a run ends after one iteration
            del self._owed[: len(self._recovery.run(self._owed))]

    def _run_group(self, group: list[Step]) -> None:
        if self._used_up >= _FULL_GROUPS:
            self._limit, self._used_up = min(2 * self._limit, LONGEST_GROUP), 0
        begin = perf_counter()
        outcomes = self._recovery.run(group)
        self._waiting.extend(zip(group, outcomes, strict=False))
        self._delivered.clear()
        elapsed = perf_counter() - begin
        self._each = elapsed / len(outcomes)
        if self._size is None:
            wanted = self._recovery.engine.plan.group_seconds
            # Not all at once: the first ones take longer than those after them.
            fitting = int(seconds_of_group(wanted, fixed_seconds(outcomes, elapsed)) / self._each)
            self._now = max(1, min(fitting, 2 * self._now))

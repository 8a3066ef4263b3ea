"""Consequences of a group's problems for its steps."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl.allreduce.directives import Step
from sparkdl.compute.problems import FailedModel, Fatal, LackingState, LocalState, LostPeer, Problem


def loses_state(problem: Problem) -> bool:
    """Return whether executors may not have any more what the group has started from."""
    return isinstance(problem, LackingState) or (isinstance(problem, LostPeer) and problem.begun)


def sound(steps: Sequence[Step], problems: Sequence[Problem]) -> Sequence[Step]:
    """Return the steps before the first one that running it again would not mend.

    Raises:
        NonFiniteError: if it is the first of them, whose loss or gradient is not finite.
        DataError: if a partition has other rows than before.
        ModelError: if the module has changed in a way that stays in one process.
    """
    fatal = [problem for problem in problems if isinstance(problem, Fatal)]
    if not fatal:
        return steps
    local = [problem for problem in fatal if isinstance(problem, LocalState)]
    if local:  # nobody knows since when, and in a new process the step would work
        raise local[0].error(str(steps[local[0].iteration - steps[0].iteration]))
    completed = fatal[0].iteration - steps[0].iteration
    if completed > 0:  # those are completed; the next group will begin with the failing one
        return steps[:completed]
    if isinstance(fatal[0], FailedModel):
        return steps[:1]  # alone, and by shuffles, it raises in its task, which Spark tries again
    raise fatal[0].error(str(steps[0]))

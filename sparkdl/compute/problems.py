"""Reasons why a step cannot be completed: values that travel to the driver, and become its errors.

A failing task would make Spark retry it three times, to the same end, and would bury the reason in a Java
trace. A problem instead reaches the driver in the job that is running anyway. Its iteration counts the
completed iterations before the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, get_args

from sparkdl.data.store.manifest import changed_error
from sparkdl.exceptions import DataError, ModelError, NonFiniteError


@dataclass(frozen=True, slots=True)
class MissingPartition:
    """The files of a partition are not on the executor: its rows must be built again."""

    kind: ClassVar[str] = "missing"
    iteration: int
    partition: int


@dataclass(frozen=True, slots=True)
class ChangedPartition:
    """A partition was built again and has other rows: its source has changed."""

    kind: ClassVar[str] = "changed"
    iteration: int  # completed iterations before the step
    partition: int
    rows: int  # rows that it has now
    expected: int  # rows that it had
    reason: str  # why it cannot be built again; empty if it was

    def error(self, where: str) -> DataError:
        """Return the error that the user sees."""
        return changed_error({**asdict(self), "error": self.reason}, where)


@dataclass(frozen=True, slots=True)
class LackingState:
    """An executor has no copy of something that an earlier phase left for this one."""

    kind: ClassVar[str] = "lacking"
    iteration: int
    what: str


@dataclass(frozen=True, slots=True)
class LostPeer:
    """A rank could not be reached by another one, or did not answer."""

    kind: ClassVar[str] = "peer"
    iteration: int  # completed iterations before the group
    partition: int  # the rank
    reason: str  # what was seen
    begun: bool  # whether the group had begun, so that what it started from may be overwritten
    gone: bool = False  # whether every process that might have run it was gone, rather than late


@dataclass(frozen=True, slots=True)
class NonFiniteLoss:
    """The loss of a partition became NaN or infinite."""

    kind: ClassVar[str] = "loss"
    iteration: int  # completed iterations before the step
    partition: int
    loss: float
    found: str = ""  # the feature that it comes from, with column and row; empty if all are finite

    def error(self, where: str) -> NonFiniteError:
        """Return the error that the user sees."""
        advice = "Try a lower learning rate, or look for extreme values in the data"
        if self.found:
            advice = f"It comes from {self.found}. Filter such rows or fill such values first"
        return NonFiniteError(
            f"the loss became {self.loss} in partition {self.partition} ({where}). "
            f"{advice}; the error's .result holds the module as it was before this iteration"
        )


@dataclass(frozen=True, slots=True)
class NonFiniteGradient:
    """The combined gradient of a parameter became NaN or infinite."""

    kind: ClassVar[str] = "gradient"
    iteration: int  # completed iterations before the step
    parameter: str  # name of the first such parameter
    sources: tuple[int, ...]  # partitions whose gradient is so

    def error(self, where: str) -> NonFiniteError:
        """Return the error that the user sees."""
        found = f"in partitions {list(self.sources)} ({where}), although the loss is finite"
        if not self.sources:
            found = f"in the mean over partitions ({where}): class weights below 0 add up to 0 in the batch"
        return NonFiniteError(
            f"the gradient of parameter {self.parameter!r} became NaN or infinite {found}. "
            "The error's .result holds the module as it was before this iteration"
        )


@dataclass(frozen=True, slots=True)
class FailedModel:
    """The user's module or loss failed on the rows of a partition."""

    kind: ClassVar[str] = "model"
    iteration: int
    partition: int
    message: str

    def error(self, where: str) -> ModelError:
        """Return the error that the user sees."""
        return ModelError(f"{self.message} ({where})")


@dataclass(frozen=True, slots=True)
class BadRows:
    """Rows of a scan cannot be read, or cannot become tensors."""

    kind: ClassVar[str] = "rows"
    iteration: int  # completed iterations before the step
    partition: int
    message: str  # what the error said
    code: str  # the error's

    def error(self, where: str) -> DataError:
        """Return the error that the user sees."""
        return DataError(f"{self.message} ({where})", code=self.code)


@dataclass(frozen=True, slots=True)
class LocalState:
    """The result depends on state that forward has changed, and that stays in one process."""

    kind: ClassVar[str] = "local_state"
    iteration: int
    partition: int
    message: str

    def error(self, where: str) -> ModelError:
        """Return the error that the user sees."""
        return ModelError(f"{self.message} ({where})")


Fatal = ChangedPartition | BadRows | NonFiniteLoss | NonFiniteGradient | FailedModel | LocalState
"""What running the step once more would not mend."""

Problem = MissingPartition | LackingState | LostPeer | Fatal

_BY_KIND: Mapping[str, type[Problem]] = {cls.kind: cls for cls in get_args(Problem)}


class ProblemError(Exception):
    """Carries the reasons why a step cannot be completed from where they are found to where they are sent."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(problems)
        self.problems = problems


def to_json(problem: Problem) -> dict[str, Any]:
    """Return a problem as JSON-compatible values."""
    return {"kind": problem.kind, **asdict(problem)}


def from_json(values: Mapping[str, Any]) -> Problem:
    """Read what :func:`to_json` returned."""
    fields: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if name != "kind"
    }
    return _BY_KIND[values["kind"]](**fields)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems, each once, in the order of their iterations and partitions."""
    distinct = {repr(problem): problem for problem in problems}  # two NaN are not equal
    return sorted(distinct.values(), key=lambda p: (p.iteration, getattr(p, "partition", 0)))

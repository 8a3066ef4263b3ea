"""Messages that say how a step went: of one rank, of all ranks, of a group; and why it cannot go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sparkdl.compute import problems
from sparkdl.compute.problems import Problem
from sparkdl.wire.frame import Array, Frame


@dataclass(frozen=True, slots=True)
class Report:
    """How a partition's forward and backward pass went.

    Attributes:
        source: the partition.
        rows: rows of its share, without those that were left out.
        other: whether they have other values than when they were built first.
        dropped: rows that were left out.
        lost: 1 if it began with a fresh state of its own because that was lost.
        weight: sum of its rows' weights.
        divisor: what its loss has been divided by.
        loss: mean loss.
        extras: further scalars that a training step returned.
        task: place, start, seconds and phases of its task.
        buffers: the buffers that the forward pass has changed, by kind.
    """

    kind: ClassVar[str] = "report"
    source: int
    rows: int
    other: bool
    dropped: int
    lost: int
    weight: float
    divisor: float
    loss: float
    extras: Mapping[str, float]
    task: Mapping[str, Any]
    buffers: Mapping[str, Array] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """Return the scalars, JSON-compatible."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "buffers"}

    def frame(self) -> Frame:
        """Return the message as a frame."""
        return Frame({"kind": self.kind, **self.told()}, self.buffers)

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Report:
        """Read what :meth:`frame` returned."""
        fields = {name: value for name, value in message.meta.items() if name != "kind"}
        return cls(**fields, buffers=message.arrays)


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of all partitions, in their order, and the combined buffers.

    Attributes:
        reports: what :meth:`Report.told` returns, of each.
        buffers: buffers that have changed, by kind.
    """

    kind: ClassVar[str] = "reports"
    reports: Sequence[Mapping[str, Any]]
    buffers: Mapping[str, Array] = field(default_factory=dict)

    def frame(self) -> Frame:
        """Return the message as a frame."""
        return Frame({"kind": self.kind, "reports": list(self.reports)}, self.buffers)

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Reports:
        """Read what :meth:`frame` returned."""
        return cls(message.meta["reports"], message.arrays)


@dataclass(frozen=True, slots=True)
class Problems:
    """Why a step cannot be completed.

    Attributes:
        problems: the reasons.
        processes: Python processes that take turns on the tasks of the executor that tells it.
    """

    kind: ClassVar[str] = "problems"
    problems: Sequence[Problem]
    processes: int = 1

    def frame(self) -> Frame:
        """Return the message as a frame."""
        reasons = [problems.to_json(problem) for problem in self.problems]
        return Frame({"kind": self.kind, "problems": reasons, "processes": self.processes})

    @classmethod
    def read(cls, message: Frame, mine: bool) -> Problems:
        """Read what :meth:`frame` returned."""
        meta = message.meta
        return cls([problems.from_json(values) for values in meta["problems"]], meta["processes"])


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What a group of iterations tells the driver.

    Attributes:
        steps: of each iteration, what its updates and its partitions have to report, JSON-compatible.
        buffers: new floating-point buffers.
        counters: new integer and boolean buffers.
        params: new weights; ``None`` if they stay on the executors.
        gradient: combined gradient of the last iteration, if the driver wants it.
    """

    kind: ClassVar[str] = "group"
    steps: Sequence[Mapping[str, Any]]
    buffers: Array
    counters: Array
    params: Array | None = None
    gradient: Array | None = None

    def frame(self) -> Frame:
        """Return the message as a frame."""
        arrays = {name: getattr(self, name) for name in ("buffers", "counters", "params", "gradient")}
        present = {name: array for name, array in arrays.items() if array is not None}
        return Frame({"kind": self.kind, "steps": list(self.steps)}, present)

    @classmethod
    def read(cls, message: Frame, mine: bool) -> GroupReport:
        """Read what :meth:`frame` returned."""
        arrays = message.arrays
        return cls(
            message.meta["steps"],
            arrays["buffers"],
            arrays["counters"],
            arrays.get("params"),
            arrays.get("gradient"),
        )

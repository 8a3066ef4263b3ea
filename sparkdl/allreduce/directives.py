"""The driver's instructions to executors for a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkdl.compute.forward_backward import ForwardBackward
from sparkdl.compute.local_steps import InnerSteps
from sparkdl.compute.start import Start
from sparkdl.compute.stragglers import Allowance
from sparkdl.data.sampler import Place


@dataclass(frozen=True, slots=True)
class Directives:
    """The driver's instructions for the update of a step.

    Attributes:
        hyper: per parameter group, hyper-parameters that replace the optimizer's own.
        average: weight of the new weights in their average; 0 leaves the average unchanged.
        gradient: whether the driver wants the combined gradient.
    """

    hyper: tuple[Mapping[str, Any], ...] = ()
    average: float = 0.0
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Everything that defines a step, so that it can run again.

    Attributes:
        place: where it is in its epoch.
        iteration: completed iterations before it.
        directives: instructions for its update.
        frozen: parameters of the layout that are not trained.
        allowance: what slow tasks may leave out; ``None`` for nothing.
        inner: the steps that each partition takes by itself; ``None`` if it contributes its gradient.
    """

    place: Place
    iteration: int
    directives: Directives = field(default_factory=Directives)
    frozen: tuple[int, ...] = ()
    allowance: Allowance | None = None
    inner: InnerSteps | None = None

    def same_as(self, other: Step) -> bool:
        """Return whether both steps compute the same."""
        return (
            self.place == other.place
            and self.iteration == other.iteration
            and self.directives == other.directives
            and self.frozen == other.frozen
            and self.allowance is other.allowance
            and self.inner == other.inner
        )

    def forward(self, start: Start, *, tells: bool) -> ForwardBackward:
        """Return its forward and backward pass in a group; see there."""
        return ForwardBackward(
            self.place,
            self.iteration,
            start.manifest,
            self.frozen,
            self.allowance,
            self.inner,
            start.version.iteration,
            tells,
        )

    def without_deadline(self) -> Step:
        """Return the same step without a deadline for slow tasks."""
        return self if self.allowance is None else replace(self, allowance=Allowance(self.allowance.chunks))

    def __str__(self) -> str:
        return f"iteration {self.iteration + 1}, epoch {self.place.epoch + 1}"

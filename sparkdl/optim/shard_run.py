"""A stretch of the flat weights that the optimizer treats as one parameter, and its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

BLOCK = 1 << 18
"""Most elements of a block: shorter ones cost more in Python than they save in memory."""


@dataclass(slots=True)
class Run:
    """A stretch of the flat weights that the optimizer treats as one parameter.

    Attributes:
        start: first element, in the flat vector of all weights.
        stop: one past the last element.
        group: parameter group.
        state: the optimizer's state of this stretch, as torch keeps it.
    """

    start: int
    stop: int
    group: int
    state: dict[str, Any] = field(default_factory=dict)

    def cut(self, start: int, stop: int) -> Run:
        """Return a part of the run with a copy of its part of the state."""
        part = self._view(start, stop)
        for name, value in part.state.items():
            if isinstance(value, torch.Tensor):
                part.state[name] = value.clone()
        return part

    @property
    def is_long(self) -> bool:
        """Whether it has more elements than a block."""
        return self.stop - self.start > BLOCK

    def blocks(self) -> list[Run]:
        """Return parts of about equal length, whose states are views into the run's, or copies of scalars."""
        length = self.stop - self.start
        count = -(-length // BLOCK)
        borders = [self.start + length * i // count for i in range(count + 1)]
        return [self._view(start, stop) for start, stop in pairwise(borders)]

    def _view(self, start: int, stop: int) -> Run:
        view: dict[str, Any] = {}
        for name, value in self.state.items():
            if self.is_elementwise(value):
                view[name] = value[start - self.start : stop - self.start]
            else:
                view[name] = value.clone() if isinstance(value, torch.Tensor) else value
        return Run(start, stop, self.group, view)

    def take(self, blocks: Sequence[Run]) -> None:
        """Take the state away that some of its blocks have made in their first step."""
        for block in blocks:
            for name, value in block.state.items():
                if not block.is_elementwise(value):
                    self.state[name] = value
                    continue
                if name not in self.state:
                    self.state[name] = value.new_empty(self.stop - self.start)
                self.state[name][block.start - self.start : block.stop - self.start] = value
            block.state = {}

    def take_back(self, blocks: Sequence[Run]) -> None:
        """Take over the state of its blocks after a step."""
        state = dict(blocks[0].state)
        for name, value in state.items():
            if blocks[0].is_elementwise(value):
                in_place = self._is_in_place(name, blocks)
                state[name] = self.state[name] if in_place else torch.cat([b.state[name] for b in blocks])
        self.state = state

    def _is_in_place(self, name: str, blocks: Sequence[Run]) -> bool:
        """Whether a state of its blocks still is views into the run's."""
        whole: Any = self.state.get(name)
        return self.is_elementwise(whole) and all(
            block.state[name].data_ptr() == whole[block.start - self.start :].data_ptr() for block in blocks
        )

    def goes_on_with(self, other: Run) -> bool:
        """Return whether another run begins where this one ends and has the same history."""
        if (self.stop, self.group, self.state.keys()) != (other.start, other.group, other.state.keys()):
            return False
        pairs = ((value, other.state[name]) for name, value in self.state.items())
        return all(self.is_elementwise(a) or _equal(a, b) for a, b in pairs)

    def append(self, other: Run) -> None:
        """Take over a run that this one goes on with."""
        self.state = {
            name: torch.cat([value, other.state[name]]) if self.is_elementwise(value) else value
            for name, value in self.state.items()
        }
        self.stop = other.stop

    def is_elementwise(self, value: Any) -> bool:
        """Whether a state has one value per weight."""
        return isinstance(value, torch.Tensor) and value.shape == (self.stop - self.start,)


def one_by_one(run: Run) -> Iterator[Sequence[Run]]:
    """Yield blocks of a run for their first step: the state that they make is there twice for a while."""
    first, *others = run.blocks()
    yield [first]
    yield from ([block] for block in others) if run.state else [others]


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    return type(first) is type(second) and bool(first == second)

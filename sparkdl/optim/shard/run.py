"""Stretches of the flat weights that the optimizer treats as one parameter each; their state as a frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from sparkdl.exceptions import OptimizerError
from sparkdl.optim.carried import frozen, same
from sparkdl.optim.values import from_json, is_direct, to_json
from sparkdl.wire.frame import Array, Frame, Parts, pack
from sparkdl.wire.held import Held, Owned, Shared, tensor_of

BLOCK = 1 << 18
"""Most elements of a block: shorter ones cost more in Python than they save in memory."""


@dataclass(slots=True)
class ShardRun:
    """A stretch of the flat weights that the optimizer treats as one parameter."""

    start: int  # first element, in the flat vector of all weights
    stop: int  # one past the last element
    group: int  # parameter group
    # the optimizer's state of this stretch, as torch keeps it
    state: dict[str, Any] = field(default_factory=dict)

    def cut(self, start: int, stop: int) -> ShardRun:
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

    def blocks(self) -> list[ShardRun]:
        """Return parts of about equal length, whose states are views into the run's, or copies of scalars."""
        length = self.stop - self.start
        count = -(-length // BLOCK)
        borders = [self.start + length * i // count for i in range(count + 1)]
        return [self._view(start, stop) for start, stop in pairwise(borders)]

    def _view(self, start: int, stop: int) -> ShardRun:
        view: dict[str, Any] = {}
        for name, value in self.state.items():
            if self.is_elementwise(value):
                view[name] = value[start - self.start : stop - self.start]
            elif isinstance(value, torch.Tensor | None | bool | int | float | str):
                view[name] = value.clone() if isinstance(value, torch.Tensor) else value
            else:
                raise OptimizerError(f"state {name!r} is a {type(value).__name__}, which cannot be cut")
        return ShardRun(start, stop, self.group, view)

    def take(self, blocks: Sequence[ShardRun]) -> None:
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

    def take_back(self, blocks: Sequence[ShardRun]) -> None:
        """Take over the state of its blocks after a step."""
        state = dict(blocks[0].state)
        for name, value in state.items():
            if blocks[0].is_elementwise(value):
                in_place = self._is_in_place(name, blocks)
                state[name] = self.state[name] if in_place else torch.cat([b.state[name] for b in blocks])
        self.state = state

    def _is_in_place(self, name: str, blocks: Sequence[ShardRun]) -> bool:
        """Whether a state of its blocks still is views into the run's."""
        whole: Any = self.state.get(name)
        return self.is_elementwise(whole) and all(
            block.state[name].data_ptr() == whole[block.start - self.start :].data_ptr() for block in blocks
        )

    def goes_on_with(self, other: ShardRun) -> bool:
        """Return whether another run begins where this one ends and has the same history."""
        if (self.stop, self.group, self.state.keys()) != (other.start, other.group, other.state.keys()):
            return False
        pairs = ((value, other.state[name]) for name, value in self.state.items())
        return all(self.is_elementwise(a) or _equal(a, b) for a, b in pairs)

    def append(self, other: ShardRun) -> None:
        """Take over a run that this one goes on with."""
        self.state = {
            name: torch.cat([value, other.state[name]]) if self.is_elementwise(value) else value
            for name, value in self.state.items()
        }
        self.stop = other.stop

    def is_elementwise(self, value: Any) -> bool:
        """Whether a state has one value per weight."""
        return isinstance(value, torch.Tensor) and value.shape == (self.stop - self.start,)


def one_by_one(run: ShardRun) -> Iterator[Sequence[ShardRun]]:
    """Yield blocks of a run for their first step: the state that they make is there twice for a while."""
    first, *others = run.blocks()
    yield [first]
    yield from ([block] for block in others) if run.state else [others]


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    return same(frozen(first), frozen(second))


def cut_states(states: Sequence[Frame], bounds: Sequence[tuple[int, int]]) -> list[Parts]:
    """Cut the states of all shards, in their order, for other shards, each of [start, stop) in ``bounds``."""
    runs = [run for state in states for run in read_runs(Shared(state))]
    return [pack_runs(list(cut_runs(runs, start, stop)), "the optimizer") for start, stop in bounds]


def cut_runs(runs: Sequence[ShardRun], start: int, stop: int) -> Iterator[ShardRun]:
    """Yield the runs in elements [start, stop), those at the ends cut."""
    for run in runs:
        if start <= run.start and run.stop <= stop and run.start < run.stop:
            yield run
        elif run.start < stop and run.stop > start:
            yield run.cut(max(start, run.start), min(stop, run.stop))


def pack_runs(runs: Sequence[ShardRun], optimizer: str) -> Parts:
    """Serialize runs of an optimizer, named for errors; arrays are referenced, not copied."""
    table: list[Any] = []
    arrays: dict[str, Array] = {}
    for index, run in enumerate(runs):
        scalars: dict[str, Any] = {}
        for name, value in run.state.items():
            if is_direct(value):
                arrays[f"{index}.{name}"] = value.detach().cpu().numpy()
                continue
            try:
                scalars[name] = to_json(value, partial(_add, arrays))
            except TypeError as error:
                raise OptimizerError(
                    f"{optimizer} keeps a {type(value).__name__} as state {name!r}, with a {error}; tensors, "
                    "numbers, and lists, tuples and dicts of them can be kept"
                ) from None
        table.append([run.start, run.stop, run.group, scalars])
    return pack({"kind": "state", "runs": table}, arrays)


def _add(arrays: dict[str, Array], array: Array) -> str:
    """Put an array beside others, which are in a list or dict as well, and return its name."""
    name = f"nested {len(arrays)}"
    arrays[name] = array
    return name


def read_runs(state: Held[Frame]) -> list[ShardRun]:
    """Read runs back, with copies of what is shared."""
    runs = []
    message, mine = state.value, isinstance(state, Owned)

    def read(name: str) -> torch.Tensor:
        array = message.arrays[name]
        return tensor_of(array if mine else np.array(array))

    for index, (start, stop, group, scalars) in enumerate(message.meta["runs"]):
        values: dict[str, Any] = {name: from_json(value, read) for name, value in scalars.items()}
        prefix = f"{index}."
        for name in message.arrays:
            if name.startswith(prefix):
                values[name.removeprefix(prefix)] = read(name)
        runs.append(ShardRun(start, stop, group, values))
    return runs

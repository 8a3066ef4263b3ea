"""The optimizer's state of a shard as a frame: written, read, and cut for other shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from sparkdl.exceptions import OptimizerError
from sparkdl.frame import Array, Frame, Parts, pack
from sparkdl.held import Held, Owned, Shared
from sparkdl.optim.shard_run import Run

_SCALARS = (bool, int, float, str, type(None))


def cut_states(states: Sequence[Frame], bounds: Sequence[tuple[int, int]]) -> list[Parts]:
    """Cut the states of all shards for other shards.

    Args:
        states: frames from :meth:`ShardOptimizer.state_frame`, in the order of the shards.
        bounds: [start, stop) of each new shard.

    Returns:
        A state frame per new shard.
    """
    runs = [run for state in states for run in read_runs(Shared(state))]
    return [pack_runs(list(cut_runs(runs, start, stop)), "the optimizer") for start, stop in bounds]


def cut_runs(runs: Sequence[Run], start: int, stop: int) -> Iterator[Run]:
    """Yield the runs in elements [start, stop), those at the ends cut."""
    for run in runs:
        if start <= run.start and run.stop <= stop and run.start < run.stop:
            yield run
        elif run.start < stop and run.stop > start:
            yield run.cut(max(start, run.start), min(stop, run.stop))


def pack_runs(runs: Sequence[Run], optimizer: str) -> Parts:
    """Serialize runs of an optimizer, named for errors; arrays are referenced, not copied."""
    table: list[Any] = []
    arrays: dict[str, Array] = {}
    for index, run in enumerate(runs):
        scalars: dict[str, Any] = {}
        for name, value in run.state.items():
            if isinstance(value, torch.Tensor):
                arrays[f"{index}.{name}"] = value.detach().numpy()
            elif isinstance(value, _SCALARS):
                scalars[name] = value
            else:
                raise OptimizerError(
                    f"{optimizer} keeps a {type(value).__name__} as state {name!r}; only tensors "
                    "and plain scalars can be kept per shard"
                )
        table.append([run.start, run.stop, run.group, scalars])
    return pack({"kind": "state", "runs": table}, arrays)


def read_runs(state: Held[Frame]) -> list[Run]:
    """Read runs back, with copies of what is shared."""
    runs = []
    message, mine = state.value, isinstance(state, Owned)
    for index, (start, stop, group, scalars) in enumerate(message.meta["runs"]):
        values: dict[str, Any] = dict(scalars)
        prefix = f"{index}."
        for name, array in message.arrays.items():
            if name.startswith(prefix):
                values[name.removeprefix(prefix)] = tensor_of(array if mine else np.array(array))
        runs.append(Run(start, stop, group, values))
    return runs


def tensor_of(array: Array) -> torch.Tensor:
    """Return a tensor of the same memory: the one that the array was made of, if it was made of one.

    State that is laid out and read again with each step in one process would else be a tensor of an array of
    a tensor of an array: a chain that grows with each step.
    """
    behind: Any = array
    while not isinstance(behind, torch.Tensor):
        following = behind.obj if isinstance(behind, memoryview) else getattr(behind, "base", None)
        if following is None:
            return torch.from_numpy(array)
        behind = following
    made = torch.from_numpy(array)
    same = (behind.data_ptr(), behind.shape, behind.dtype) == (made.data_ptr(), made.shape, made.dtype)
    return behind if same and behind.is_contiguous() else made

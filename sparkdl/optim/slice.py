"""The optimizer on one slice of the flat weights.

An elementwise optimizer does the same to a slice as to the whole. A slice is divided into *runs*:
stretches with one parameter group and one history. Torch skips a parameter whose gradient is
``None`` (no weight decay, no momentum, no step count); a run is split where such a parameter
begins and ends, from the first iteration in which it differs from its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.exceptions import OptimizerError
from sparkdl.frame import Array, Frame, Parts, pack
from sparkdl.layout import ParamLayout
from sparkdl.optim.spec import OptimizerSpec

_SCALARS = (bool, int, float, str, type(None))


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
        """Return a part of the run with its part of the state."""
        part: dict[str, Any] = {}
        for name, value in self.state.items():
            if isinstance(value, torch.Tensor):
                elementwise = value.shape == (self.stop - self.start,)
                value = value[start - self.start : stop - self.start] if elementwise else value
                part[name] = value.clone()
            else:
                part[name] = value
        return Run(start, stop, self.group, part)


class SliceOptimizer:
    """Optimizer and state of elements [start, stop) of the flat weights.

    Args:
        spec: how to build the optimizer.
        layout: where the parameters are.
        start: first element of the slice.
        stop: one past its last element.
        state: frame from :meth:`state_frame` of the same slice; fresh without.
    """

    def __init__(
        self, spec: OptimizerSpec, layout: ParamLayout, start: int, stop: int, state: Frame | None = None
    ) -> None:
        self._spec = spec
        self._layout = layout
        self.start = start
        self.stop = stop
        self.runs = list(_fresh_runs(layout, start, stop)) if state is None else _read_runs(state)

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, used: NDArray[np.bool_]) -> None:
        """Update the slice's weights in place.

        Args:
            weights: the slice, shape (stop - start,).
            gradient: its gradient, same shape.
            used: per parameter of the layout, whether it has a gradient in this iteration.
        """
        if not used.all():
            self.runs = list(self._split(used))
        tensors = []
        for run in self.runs:
            begin, end = run.start - self.start, run.stop - self.start
            tensor = weights[begin:end]
            if self._is_used(run, used):
                tensor.grad = gradient[begin:end]
            tensors.append(tensor)
        if not tensors:
            return
        optimizer = self._spec.build((t, r.group) for t, r in zip(tensors, self.runs, strict=True))
        for tensor, run in zip(tensors, self.runs, strict=True):
            if run.state:
                optimizer.state[tensor] = run.state
        optimizer.step()
        for tensor, run in zip(tensors, self.runs, strict=True):
            run.state = optimizer.state.get(tensor, {})

    def _is_used(self, run: Run, used: NDArray[np.bool_]) -> bool:
        # A run of several parameters is used as a whole: runs are split where they differ.
        for index, spec in enumerate(self._layout.params):
            if spec.offset <= run.start < spec.end:
                return bool(used[index])
        return False

    def _split(self, used: NDArray[np.bool_]) -> Iterator[Run]:
        """Split runs so that each holds only used or only unused parameters."""
        for run in self.runs:
            start = run.start
            previous: bool | None = None
            for index, spec in enumerate(self._layout.params):
                if spec.end <= run.start or spec.offset >= run.stop or not spec.numel:
                    continue
                if previous is not None and bool(used[index]) != previous:
                    yield run.cut(start, spec.offset)
                    start = spec.offset
                previous = bool(used[index])
            yield run if start == run.start else run.cut(start, run.stop)

    def state_frame(self) -> Parts:
        """Serialize runs and state; arrays are referenced, not copied."""
        table: list[Any] = []
        arrays: dict[str, Array] = {}
        for index, run in enumerate(self.runs):
            scalars: dict[str, Any] = {}
            for name, value in run.state.items():
                if isinstance(value, torch.Tensor):
                    arrays[f"{index}.{name}"] = value.detach().numpy()
                elif isinstance(value, _SCALARS):
                    scalars[name] = value
                else:
                    raise OptimizerError(
                        f"{self._spec.name} keeps a {type(value).__name__} as state {name!r}; only tensors "
                        "and plain scalars can be kept per slice"
                    )
            table.append([run.start, run.stop, run.group, scalars])
        return pack({"kind": "state", "runs": table}, arrays)


def _fresh_runs(layout: ParamLayout, start: int, stop: int) -> Iterator[Run]:
    """Merge neighbouring parameters of one group into one run each."""
    begin: int | None = None
    group = 0
    for spec in layout.params:
        if spec.end <= start or spec.offset >= stop or not spec.numel:
            continue
        if begin is not None and spec.group != group:
            yield Run(begin, spec.offset, group)
            begin = None
        if begin is None:
            begin, group = max(spec.offset, start), spec.group
    if begin is not None:
        yield Run(begin, stop, group)


def _read_runs(state: Frame) -> list[Run]:
    runs = []
    for index, (start, stop, group, scalars) in enumerate(state.meta["runs"]):
        values: dict[str, Any] = dict(scalars)
        prefix = f"{index}."
        for name, array in state.arrays.items():
            if name.startswith(prefix):
                values[name.removeprefix(prefix)] = torch.from_numpy(np.array(array))  # writable copy
        runs.append(Run(start, stop, group, values))
    return runs

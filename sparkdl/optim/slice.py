"""The optimizer on one slice of the flat weights.

An elementwise optimizer does the same to a slice as to the whole. A slice is divided into *runs*:
stretches with one parameter group and one history. Torch skips a parameter whose gradient is
``None`` (no weight decay, no momentum, no step count); a run is split where such a parameter
begins and ends, from the first iteration in which it differs from its neighbours.

Torch's optimizers make several arrays as long as a parameter in each step. An elementwise one gets a long run
in blocks, whose arrays stay in the processor's cache.

A :class:`~sparkdl.optim.reducing.ReducingOptimizer` needs sums over all slices in the middle of its
step, and with ``per_parameter`` sums of each parameter alone: its runs then are parameters, or parts
of one. It goes along with all others also on a slice that has none of its weights, by a run without
elements.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.exceptions import OptimizerError
from sparkdl.frame import Array, Frame, Parts, pack
from sparkdl.held import Held, Owned, Shared
from sparkdl.layout import ParamLayout
from sparkdl.optim.reducing import ReducingOptimizer
from sparkdl.optim.reduction import Reduction, Sums, drive
from sparkdl.optim.segments import segments
from sparkdl.optim.spec import Built, OptimizerSpec
from sparkdl.rows import row_width

_SCALARS = (bool, int, float, str, type(None))

_BLOCK = 1 << 18
"""Most elements of a block: shorter ones cost more in Python than they save in memory."""

Touched = Mapping[int, NDArray[np.bool_]]
"""Rows of a parameter's first dimension that have a gradient, by the parameter's index in the layout."""


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

    def blocks(self) -> list[Run]:
        """Return parts of about equal length, whose states are views into the run's, or copies of scalars."""
        length = self.stop - self.start
        count = -(-length // _BLOCK)
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


class SliceOptimizer:
    """Optimizer and state of elements [start, stop) of the flat weights.

    Args:
        spec: how to build the optimizer, or several.
        layout: where the parameters are.
        start: first element of the slice.
        stop: one past its last element.
        state: frame from :meth:`state_frame` of the same slice; fresh without. An owned one is the
            optimizer's from now on.
    """

    def __init__(
        self,
        spec: OptimizerSpec,
        layout: ParamLayout,
        start: int,
        stop: int,
        state: Held[Frame] | None = None,
    ) -> None:
        self.spec = spec
        self.layout = layout
        self.start = start
        self.stop = stop
        self._ranges = spec.group_ranges
        self._classes = spec.classes
        self.runs = list(self._fresh_runs()) if state is None else self._join(read_runs(state))

    def step(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        used: NDArray[np.bool_],
        hyper: Sequence[Mapping[str, Any]] = (),
        touched: Touched | None = None,
    ) -> None:
        """Update the weights in place, as if the slice were all there is; see :meth:`update`."""
        drive([self.update(weights, gradient, used, hyper, touched)])

    def update(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        used: NDArray[np.bool_],
        hyper: Sequence[Mapping[str, Any]] = (),
        touched: Touched | None = None,
    ) -> Reduction:
        """Update the slice's weights in place.

        Args:
            weights: the slice, shape (stop - start,).
            gradient: its gradient, same shape.
            used: per parameter of the layout, whether it has a gradient in this iteration.
            hyper: per group of all optimizers, hyper-parameters that replace the optimizer's own, as from
                :meth:`OptimizerSpec.hyper_of`; empty for none.
            touched: for optimizers of sparse gradients, which rows of a parameter have one. Of
                parameters that are not in it, the elements whose gradient is not zero.

        Yields:
            ``spec.reductions`` times partial sums, and is sent their totals over all slices. For an
            optimizer with sums per parameter, shape (parameters of the layout, k).
        """
        if not used.all():
            self.runs = list(self._split(used))
        blocks: list[tuple[Run, list[Run]]] = []
        for run in self.runs:
            if not self._comes_in_blocks(run):
                blocks.append((run, [run]))
            elif run.state:
                blocks.append((run, run.blocks()))
            else:
                for part in _one_by_one(run):
                    drive([self._advance(part, weights, gradient, used, hyper, touched)])
                    run.take(part)
        together = [part for _, parts in blocks for part in parts]
        yield from self._advance(together, weights, gradient, used, hyper, touched)
        for run, parts in blocks:
            if len(parts) > 1:
                run.take_back(parts)

    def _advance(
        self,
        runs: Sequence[Run],
        weights: torch.Tensor,
        gradient: torch.Tensor,
        used: NDArray[np.bool_],
        hyper: Sequence[Mapping[str, Any]],
        touched: Touched | None,
    ) -> Reduction:
        """Update some runs; see :meth:`update`."""
        if not runs:
            return
        run_of: dict[torch.Tensor, Run] = {}
        states: dict[torch.Tensor, dict[str, Any]] = {}
        for run in runs:
            begin, end = run.start - self.start, run.stop - self.start
            tensor, own = weights[begin:end], gradient[begin:end]
            state = run.state
            if self._is_sparse(run):
                # Adding a sparse tensor to a view, torch writes beyond it: it counts the offset twice.
                mask = self._touched(run, own, touched)
                tensor, own = tensor.clone(), _sparse(own, mask)
                if own.dim() == 2:
                    tensor, state = tensor[None], _reshaped(state, (end - begin,), (1, end - begin))
            if self._is_used(run, used):
                tensor.grad = own
            run_of[tensor] = run
            if state:
                states[tensor] = state
        built = self.spec.build_all((tensor, run.group) for tensor, run in run_of.items())
        for optimizer, groups in built:
            for tensor in _tensors(optimizer):
                if tensor in states:
                    optimizer.state[tensor] = states[tensor]
            if hyper:
                for group, index in zip(optimizer.param_groups, groups, strict=True):
                    _override(group, hyper[index])
        yield from self._step(built, run_of)
        for optimizer, _ in built:
            for tensor in _tensors(optimizer):
                run = run_of[tensor]
                run.state = _reshaped(optimizer.state.get(tensor, {}), (1, run.stop - run.start), (-1,))
                if tensor.grad is not None and tensor.grad.is_sparse:
                    weights[run.start - self.start : run.stop - self.start] = tensor.view(-1)

    def _step(self, built: Sequence[Built], run_of: Mapping[torch.Tensor, Run]) -> Reduction:
        reducing = [optimizer for optimizer, _ in built if isinstance(optimizer, ReducingOptimizer)]
        if reducing:
            with torch.no_grad():
                partials = [optimizer.partials() for optimizer in reducing]
            rows = [self._rows(optimizer, run_of) for optimizer in reducing]
            spread = [self._spread(own, index) for own, index in zip(partials, rows, strict=True)]
            totals = yield from _exchange(spread)
            with torch.no_grad():
                for optimizer, own, index, total in zip(reducing, partials, rows, totals, strict=True):
                    optimizer.apply(_gather(own, index, total))
        for other, _ in built:
            if not isinstance(other, ReducingOptimizer):
                other.step()

    def _rows(
        self, optimizer: ReducingOptimizer, run_of: Mapping[torch.Tensor, Run]
    ) -> list[int | None] | None:
        """Return the parameter of each row of an optimizer's sums; ``None`` for sums of all weights."""
        if not optimizer.per_parameter:
            return None
        return [self._first_param(run_of[tensor]) for tensor in _tensors(optimizer)]

    def _spread(self, partials: torch.Tensor, rows: list[int | None] | None) -> Sums:
        """Put the rows of an optimizer's sums where the layout has the parameters."""
        values: Sums = partials.detach().numpy()
        if rows is None:
            return values
        spread = np.zeros((len(self.layout.params), values.shape[1]))
        for row, index in zip(values, rows, strict=True):
            if index is not None:
                spread[index] = row
        return spread

    def _first_param(self, run: Run) -> int | None:
        first = next(segments(self.layout, run.start, run.stop), None)
        return None if first is None else first.param

    def _is_used(self, run: Run, used: NDArray[np.bool_]) -> bool:
        # A run of several parameters is used as a whole: runs are split where they differ.
        index = self._first_param(run)
        if index is not None:
            return bool(used[index])
        own = next(groups for groups in self._ranges if run.group in groups)
        return any(used[i] for i, spec in enumerate(self.layout.params) if spec.group in own)

    def class_of(self, run: Run) -> type[torch.optim.Optimizer]:
        """Return the class of a run's optimizer."""
        return next(c for c, groups in zip(self._classes, self._ranges, strict=True) if run.group in groups)

    def _is_sparse(self, run: Run) -> bool:
        """Whether the run's optimizer takes sparse gradients only."""
        return issubclass(self.class_of(run), torch.optim.SparseAdam)

    def _comes_in_blocks(self, run: Run) -> bool:
        """Whether the run is long, and the optimizer does the same to each of its elements."""
        reducing = issubclass(self.class_of(run), ReducingOptimizer)
        return run.stop - run.start > _BLOCK and not reducing and not self._is_sparse(run)

    def _touched(self, run: Run, gradient: torch.Tensor, touched: Touched | None) -> torch.Tensor:
        """Return which elements of a run have a gradient."""
        mask = gradient != 0
        for segment in segments(self.layout, run.start, run.stop):
            rows = (touched or {}).get(segment.param)
            if rows is not None:
                spec = self.layout.params[segment.param]
                of_segment = np.repeat(rows, row_width(spec))[
                    segment.start - spec.offset : segment.stop - spec.offset
                ]
                mask[segment.start - run.start : segment.stop - run.start] = torch.from_numpy(of_segment)
        return mask

    @property
    def _apart(self) -> set[int]:
        """The groups in which each parameter needs a run of its own."""
        return {
            group
            for cls, groups in zip(self._classes, self._ranges, strict=True)
            if issubclass(cls, ReducingOptimizer) and cls.per_parameter
            for group in groups
        }

    def _join(self, runs: list[Run]) -> list[Run]:
        """Join runs that slices have cut: a parameter's sums are those of one run."""
        borders = {spec.offset for spec in self.layout.params}
        joined: list[Run] = []
        for run in runs:
            whole = run.group in self._apart and run.start in borders
            if joined and not whole and joined[-1].goes_on_with(run):
                joined[-1].append(run)
            else:
                joined.append(run)
        return joined

    def _fresh_runs(self) -> Iterator[Run]:
        """Merge neighbouring parameters of one group into one run each, unless they need their own."""
        apart = self._apart
        missing = [
            groups
            for cls, groups in zip(self._classes, self._ranges, strict=True)
            if issubclass(cls, ReducingOptimizer)
        ]
        run: Run | None = None
        for segment in segments(self.layout, self.start, self.stop):
            group = self.layout.params[segment.param].group
            missing = [groups for groups in missing if group not in groups]
            if run is not None and group == run.group and group not in apart:
                run.stop = segment.stop
                continue
            if run is not None:
                yield run
            run = Run(segment.start, segment.stop, group)
        if run is not None:
            yield run
        for groups in missing:
            yield Run(self.stop, self.stop, groups.start)

    def _split(self, used: NDArray[np.bool_]) -> Iterator[Run]:
        """Split runs so that each holds only used or only unused parameters."""
        for run in self.runs:
            start = run.start
            previous: bool | None = None
            for segment in segments(self.layout, run.start, run.stop):
                current = bool(used[segment.param])
                if previous is not None and current != previous:
                    yield run.cut(start, segment.start)
                    start = segment.start
                previous = current
            yield run if start == run.start else run.cut(start, run.stop)

    def state_frame(self) -> Parts:
        """Serialize runs and state; arrays are referenced, not copied."""
        return pack_runs(self.runs, self.spec.name)

    def state_frame_of(self, start: int, stop: int) -> Parts:
        """Serialize what concerns a part of the slice."""
        return pack_runs(list(_cut(self.runs, start, stop)), self.spec.name)


def cut_states(states: Sequence[Frame], bounds: Sequence[tuple[int, int]]) -> list[Parts]:
    """Cut the states of all slices for other slices.

    Args:
        states: frames from :meth:`SliceOptimizer.state_frame`, in the order of the slices.
        bounds: [start, stop) of each new slice.

    Returns:
        A state frame per new slice.
    """
    runs = [run for state in states for run in read_runs(Shared(state))]
    return [pack_runs(list(_cut(runs, start, stop)), "the optimizer") for start, stop in bounds]


def _cut(runs: Sequence[Run], start: int, stop: int) -> Iterator[Run]:
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
                    "and plain scalars can be kept per slice"
                )
        table.append([run.start, run.stop, run.group, scalars])
    return pack({"kind": "state", "runs": table}, arrays)


def _one_by_one(run: Run) -> Iterator[Sequence[Run]]:
    """Yield blocks of a run for their first step: the state that they make is there twice for a while."""
    first, *others = run.blocks()
    yield [first]
    yield from ([block] for block in others) if run.state else [others]


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _override(group: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set hyper-parameters of a group; a tensor stays a tensor, but a new one."""
    for name, value in values.items():
        own = group[name]
        group[name] = torch.full_like(own, value) if isinstance(own, torch.Tensor) else value


def _sparse(gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return some elements of a gradient as a sparse vector.

    All of them are one row of a sparse matrix, for which torch needs no index per element.
    """
    if mask.all():
        row = torch.zeros((1, 1), dtype=torch.int64)
        return torch.sparse_coo_tensor(
            row, gradient[None], (1, len(gradient)), is_coalesced=True, check_invariants=False
        )
    positions = mask.nonzero().flatten()
    return torch.sparse_coo_tensor(
        positions[None], gradient[positions], gradient.shape, is_coalesced=True, check_invariants=False
    )


def _reshaped(state: dict[str, Any], shape: tuple[int, ...], new: tuple[int, ...]) -> dict[str, Any]:
    """Give a state's tensors of one shape another."""
    return {
        name: value.view(new) if isinstance(value, torch.Tensor) and value.shape == shape else value
        for name, value in state.items()
    }


def _exchange(partials: Sequence[Sums]) -> Generator[Sums, Sums, list[Sums]]:
    """Yield the sums of one or several optimizers at once and return their totals."""
    if len(partials) == 1:
        return [(yield partials[0])]
    totals = yield np.concatenate([own.reshape(-1) for own in partials])
    ends = np.cumsum([own.size for own in partials])[:-1]
    return [total.reshape(own.shape) for total, own in zip(np.split(totals, ends), partials, strict=True)]


def _gather(partials: torch.Tensor, rows: list[int | None] | None, totals: Sums) -> torch.Tensor:
    """Return the totals in the order of the optimizer's own tensors."""
    if rows is None:
        return torch.from_numpy(np.array(totals))
    gathered = partials.clone()
    for row, index in enumerate(rows):
        if index is not None:
            gathered[row] = torch.from_numpy(np.array(totals[index]))
    return gathered


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    return type(first) is type(second) and bool(first == second)


def read_runs(state: Held[Frame]) -> list[Run]:
    """Read runs back, with copies of what is shared."""
    runs = []
    message, mine = state.value, isinstance(state, Owned)
    for index, (start, stop, group, scalars) in enumerate(message.meta["runs"]):
        values: dict[str, Any] = dict(scalars)
        prefix = f"{index}."
        for name, array in message.arrays.items():
            if name.startswith(prefix):
                own = array if mine else np.array(array)
                values[name.removeprefix(prefix)] = torch.from_numpy(own)
        runs.append(Run(start, stop, group, values))
    return runs

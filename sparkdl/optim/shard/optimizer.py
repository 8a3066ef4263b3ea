"""The optimizer on one shard of the flat weights, and the rule of its updates.

An elementwise optimizer does the same to a shard as to the whole. A shard is divided into *runs*:
stretches with one parameter group and one history. Torch skips a parameter whose gradient is
``None`` (no weight decay, no momentum, no step count); a run is split where such a parameter
begins and ends, from the first iteration in which it differs from its neighbours.

Torch's optimizers make several arrays as long as a parameter in each step. An elementwise one gets a long run
in blocks, whose arrays stay in the processor's cache.

An optimizer that needs whole tensors gets a run for each parameter, in its shape; shards do not cut them.

A :class:`~sparkdl.optim.reducing.ReducingOptimizer` needs sums over all shards in the middle of its
step, and with ``per_parameter`` sums of each parameter alone: its runs then are parameters, or parts
of one. It goes along with all others also on a shard that has none of its weights, by a run without
elements.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl import seeding
from sparkdl.exceptions import OptimizerError
from sparkdl.optim.carried import CARRIED, Carried
from sparkdl.optim.clip import Clip
from sparkdl.optim.reducing import ReducingOptimizer
from sparkdl.optim.reduction import Reduction, Sums, drive
from sparkdl.optim.regularize import regularize
from sparkdl.optim.segments import segments
from sparkdl.optim.shard.division import Division
from sparkdl.optim.shard.run import ShardRun, cut_runs, one_by_one, pack_runs, read_runs
from sparkdl.optim.spec import Built, OptimizerSpec
from sparkdl.optim.staleness import LATE, Staleness, elements_with_gradient, joined
from sparkdl.wire.frame import Frame, Parts
from sparkdl.wire.held import Held
from sparkdl.wire.layout import ParamLayout
from sparkdl.wire.touched_rows import row_width

_ALIGNMENT = 64  # bytes

Touched = Mapping[int, NDArray[np.bool_]]
"""Rows of a parameter's first dimension that have a gradient, by the parameter's index in the layout."""


class ShardOptimizer:
    """Optimizer and state of elements [start, stop) of the flat weights.

    Args:
        spec: how to build the optimizer, or several.
        layout: where the parameters are.
        start: first element of the shard.
        stop: one past its last element.
        state: frame from :meth:`state_frame` of the same shard; fresh without. An owned one is the
            optimizer's from now on.

    Attributes:
        runs: the shard's, in order, with their state.
        division: how they are divided.
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
        self.division = Division(spec, layout)
        self._has_stepped = False
        self._bound: dict[tuple[_Stretch, ...], _Bound] = {}
        fresh = self.division.fresh(start, stop)
        self.runs = list(fresh) if state is None else self.division.joined(read_runs(state))

    def to(self, device: torch.device) -> ShardOptimizer:
        """Let its state be where the weights are: what torch would move there for a state that was loaded."""
        if device.type == "cpu":
            return self
        options = [group for shadow in self.spec.shadow() for group in shadow.param_groups]
        for run in self.runs:
            on_device = any(options[run.group].get(name) for name in ("capturable", "fused"))
            for name, value in run.state.items():
                if isinstance(value, torch.Tensor) and (name != "step" or on_device):
                    run.state[name] = value.to(device)
        return self

    def step(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        used: NDArray[np.bool_],
        hyper: Sequence[Mapping[str, Any]] = (),
        touched: Touched | None = None,
    ) -> None:
        """Update the weights in place, as the only shard; see :meth:`update`."""
        drive([self.update(weights, gradient, used, hyper, touched)])

    def update(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        used: NDArray[np.bool_],
        hyper: Sequence[Mapping[str, Any]] = (),
        touched: Touched | None = None,
        draws: int | None = None,
    ) -> Reduction:
        """Update the shard's weights in place.

        Args:
            weights: the shard, shape (stop - start,).
            gradient: its gradient, same shape.
            used: per parameter of the layout, whether it has a gradient in this iteration.
            hyper: per group of all optimizers, hyper-parameters that replace the optimizer's own, as from
                :meth:`OptimizerSpec.hyper_of`; empty for none.
            touched: for optimizers of sparse gradients, which rows of a parameter have one. Of
                parameters that are not in it, the elements whose gradient is not zero.
            draws: random seed of an optimizer that draws numbers; ``None`` to go on as the process does.

        Yields:
            ``spec.reductions`` times partial sums, and is sent their totals over all shards. For an
            optimizer with sums per parameter, shape (parameters of the layout, k).
        """
        if len(self.runs) > 1:  # those whose histories have become equal
            self.runs = self.division.joined(self.runs)
        if not used.all():
            self.runs = list(self.division.split(self.runs, used))
        blocks: list[tuple[ShardRun, list[ShardRun]]] = []
        for run in self.runs:
            if weights.device.type != "cpu" or not self.division.comes_in_blocks(run):
                blocks.append((run, [run]))
            elif run.state or self._has_stepped:  # without a state it makes none, or has had no gradient
                blocks.append((run, run.blocks()))
            else:
                for part in one_by_one(run):
                    drive([self._advance(part, weights, gradient, used, hyper, touched)])
                    run.take(part)
        together = [part for _, parts in blocks for part in parts]
        yield from self._advance(together, weights, gradient, used, hyper, touched, draws)
        for run, parts in blocks:
            if len(parts) > 1:
                run.take_back(parts)
        self._own_memory(gradient)
        self._has_stepped = True

    def _own_memory(self, gradient: torch.Tensor) -> None:
        """Copy state that lies in the gradient's memory, which the next step's gradient may take.

        Where torch sets gradients to none each step has a tensor of its own, which an optimizer may keep.
        """
        memory = gradient.untyped_storage().data_ptr()
        for run in self.runs:
            for name, value in run.state.items():
                dense = isinstance(value, torch.Tensor) and value.layout == torch.strided
                if dense and value.untyped_storage().data_ptr() == memory:
                    run.state[name] = value.clone()

    def _advance(
        self,
        runs: Sequence[ShardRun],
        weights: torch.Tensor,
        gradient: torch.Tensor,
        used: NDArray[np.bool_],
        hyper: Sequence[Mapping[str, Any]],
        touched: Touched | None,
        draws: int | None = None,
    ) -> Reduction:
        """Update some runs; see :meth:`update`."""
        if not runs:
            return
        if self.division.lasts:
            self._step_bound(runs, weights, gradient, used, hyper)
            return
        run_of: dict[torch.Tensor, ShardRun] = {}
        states: dict[torch.Tensor, dict[str, Any]] = {}
        for run in runs:
            begin, end = run.start - self.start, run.stop - self.start
            tensor, own = weights[begin:end], gradient[begin:end]
            state = run.state
            shape = self.division.shape_of(run)
            if shape is not None:
                tensor, own = torch.nn.Parameter(_placed(tensor).view(shape)), _placed(own).view(shape)
            if self.division.is_sparse(run):
                # Adding a sparse tensor to a view, torch writes beyond it: it counts the offset twice.
                mask = self._touched(run, own, touched)
                tensor, own = tensor.clone(), _sparse(own, mask)
                if own.dim() == 2:
                    tensor, state = tensor[None], _reshaped(state, (end - begin,), (1, end - begin))
            if self.division.is_used(run, used):
                tensor.grad = own
            run_of[tensor] = run
            if state:
                states[tensor] = state
        built = self.spec.build_all((tensor, run.group) for tensor, run in run_of.items())
        carried: dict[int, Carried] = {}
        for optimizer, groups, scope in built:
            if scope != "element":
                first = next(_tensors(optimizer))
                carried[id(optimizer)] = Carried(optimizer, groups, states.get(first, {}).pop(CARRIED, None))
            for tensor in _tensors(optimizer):
                if tensor in states:
                    optimizer.state[tensor] = states[tensor]
            if hyper:
                for group, index in zip(optimizer.param_groups, groups, strict=True):
                    _override(group, hyper[index])
            if id(optimizer) in carried:
                carried[id(optimizer)].begin()
        yield from self._step(built, run_of, draws)
        for optimizer, _, scope in built:
            for tensor in _tensors(optimizer):
                run = run_of[tensor]
                if scope != "element":
                    run.state = dict(optimizer.state.get(tensor, {}))
                    _write_back(tensor, weights[run.start - self.start : run.stop - self.start])
                    continue
                run.state = _reshaped(optimizer.state.get(tensor, {}), (1, run.stop - run.start), (-1,))
                if tensor.grad is not None and tensor.grad.is_sparse:
                    weights[run.start - self.start : run.stop - self.start] = tensor.view(-1)
            if id(optimizer) in carried:
                self._keep(carried[id(optimizer)].changed(), run_of[next(_tensors(optimizer))])

    def _step_bound(
        self,
        runs: Sequence[ShardRun],
        weights: torch.Tensor,
        gradient: torch.Tensor,
        used: NDArray[np.bool_],
        hyper: Sequence[Mapping[str, Any]],
    ) -> None:
        """Update some runs by optimizers that make further steps; building them takes longer than a step."""
        key = tuple((run.start, run.stop, run.group) for run in runs)
        bound = self._bound.get(key)
        if bound is None or not bound.is_to(weights) or not all(run.state for run in runs if bound.initial):
            self._bound = {k: b for k, b in self._bound.items() if b.is_to(weights)}
            tensors = [weights[run.start - self.start : run.stop - self.start] for run in runs]
            built = self.spec.build_all(zip(tensors, (run.group for run in runs), strict=True))
            bound = self._bound[key] = _Bound(weights, tensors, built)
        run_of = dict(zip(bound.tensors, runs, strict=True))
        every = bool(used.all())
        for tensor, run in run_of.items():
            if every or self.division.is_used(run, used):
                tensor.grad = gradient[run.start - self.start : run.stop - self.start]
        for optimizer, groups, _ in bound.begin():
            for group, index in zip(optimizer.param_groups, groups, strict=True):
                if hyper:
                    _override(group, hyper[index])
                optimizer.state.update((t, run_of[t].state) for t in group["params"] if run_of[t].state)
            optimizer.step()
            for tensor in _tensors(optimizer):
                run_of[tensor].state = dict(optimizer.state.get(tensor, {}))
        bound.end()

    def _step(
        self, built: Sequence[Built], run_of: Mapping[torch.Tensor, ShardRun], draws: int | None
    ) -> Reduction:
        reducing = [one.optimizer for one in built if isinstance(one.optimizer, ReducingOptimizer)]
        if reducing:
            with torch.no_grad():
                partials = [optimizer.partials() for optimizer in reducing]
            rows = [self._rows(optimizer, run_of) for optimizer in reducing]
            spread = [self._spread(own, index) for own, index in zip(partials, rows, strict=True)]
            totals = yield from _exchange(spread)
            with torch.no_grad():
                for optimizer, own, index, total in zip(reducing, partials, rows, totals, strict=True):
                    optimizer.apply(_gather(own, index, total))
        for other, _, scope in built:
            if not isinstance(other, ReducingOptimizer):
                with seeding.drawing(draws if scope != "element" else None):
                    other.step()

    def _keep(self, values: dict[str, Any], run: ShardRun) -> None:
        """Keep what an optimizer has beside the state of its tensors with the first of them."""
        if not values:
            return
        if self.division.scope_of(run) == "tensor" and self.stop - self.start < self.layout.numel:
            raise OptimizerError(
                f"{self.division.class_of(run).__name__} has changed {sorted(next(iter(values.values())))} "
                "beside the state of its tensors, which shards cannot share: take exchange='replicated'"
            )
        run.state[CARRIED] = values

    def _rows(
        self, optimizer: ReducingOptimizer, run_of: Mapping[torch.Tensor, ShardRun]
    ) -> list[int | None] | None:
        """Return the parameter of each row of an optimizer's sums; ``None`` for sums of all weights."""
        if not optimizer.per_parameter:
            return None
        return [self.division.first_param(run_of[tensor]) for tensor in _tensors(optimizer)]

    def _spread(self, partials: torch.Tensor, rows: list[int | None] | None) -> Sums:
        """Put the rows of an optimizer's sums where the layout has the parameters."""
        values: Sums = partials.detach().cpu().numpy()
        if rows is None:
            return values
        spread = np.zeros((len(self.layout.params), values.shape[1]))
        for row, index in zip(values, rows, strict=True):
            if index is not None:
                spread[index] = row
        return spread

    def _touched(self, run: ShardRun, gradient: torch.Tensor, touched: Touched | None) -> torch.Tensor:
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

    def take(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Take a state away that is not the optimizer's own; return it for the whole shard, zeros without.

        Args:
            name: its name.
            like: a tensor of the shard's shape.
        """
        found = torch.zeros_like(like)
        for run in self.runs:
            value = run.state.pop(name, None)
            if value is not None:
                found[run.start - self.start : run.stop - self.start] = value
        return found

    def put(self, name: str, values: torch.Tensor) -> None:
        """Keep a state that is not the optimizer's own beside it, until :meth:`take` takes it away."""
        for run in self.runs:
            if run.start < run.stop:
                run.state[name] = values[run.start - self.start : run.stop - self.start].clone()

    @property
    def state_bytes(self) -> int:
        """Bytes of the tensors of its state."""
        tensors = (v for run in self.runs for v in run.state.values() if isinstance(v, torch.Tensor))
        return sum(tensor.nbytes for tensor in tensors)

    def state_frame(self) -> Parts:
        """Serialize runs and state; arrays are referenced, not copied."""
        return pack_runs(self.runs, self.spec.name)

    def state_frame_of(self, start: int, stop: int) -> Parts:
        """Serialize what concerns a part of the shard."""
        return pack_runs(list(cut_runs(self.runs, start, stop)), self.spec.name)


_Stretch = tuple[int, int, int]  # start, stop and parameter group of a run


class _Bound:
    """Optimizers over stretches of some weights, for many steps; between two they hold no state."""

    def __init__(
        self, weights: torch.Tensor, tensors: Sequence[torch.Tensor], built: Sequence[Built]
    ) -> None:
        self._weights, self.tensors, self._built = weights, tensors, built
        self.initial = any(one.optimizer.state for one in built)  # whether there is state before a step
        self._groups = [[dict(group) for group in one.optimizer.param_groups] for one in built]

    def is_to(self, weights: torch.Tensor) -> bool:
        """Whether these are the weights."""
        own = self._weights
        return own is weights or (own.data_ptr() == weights.data_ptr() and own.shape == weights.shape)

    def begin(self) -> Sequence[Built]:
        """Return the optimizers, with the hyper-parameters that they were built with."""
        for one, groups in zip(self._built, self._groups, strict=True):
            for group, values in zip(one.optimizer.param_groups, groups, strict=True):
                group.update(values)
        return self._built

    def end(self) -> None:
        """Let go of gradients and state, which others may take."""
        for tensor in self.tensors:
            tensor.grad = None
        for one in self._built:
            one.optimizer.state.clear()


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _placed(values: torch.Tensor) -> torch.Tensor:
    """Return values where torch places tensors: products of matrices may depend on it in their last bits."""
    return values if values.data_ptr() % _ALIGNMENT == 0 else values.clone()


def _write_back(tensor: torch.Tensor, weights: torch.Tensor) -> None:
    """Copy the weights that an optimizer has updated elsewhere."""
    if tensor.data_ptr() != weights.data_ptr() or not tensor.is_contiguous():
        weights.copy_(tensor.detach().reshape(-1))


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
        row = torch.zeros((1, 1), dtype=torch.int64, device=gradient.device)
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
        return torch.from_numpy(np.array(totals)).to(partials.device)
    gathered = partials.clone()
    for row, index in enumerate(rows):
        if index is not None:
            gathered[row] = torch.from_numpy(np.array(totals[index]))
    return gathered


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """Regularisation, clipping and optimizer, in this order."""

    optimizer: OptimizerSpec  # how to build the optimizer; knows the penalties of its groups
    clip: Clip | None = None  # how the gradient is clipped, if at all
    staleness: Staleness | None = None  # which gradients come late, if any
    seed: int = 0  # of the random numbers that the optimizer draws, if it draws any

    @property
    def reductions(self) -> int:
        """Number of sums over all shards that an update needs."""
        return self.optimizer.reductions + (0 if self.clip is None else self.clip.reductions)

    def update(
        self,
        shard_optimizer: ShardOptimizer,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        used: NDArray[np.bool_],
        hyper: Sequence[Mapping[str, Any]] = (),
        touched: Touched | None = None,
        late: torch.Tensor | None = None,
        draws: int | None = None,
    ) -> Reduction:
        """Update a shard in place: its weights, its gradient and the optimizer's state.

        The gradient, shape (stop - start,), is overwritten. ``late`` is its part that waits for the next
        update, same shape; ``None`` if no gradient ever does. ``used`` tells per parameter whether it has a
        gradient; for the rest see :meth:`ShardOptimizer.update`. Yields ``reductions`` times partial sums,
        and is sent their totals over all shards.
        """
        layout, start, stop = shard_optimizer.layout, shard_optimizer.start, shard_optimizer.stop
        if late is not None and self.staleness is not None:
            now = elements_with_gradient(layout, start, stop, used, touched or {})
            late = joined(gradient, late, shard_optimizer.take(LATE, gradient), now, self.staleness.decay)
        if self.optimizer.penalized:
            regularize(gradient, weights, self.optimizer.group_penalties, layout, start, stop, used)
        if self.clip is not None:
            yield from self.clip.clip(gradient, layout, start, stop, used)
        yield from shard_optimizer.update(weights, gradient, used, hyper, touched, draws)
        if late is not None:
            shard_optimizer.put(LATE, late)

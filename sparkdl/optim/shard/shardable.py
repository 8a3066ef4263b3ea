"""Tries an optimizer: whether it gives the same on shards as on the whole, and what its step needs to see."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from sparkdl import seeding
from sparkdl.exceptions import OptimizerError
from sparkdl.optim.reduction import drive
from sparkdl.optim.shard.optimizer import ShardOptimizer
from sparkdl.optim.spec import OptimizerSpec, Scope
from sparkdl.wire import frame
from sparkdl.wire.frame import Frame
from sparkdl.wire.held import Owned
from sparkdl.wire.layout import ParamLayout, lay_out

_STEPS = 3
_Entry = tuple[tuple[int, ...], int]  # shape of a tensor, and its parameter group
_SMALL: tuple[_Entry, ...] = (((6, 4), 0), ((5, 2), 0))
_CUTS = (0, 7, 13, 26, 34)
_SPARSE_ROWS = 3  # rows with a gradient, where gradients are sparse
_SHARDABLE = (
    "SGD, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Rprop, Adagrad, Adadelta, ASGD, SparseAdam, those of "
    "sparkdl.optim (Ftrl, AdagradDecay, LARS, LAMB, LBFGS)"
)
_ELEMENTS = 1 << 17
"""So many elements of a module's own tensors are tried at most; larger tensors are tried smaller."""
_SIDE = 1 << 14
_SHAPES = 24


@dataclass(frozen=True, slots=True)
class Shardability:
    """What trying an optimizer has shown."""

    spec: OptimizerSpec  # the optimizer, or several, each with what its step needs to see
    layout: ParamLayout  # the layout, with the stretches that shards may not cut
    stateful: bool  # whether any of them keeps state between steps


def check_shardable(spec: OptimizerSpec) -> bool:
    """Run an optimizer on two small matrices, whole and in shards, and compare.

    Returns:
        Whether the optimizer, or one of several, keeps state between steps.

    Raises:
        OptimizerError: if it fails on shards, or gives another result than on the whole.
    """
    trials = [_elementwise(replace(p, groups=(group,), others=())) for p in spec.parts for group in p.groups]
    return any(trials)


def tried_optimizer(spec: OptimizerSpec, layout: ParamLayout) -> Shardability:
    """Find out what the step of an optimizer, or of each of several, needs to see at once.

    It makes some steps on small tensors of random numbers: in shards that end anywhere; tensor by tensor; all
    tensors together. The first that gives what torch gives with all of them will do. One that neither torch
    nor this library brings is tried on shapes of the module's own tensors, too. Raises OptimizerError if it
    works in none of these ways.
    """
    parts, stateful = [], []
    for part, groups in zip(spec.parts, spec.group_ranges, strict=True):
        own = [(param.shape, param.group - groups.start) for param in layout.params if param.group in groups]
        scope, keeps = _scope_of(part, own)
        shapes = _smallest(own, len(part.groups)) if scope != "element" else ()
        parts.append(replace(part, scope=scope, shapes=shapes))
        stateful.append(keeps)
    first, *others = parts
    found = replace(first, others=tuple(others))
    return Shardability(found, replace(layout, uncut=_uncut(found, layout)), any(stateful))


def _scope_of(part: OptimizerSpec, own: Sequence[_Entry]) -> tuple[Scope, bool]:
    """Return what an optimizer's step needs to see, and whether it keeps state."""
    (cls,) = part.classes
    try:
        stateful = check_shardable(part)
        if not cls.__module__.startswith(("torch.optim.", "sparkdl.optim.")):
            _elementwise(part, _like(own, len(part.groups)))
        return "element", stateful
    except OptimizerError as error:
        reason = error
    if not own:
        raise reason
    _check_closure(part, cls, own)
    try:
        return "tensor", _whole(replace(part, scope="tensor"), own)
    except OptimizerError:
        return "model", _whole(replace(part, scope="model"), own)


def _elementwise(spec: OptimizerSpec, entries: Sequence[_Entry] = _SMALL) -> bool:
    """Compare shards that end anywhere with the whole; return whether there is state."""
    trial = _Trial(spec, entries)
    ends = _CUTS if entries is _SMALL else [trial.layout.numel * n // 3 for n in range(4)]
    try:
        shards = [ShardOptimizer(spec, trial.layout, lo, hi) for lo, hi in pairwise(ends)]
        for step in range(_STEPS):
            trial.advance(step)
            drive([trial.update(shard, step) for shard in shards])
            for shard in shards:
                shard.state_frame()
    except OptimizerError:
        raise
    except Exception as error:
        raise _not_shardable(spec, f"{type(error).__name__}: {error}") from error
    runs = [run for shard in shards for run in shard.runs]
    for name, value in (item for run in runs for item in run.state.items()):
        if isinstance(value, list | tuple | dict | deque):
            raise OptimizerError(
                f"{spec.name} keeps a {type(value).__name__} as state {name!r}; only tensors "
                "and plain scalars can be kept per shard"
            )
    if not trial.agrees():
        raise _not_shardable(spec, "its result on shards differs from its result on the whole")
    return any(run.state for run in runs)


def _whole(spec: OptimizerSpec, own: Sequence[_Entry]) -> bool:
    """Compare whole tensors, alone or together, with torch; return whether there is state."""
    trial = _Trial(spec, _like(own, len(spec.groups)))
    ends = [0, trial.layout.numel]
    if spec.scope == "tensor":
        ends = [0, *(param.end for param in trial.layout.params)]
    states: list[Frame | None] = [None] * (len(ends) - 1)
    try:
        for step in range(_STEPS):
            trial.advance(step)
            for index, (lo, hi) in enumerate(pairwise(ends)):  # built again in each step, as tasks may do
                state = states[index]
                shard = ShardOptimizer(spec, trial.layout, lo, hi, None if state is None else Owned(state))
                drive([trial.update(shard, step)])
                states[index] = frame.unpack(bytearray(frame.join(shard.state_frame())), writable=True)
    except OptimizerError as error:
        raise OptimizerError(f"optimizer {spec.name} cannot be trained with: {error}") from error
    except Exception as error:
        raise OptimizerError(f"optimizer {spec.name} fails: {type(error).__name__}: {error}") from error
    if not trial.agrees():
        raise OptimizerError(
            f"optimizer {spec.name} cannot be trained with: built again for each step from its state, its "
            "groups and its attributes, it gives another result than torch. What it keeps elsewhere is lost; "
            "let it keep all in self.state or in attributes that are numbers or tensors"
        )
    return any(run[3] for state in states if state is not None for run in state.meta["runs"]) or any(
        state.arrays for state in states if state is not None
    )


class _Trial:
    """Torch's optimizer on some tensors of random numbers, and the same numbers as a flat vector."""

    def __init__(self, spec: OptimizerSpec, entries: Sequence[_Entry]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.layout = ParamLayout(lay_out([(f"weight{i}", *entry) for i, entry in enumerate(entries)]))
        self._spec, self._entries, self._generator = spec, entries, generator
        self._tensors = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape, _ in entries]
        self._sparse = issubclass(spec.classes[0], torch.optim.SparseAdam)
        self._optimizer: torch.optim.Optimizer | None = None
        self._gradients: list[list[torch.Tensor]] = []
        self.flat = _flatten(self._tensors)

    def advance(self, step: int, closure: Any = None) -> None:
        """Let torch make a step."""
        if self._optimizer is None:
            pairs = zip(self._tensors, (group for _, group in self._entries), strict=True)
            self._optimizer = self._spec.build(pairs)
        gradient = [torch.randn(shape, generator=self._generator) for shape, _ in self._entries]
        self._gradients.append(gradient)
        for tensor, values in zip(self._tensors, gradient, strict=True):
            if self._sparse:
                values[_SPARSE_ROWS:] = 0
            tensor.grad = values.clone().to_sparse(1) if self._sparse else values.clone()
        with seeding.drawing(step):
            self._optimizer.step(*([] if closure is None else [closure]))

    def update(self, shard: ShardOptimizer, step: int) -> Any:
        """Return the same step of a shard."""
        used = np.ones(len(self._entries), np.bool_)
        values = _flatten(self._gradients[step])[shard.start : shard.stop].clone()
        return shard.update(self.flat[shard.start : shard.stop], values, used, draws=step)

    def agrees(self) -> bool:
        """Return whether both have led to the same."""
        return torch.allclose(self.flat, _flatten(self._tensors), rtol=1e-5, atol=1e-7)


def _check_closure(part: OptimizerSpec, cls: type[torch.optim.Optimizer], own: Sequence[_Entry]) -> None:
    """Check that an optimizer does not evaluate the loss itself."""
    arguments = list(inspect.signature(cls.step).parameters.values())[1:]
    needs = any(a.default is a.empty and a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD) for a in arguments)
    if not needs:
        entries = _like(own, len(part.groups))
        try:
            _Trial(part, entries).advance(0)
            return
        except Exception:
            try:
                _Trial(part, entries).advance(0, lambda: torch.zeros((), requires_grad=True))
            except Exception:
                return  # it fails either way, and says how when it is tried
    raise OptimizerError(
        f"optimizer {part.name} cannot be trained with: its step() needs a closure that computes the loss "
        "again, and an iteration computes it once. sparkdl.optim.LBFGS makes the steps of "
        "torch.optim.LBFGS(max_iter=1); other optimizers of torch.optim need no closure"
    )


def _like(own: Sequence[_Entry], groups: int) -> list[_Entry]:
    """Return small tensors like a module's: its own shapes, the large ones with shorter sides."""
    found: dict[_Entry, None] = {}
    budget = _ELEMENTS
    for shape, group in sorted(own, key=lambda entry: (np.prod(entry[0]), entry)):
        size = int(np.prod(shape))
        if (shape, group) in found or size == 0 or len(found) >= _SHAPES * groups:
            continue
        if size > budget:
            side = max(1, int(_SIDE ** (1 / len(shape))))
            shape = tuple(min(side, n) for n in shape)
        budget -= min(size, budget)
        found[shape, group] = None
    return list(found) or list(_SMALL)


def _smallest(own: Sequence[_Entry], groups: int) -> tuple[tuple[int, ...], ...]:
    """Return the shape of the smallest tensor of each group."""
    found = [min((shape for shape, g in own if g == n), key=np.prod, default=(1,)) for n in range(groups)]
    return tuple(found)


def _uncut(spec: OptimizerSpec, layout: ParamLayout) -> tuple[tuple[int, int], ...]:
    """Return the stretches of the weights that shards may not cut, joined where they overlap."""
    found: list[tuple[int, int]] = []
    for part, groups in zip(spec.parts, spec.group_ranges, strict=True):
        places = [(p.offset, p.end) for p in layout.params if p.group in groups and p.numel]
        if part.scope == "tensor":
            found += places
        elif part.scope == "model" and places:
            found.append((places[0][0], places[-1][1]))
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(found):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return tuple(joined)


def _flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _not_shardable(spec: OptimizerSpec, why: str) -> OptimizerError:
    return OptimizerError(
        f"optimizer {spec.name} cannot be applied to shards of the weights ({why}). "
        f"Elementwise optimizers can: {_SHARDABLE}, and third-party ones of that kind"
    )

"""The optimizer's state of some rows of embedding tables, out of the state of all weights and back.

An optimizer that leaves weights without gradient as they are (*lazy*) does to a packed vector
(:mod:`sparkdl.wire.touched_rows`) what it does to the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sparkdl.optim.shard.optimizer import ShardOptimizer
from sparkdl.optim.shard.run import ShardRun
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.wire.held import tensor_of
from sparkdl.wire.layout import ParamLayout
from sparkdl.wire.touched_rows import TouchedRows

_STATELESS = (torch.optim.SGD,)
_SPOILERS = ("momentum", "weight_decay")
"""Options that, where they are not zero, change weights whose gradient is zero."""


def lazy_groups(spec: OptimizerSpec) -> frozenset[int]:
    """Return the parameter groups whose weights stay as they are where their gradient is zero.

    Those of ``SparseAdam``, and of ``Adagrad`` and ``SGD`` without weight decay and momentum, without
    penalties.
    """
    found = set()
    for shadow, cls, groups in zip(spec.shadow(), spec.classes, spec.group_ranges, strict=True):
        for index, options in zip(groups, shadow.param_groups, strict=True):
            plain = cls in (torch.optim.SparseAdam, torch.optim.Adagrad, *_STATELESS)
            if plain and not _spoilt(options) and not spec.group_penalties[index]:
                found.add(index)
    return frozenset(found)


def sparse_groups(spec: OptimizerSpec) -> frozenset[int]:
    """Return the parameter groups whose optimizer takes sparse gradients only."""
    pairs = zip(spec.classes, spec.group_ranges, strict=True)
    return frozenset(
        group for cls, groups in pairs if issubclass(cls, torch.optim.SparseAdam) for group in groups
    )


def _spoilt(options: Mapping[str, Any]) -> bool:
    return any(options.get(name) for name in _SPOILERS)


def lazy_tables(
    optimizer: ShardOptimizer,
    tables: Sequence[int],
    hyper: Sequence[Mapping[str, Any]],
    *,
    late: bool = False,
) -> list[int]:
    """Return the tables of which the next step may be given some rows alone.

    Not those that have no state yet: the optimizer fills the state of all rows in its first step. ``late``
    says whether late gradients are kept beside the state of any optimizer.
    """
    found = []
    for index in tables:
        spec = optimizer.layout.params[index]
        run = next(run for run in optimizer.runs if run.start <= spec.offset < run.stop)
        spoilt = bool(hyper) and _spoilt(hyper[run.group])
        stateless = optimizer.division.class_of(run) in _STATELESS and not late
        if not spoilt and (run.state or stateless):
            found.append(index)
    return found


def packed_optimizer(optimizer: ShardOptimizer, rows: TouchedRows) -> ShardOptimizer:
    """Return the optimizer of the packed vector, with the state of the elements that are covered."""
    place = _places(rows.layout, rows.packed)
    packed = ShardOptimizer(optimizer.spec, rows.packed, 0, rows.packed.numel)
    packed.runs = []
    for run in optimizer.runs:
        state = {
            name: _taken(rows, value, run.start) if run.is_elementwise(value) else value
            for name, value in run.state.items()
        }
        packed.runs.append(ShardRun(place[run.start], place[run.stop], run.group, state))
    return packed


def put_state(optimizer: ShardOptimizer, rows: TouchedRows, updated: ShardOptimizer) -> None:
    """Take over the state that an optimizer of the packed vector has left."""
    place = _places(rows.packed, rows.layout)
    runs = []
    for packed in updated.runs:
        start, stop = place[packed.start], place[packed.stop]
        if stop - start == packed.stop - packed.start:  # all of it
            runs.append(ShardRun(start, stop, packed.group, packed.state))
            continue
        own = next(run for run in optimizer.runs if run.start <= start and stop <= run.stop)
        if (own.start, own.stop) != (start, stop):
            own = own.cut(start, stop)
        for name, value in packed.state.items():
            if packed.is_elementwise(value):
                rows.put(value.numpy(), own.state[name].numpy(), start)
            else:
                own.state[name] = value
        runs.append(own)
    optimizer.runs = runs


def _places(of: ParamLayout, to: ParamLayout) -> dict[int, int]:
    """Return where the borders of the parameters of one layout are in another."""
    places = {a.offset: b.offset for a, b in zip(of.params, to.params, strict=True)}
    return places | {of.numel: to.numel}


def _taken(rows: TouchedRows, values: torch.Tensor, start: int) -> torch.Tensor:
    return tensor_of(np.ascontiguousarray(rows.take(values.numpy(), start)))

"""Lazy optimizers do to packed weights what they do to all of them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import optim

from sparkdl.optim import OptimizerSpec, ParamGroup, optimizer_spec
from sparkdl.optim.shard.optimizer import ShardOptimizer
from sparkdl.optim.shard.packed import lazy_groups, lazy_tables, packed_optimizer, put_state
from sparkdl.wire import frame
from sparkdl.wire.layout import ParamLayout, lay_out
from sparkdl.wire.touched_rows import TouchedRows

LAYOUT = ParamLayout(
    lay_out([("users", (7, 3), 0), ("items", (5, 2), 0), ("weight", (4, 3), 1), ("bias", (3,), 1)])
)
DENSE = OptimizerSpec(partial(optim.Adam, lr=0.1))
LAZY = {
    "SparseAdam": partial(optim.SparseAdam, lr=0.1),
    "Adagrad": partial(optim.Adagrad, lr=0.1, initial_accumulator_value=0.3, lr_decay=0.1),
    "SGD": partial(optim.SGD, lr=0.1),
}


def touched_rows(t):
    """Rows of each table in iteration t; at times few, at times none of the second table but one."""
    generator = np.random.default_rng(t)
    users = np.flatnonzero(generator.random(7) < 0.5)
    return {0: users if len(users) else np.array([2]), 1: np.array([t % 5])}


def gradient_of(t, rows):
    generator = torch.Generator().manual_seed(t)
    gradient = torch.zeros(LAYOUT.numel)
    packed = rows.take(gradient.numpy())
    rows.put(torch.randn(len(packed), generator=generator).numpy(), gradient.numpy())
    return gradient


@pytest.mark.parametrize("name", LAZY)
def test_packed_updates_are_bit_equal_to_whole_ones(name):
    spec = OptimizerSpec(LAZY[name], others=(DENSE,))
    assert lazy_groups(spec) == {0}
    start = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(1))
    whole, weights = start.clone(), start.clone()
    reference = ShardOptimizer(spec, LAYOUT, 0, LAYOUT.numel)
    live = ShardOptimizer(spec, LAYOUT, 0, LAYOUT.numel)
    for t in range(12):
        sparse = TouchedRows(LAYOUT, touched_rows(t))
        gradient = gradient_of(t, sparse)
        masks = {i: np.isin(np.arange(LAYOUT.params[i].shape[0]), own) for i, own in sparse.tables.items()}
        used = np.array([True, True, t % 3 != 1, True])  # runs are split where one is left out
        reference.step(whole, gradient.clone(), used, touched=masks)

        lazy = lazy_tables(live, [0, 1], ())
        assert lazy == ([0, 1] if t or name == "SGD" else [])  # the first step fills all rows of the state
        rows = TouchedRows(LAYOUT, {i: own for i, own in sparse.tables.items() if i in lazy})
        packed = packed_optimizer(live, rows)
        part = torch.from_numpy(np.array(rows.take(weights.numpy())))
        here = {
            i: np.ones(len(own), np.bool_) if i in rows.tables else masks[i]
            for i, own in sparse.tables.items()
        }
        packed.step(part, torch.from_numpy(np.array(rows.take(gradient.numpy()))), used, touched=here)
        rows.put(part.numpy(), weights.numpy())
        put_state(live, rows, packed)

        assert torch.equal(weights, whole)
        states = [frame.unpack(frame.join(optimizer.state_frame())) for optimizer in (reference, live)]
        assert states[0].meta == states[1].meta
        for key, array in states[0].arrays.items():
            np.testing.assert_array_equal(states[1].arrays[key], array)


def test_state_of_a_part():
    optimizer = ShardOptimizer(OptimizerSpec(DENSE.factory, others=(DENSE,)), LAYOUT, 0, LAYOUT.numel)
    optimizer.step(torch.zeros(LAYOUT.numel), torch.ones(LAYOUT.numel), np.ones(4, np.bool_))
    part = frame.unpack(frame.join(optimizer.state_frame_of(10, 40)))
    assert [run[:3] for run in part.meta["runs"]] == [[10, 31, 0], [31, 40, 1]]
    assert part.arrays["1.exp_avg"].shape == (9,)


@pytest.mark.parametrize(
    ("factory", "lazy"),
    [
        (partial(optim.SparseAdam, lr=0.1), True),
        (partial(optim.SGD, lr=0.1), True),
        (partial(optim.SGD, lr=0.1, momentum=0.9), False),
        (partial(optim.SGD, lr=0.1, weight_decay=0.1), False),
        (partial(optim.Adagrad, lr=0.1), True),
        (partial(optim.Adagrad, lr=0.1, weight_decay=0.1), False),
        (partial(optim.Adam, lr=0.1), False),
        (partial(optim.RMSprop, lr=0.1), False),
    ],
)
def test_lazy_optimizers(factory, lazy):
    assert lazy_groups(OptimizerSpec(factory)) == ({0} if lazy else set())


def test_a_penalty_concerns_all_rows():
    module = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.Linear(2, 1))
    spec, _ = optimizer_spec(partial(optim.SGD, lr=0.1), module, [ParamGroup("0.*", l2=0.1)])
    assert lazy_groups(spec) == {0}  # the layer's, which come first


def test_a_schedule_may_take_the_laziness_away():
    spec = OptimizerSpec(partial(optim.SGD, lr=0.1), others=(DENSE,))
    optimizer = ShardOptimizer(spec, LAYOUT, 0, LAYOUT.numel)
    assert lazy_tables(optimizer, [0], [{"lr": 0.2}]) == [0]
    assert lazy_tables(optimizer, [0], [{"momentum": 0.9}]) == []

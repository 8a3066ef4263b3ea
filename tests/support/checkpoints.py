"""A checkpoint without a run: all that one can have, and no Spark."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl.nn.parameters import layout_of
from sparkdl.optim import optimizer_spec
from sparkdl.optim.describe import describe_optimizer
from sparkdl.optim.shard.optimizer import ShardOptimizer
from sparkdl.train.checkpoint import CheckpointFiles, CheckpointFolder
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.checkpoint.setting import setting_of
from sparkdl.train.history import History
from sparkdl.train.run import Snapshot
from sparkdl.train.state import TrainState
from sparkdl.wire import frame
from support.models import Everything

ITERATION = 3
MODULE = Everything(seed=1)
SPEC, GROUP_OF = optimizer_spec(partial(torch.optim.Adam, lr=1e-3, amsgrad=True), MODULE)
LAYOUT = layout_of(MODULE, GROUP_OF)
STATE = TrainState(iteration=ITERATION, step=ITERATION, samples=180, loss=0.5)


def setting(optimizer: Any = None, groups: Any = (), module: Any = None) -> dict[str, Any]:
    """Return the setting of a run, by default of the one that wrote the checkpoint."""
    module = module or MODULE
    spec, group_of = optimizer_spec(
        optimizer or partial(torch.optim.Adam, lr=1e-3, amsgrad=True), module, groups
    )
    layout = layout_of(module, group_of)
    described = describe_optimizer(spec)
    return setting_of(
        layout, [100, 100], batch_size=60, seed=3, shuffle=True, dealt=True, optimizer=described
    )


def point() -> ResumePoint:
    """Return what a run in its first epoch would write, with Adam's state and an average in two shards."""
    random = np.random.default_rng(0)
    params = random.normal(size=LAYOUT.numel).astype(np.float32)
    kept = []
    for start, stop in ((0, 1000), (1000, LAYOUT.numel)):
        optimizer = ShardOptimizer(SPEC, LAYOUT, start, stop)
        used = np.ones(len(LAYOUT.params), np.bool_)
        optimizer.step(torch.from_numpy(params[start:stop].copy()), torch.ones(stop - start), used)
        average = frame.pack({"kind": "average"}, {"params": params[start:stop]})
        kept.append([frame.join(optimizer.state_frame()), frame.join(average)])
    history = History()
    for iteration in range(1, ITERATION + 1):
        row = {"epoch": 1, "iteration": iteration, "loss": 0.5, "samples": 60, "lr": 1e-3, "seconds": 0.1}
        history.append(row | {"phases": {"compute": 0.1}, "bytes": {"state": 7}, "extras": {"penalty": 0.1}})
    history.add_scores(2, 1, "valid", {"loss": 0.25})
    return ResumePoint(
        state=STATE,
        snapshot=Snapshot(params, random.normal(size=49).astype(np.float32), np.arange(2)),
        states=kept,
        average_buffers=np.zeros(49, np.float32),
        averaged=2,
        history=history,
        scores={"valid/loss": 0.25},
        setting=setting(),
        steps=4,
        batch_size=60,
        frozen=frozenset({"head.bias"}),
        first=2,
        slot=120,
        hooks={"EarlyStopping.0": {"best": np.arange(3.0), "stale": 1}},
    )


def save(
    folder: CheckpointFolder, module: nn.Module, state: TrainState, scores: Any, point: Any = None
) -> str:
    """Write a checkpoint of a folder, and return its path; without a point one for inference only."""
    files = CheckpointFiles.of(module, state, scores, point)
    return folder.finish(folder.begin(state.iteration), files, {})

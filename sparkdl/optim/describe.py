"""The description of an optimizer that must be the same for its state to go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sparkdl.optim.shard.optimizer import ShardOptimizer
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.wire.layout import ParamLayout, lay_out


def describe_optimizer(spec: OptimizerSpec) -> dict[str, Any]:
    """Return, JSON-compatible, an optimizer's classes, groups and names of state.

    Returns:
        ``classes``: name of each optimizer's class; ``groups``: number of its parameter groups;
        ``state``: per group of all optimizers, what it keeps after its first step.
    """
    parts = spec.parts
    return {
        "classes": [cls.__qualname__ for cls in spec.classes],
        "groups": [len(part.groups) for part in parts],
        "state": [_state_of(p, index) for p in parts for index in range(len(p.groups))],
    }


def _state_of(part: OptimizerSpec, group: int) -> list[str]:
    shape = part.shapes[group] if part.shapes else (2, 2)
    spec = replace(part, groups=part.groups[group : group + 1], penalties=(), others=(), shapes=())
    layout = ParamLayout(lay_out([("weight", shape, 0)]))
    whole = ShardOptimizer(spec, layout, 0, layout.numel)
    whole.step(torch.zeros(layout.numel), torch.ones(layout.numel), np.ones(1, np.bool_))
    return sorted({name for run in whole.runs for name in run.state})

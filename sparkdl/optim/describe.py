"""Descriptions of an optimizer: what must be the same for its state to go on, and what people read."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sparkdl.optim.shard.optimizer import ShardOptimizer
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.wire.layout import ParamLayout, lay_out


def describe_optimizer(spec: OptimizerSpec) -> dict[str, Any]:
    """Return, JSON-compatible, an optimizer's classes, groups and names of state.

    ``classes`` are the optimizers', ``groups`` numbers of their groups; ``state`` is what each group of all
    optimizers keeps after its first step.
    """
    parts = spec.parts
    return {
        "classes": [cls.__qualname__ for cls in spec.classes],
        "groups": [len(part.groups) for part in parts],
        "state": [_state_of(p, index) for p in parts for index in range(len(p.groups))],
    }


def options_of(spec: OptimizerSpec) -> list[dict[str, Any]]:
    """Return the options of each group of all optimizers, those that are left to the optimizer too."""
    found = []
    for part in spec.parts:
        for group in range(len(part.groups)):
            built = _alone(part, group).build([(torch.zeros(_shape(part, group)), 0)])
            found.append({name: value for name, value in built.param_groups[0].items() if name != "params"})
    return found


def written(spec: OptimizerSpec) -> str:
    """Return the optimizers as one would write them for their first groups: ``SGD(lr=0.5)``."""
    texts, options = [], options_of(spec)
    for part, kind, groups in zip(spec.parts, spec.classes, spec.group_ranges, strict=True):
        usual = inspect.signature(kind).parameters
        given = [
            f"{name}={value!r}"
            for name, value in options[groups.start].items()
            if name == "lr" or (name in usual and repr(value) != repr(usual[name].default))
        ]
        many = f" in {len(groups)} groups" if len(part.groups) > 1 else ""
        texts.append(f"{kind.__name__}({', '.join(given)}){many}")
    return " + ".join(texts)


def _shape(part: OptimizerSpec, group: int) -> tuple[int, ...]:
    return part.shapes[group] if part.shapes else (2, 2)


def _alone(part: OptimizerSpec, group: int) -> OptimizerSpec:
    """Return the spec of one group."""
    return replace(part, groups=part.groups[group : group + 1], penalties=(), others=(), shapes=())


def _state_of(part: OptimizerSpec, group: int) -> list[str]:
    shape, spec = _shape(part, group), _alone(part, group)
    layout = ParamLayout(lay_out([("weight", shape, 0)]))
    whole = ShardOptimizer(spec, layout, 0, layout.numel)
    whole.step(torch.zeros(layout.numel), torch.ones(layout.numel), np.ones(1, np.bool_))
    return sorted({name for run in whole.runs for name in run.state})

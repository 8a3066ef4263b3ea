"""Optimizers of embedding variables: which ones may be, and the state of rows that come later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sparkdl.exceptions import ConfigError
from sparkdl.optim.adagrad_decay import AdagradDecay
from sparkdl.optim.ftrl import Ftrl
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.wire.frame import Array

LAZY = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam, AdagradDecay, Ftrl)
_SPOILERS = ("momentum", "weight_decay", "l2_shrinkage")


def check_lazy(spec: OptimizerSpec, group: int, name: str) -> None:
    """Check that the optimizer of a parameter group can update some rows alone."""
    cls, options = _class_and_options(spec, group)
    known = "torch.optim.SparseAdam, Adagrad or SGD, or sparkdl.optim.AdagradDecay or Ftrl"
    if cls not in LAZY:
        raise ConfigError(
            f"optimizer: {cls.__name__} changes rows without a gradient, and the embedding variable {name!r} "
            f"has too many for that: give it {known}, as in optimizer={{'{name}.*': "
            "partial(torch.optim.SparseAdam, lr=1e-3), '*': ...}"
        )
    check_unspoilt(options, name, "optimizer")
    if spec.group_penalties[group]:
        raise ConfigError(f"groups: the embedding variable {name!r} cannot have penalties (l1, l2)")


def check_unspoilt(options: Mapping[str, Any], name: str, by: str) -> None:
    """Check that no option of a group makes the optimizer change rows without a gradient."""
    spoilt = [option for option in _SPOILERS if options.get(option)]
    if spoilt:
        raise ConfigError(
            f"{by}: {spoilt[0]}={options[spoilt[0]]!r} changes rows without a gradient, and the "
            f"embedding variable {name!r} has too many for that: leave it out, or give the variable an "
            "optimizer of its own"
        )


def fresh_state(spec: OptimizerSpec, group: int, rows: Array) -> dict[str, Array]:
    """Return the state of rows that no step has changed, as the optimizer begins it."""
    cls, options = _class_and_options(spec, group)
    if cls is torch.optim.SparseAdam:
        return {name: np.zeros_like(rows) for name in ("exp_avg", "exp_avg_sq")}
    if cls is torch.optim.SGD:
        return {}
    begin = np.full_like(rows, options["initial_accumulator_value"])
    if cls is Ftrl:
        return {"accumulator": begin, "rest": np.zeros_like(rows)}
    # How often the accumulator was cut down matters to those that have grown.
    return {"sum": begin, "decays": np.zeros_like(rows)} if cls is AdagradDecay else {"sum": begin}


def _class_and_options(
    spec: OptimizerSpec, group: int
) -> tuple[type[torch.optim.Optimizer], Mapping[str, Any]]:
    for shadow, cls, groups in zip(spec.shadow(), spec.classes, spec.group_ranges, strict=True):
        if group in groups:
            return cls, shadow.param_groups[group - groups.start]
    raise IndexError(group)

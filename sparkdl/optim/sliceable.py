"""Which optimizers may be applied to slices: those that a trial cannot tell from the whole."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from sparkdl.exceptions import OptimizerError
from sparkdl.layout import ParamLayout, lay_out
from sparkdl.optim.slice import SliceOptimizer
from sparkdl.optim.spec import OptimizerSpec

_STEPS = 3
_SHAPE = (6, 4)
_CUTS = (0, 7, 13, 24)
_SLICEABLE = "SGD, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Rprop, Adagrad, Adadelta, ASGD"


def check_sliceable(spec: OptimizerSpec) -> bool:
    """Run an optimizer on a small matrix, whole and in slices, and compare.

    Returns:
        Whether the optimizer keeps state between steps.

    Raises:
        OptimizerError: if it fails on slices, or gives another result than on the whole.
    """
    stateful = False
    for group in range(len(spec.groups)):
        stateful |= _trial(OptimizerSpec(spec.factory, (spec.groups[group],)))
    return stateful


def _trial(spec: OptimizerSpec) -> bool:
    generator = torch.Generator().manual_seed(0)
    initial = torch.randn(_SHAPE, generator=generator)
    gradients = [torch.randn(_SHAPE, generator=generator) for _ in range(_STEPS)]
    whole = initial.clone().requires_grad_()
    flat = initial.flatten().clone()
    layout = ParamLayout(lay_out([("weight", _SHAPE, 0)]))
    slices = [SliceOptimizer(spec, layout, lo, hi) for lo, hi in pairwise(_CUTS)]
    used = np.ones(1, np.bool_)
    try:
        reference = spec.build([(whole, 0)])
        for gradient in gradients:
            whole.grad = gradient.clone()
            reference.step()
            for part in slices:
                part.step(flat[part.start : part.stop], gradient.flatten()[part.start : part.stop], used)
                part.state_frame()
    except OptimizerError:
        raise
    except Exception as error:
        raise _not_sliceable(spec, f"{type(error).__name__}: {error}") from error
    if not torch.allclose(flat, whole.detach().flatten(), rtol=1e-5, atol=1e-7):
        raise _not_sliceable(spec, "its result on slices differs from its result on the whole")
    return any(run.state for part in slices for run in part.runs)


def _not_sliceable(spec: OptimizerSpec, why: str) -> OptimizerError:
    return OptimizerError(
        f"optimizer {spec.name} cannot be applied to slices of the weights ({why}). "
        f"Elementwise optimizers can: {_SLICEABLE}, and third-party ones of that kind"
    )

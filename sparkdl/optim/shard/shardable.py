"""Checks that an optimizer gives the same result on shards as on the whole."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from sparkdl.exceptions import OptimizerError
from sparkdl.optim.reduction import drive
from sparkdl.optim.shard.optimizer import ShardOptimizer
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.wire.layout import ParamLayout, lay_out

_STEPS = 3
_SHAPES = ((6, 4), (5, 2))
_CUTS = (0, 7, 13, 26, 34)
_SPARSE_ROWS = 3  # rows with a gradient, where gradients are sparse
_SHARDABLE = (
    "SGD, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Rprop, Adagrad, Adadelta, ASGD, SparseAdam, those of "
    "sparkdl.optim (Ftrl, AdagradDecay, LARS, LAMB, LBFGS)"
)


def check_shardable(spec: OptimizerSpec) -> bool:
    """Run an optimizer on two small matrices, whole and in shards, and compare.

    Returns:
        Whether the optimizer, or one of several, keeps state between steps.

    Raises:
        OptimizerError: if it fails on shards, or gives another result than on the whole.
    """
    trials = [_trial(OptimizerSpec(part.factory, (group,))) for part in spec.parts for group in part.groups]
    return any(trials)


def _trial(spec: OptimizerSpec) -> bool:
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(shape, generator=generator).requires_grad_() for shape in _SHAPES]
    gradients = [[torch.randn(shape, generator=generator) for shape in _SHAPES] for _ in range(_STEPS)]
    flat = _flatten(whole)
    layout = ParamLayout(lay_out([(f"weight{i}", shape, 0) for i, shape in enumerate(_SHAPES)]))
    used = np.ones(len(_SHAPES), np.bool_)
    try:
        sparse = issubclass(spec.classes[0], torch.optim.SparseAdam)
        shards = [ShardOptimizer(spec, layout, lo, hi) for lo, hi in pairwise(_CUTS)]
        reference = spec.build([(weight, 0) for weight in whole])
        for gradient in gradients:
            if sparse:
                for one in gradient:
                    one[_SPARSE_ROWS:] = 0
            for weight, one in zip(whole, gradient, strict=True):
                weight.grad = one.clone().to_sparse(1) if sparse else one.clone()
            reference.step()
            values = _flatten(gradient)
            drive([s.update(flat[s.start : s.stop], values[s.start : s.stop].clone(), used) for s in shards])
            for part in shards:
                part.state_frame()
    except OptimizerError:
        raise
    except Exception as error:
        raise _not_shardable(spec, f"{type(error).__name__}: {error}") from error
    if not torch.allclose(flat, _flatten(whole), rtol=1e-5, atol=1e-7):
        raise _not_shardable(spec, "its result on shards differs from its result on the whole")
    return any(run.state for part in shards for run in part.runs)


def _flatten(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _not_shardable(spec: OptimizerSpec, why: str) -> OptimizerError:
    return OptimizerError(
        f"optimizer {spec.name} cannot be applied to shards of the weights ({why}). "
        f"Elementwise optimizers can: {_SHARDABLE}, and third-party ones of that kind"
    )

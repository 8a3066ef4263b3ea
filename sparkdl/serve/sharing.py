"""Copies of a module that share its weights."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from sparkdl.nn.embedding import EmbeddingVariable


def copy_sharing(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose parameters, buffers and other tensors are the module's own.

    What a forward pass leaves in attributes stays in the copy, so threads that have a copy each do not
    disturb each other, and the weights are in memory once. So are the rows of embedding variables, which a
    look-up only reads.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        tensors = [*part._parameters.values(), *part._buffers.values()]
        tensors += [value for value in vars(part).values() if isinstance(value, Tensor)]
        memo |= {id(tensor): tensor for tensor in tensors if tensor is not None}
        if isinstance(part, EmbeddingVariable):
            memo[id(part.store)] = part.store
        forward = vars(part).get("forward")
        if forward is not None and not hasattr(forward, "__self__"):  # a packed layer's: nothing but weights
            memo[id(forward)] = forward
    return copy.deepcopy(module, memo)

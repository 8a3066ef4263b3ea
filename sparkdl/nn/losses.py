"""Losses that give one value per row, so that sample weights work with them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

_OF_LOGITS = (
    *(nn.BCEWithLogitsLoss, nn.CrossEntropyLoss, nn.MultiMarginLoss, nn.SoftMarginLoss),
    *(nnf.binary_cross_entropy_with_logits, nnf.cross_entropy),
)
_NO_LABEL = torch.iinfo(torch.int64).min


def cross_entropy(output: Tensor, label: Tensor) -> Tensor:
    """Return the cross-entropy of each row, of one logit per class and the number of the class.

    A label that is no class is an error: -100, too, which torch would pass over.
    """
    return nnf.cross_entropy(output, label, reduction="none", ignore_index=_NO_LABEL)


def binary_cross_entropy(output: Tensor, label: Tensor) -> Tensor:
    """Return the cross-entropy of each row, of the logit of class 1 and a label of 0 or 1."""
    losses = nnf.binary_cross_entropy_with_logits(output, label, reduction="none")
    return losses.reshape(len(losses), -1).mean(1)


def squared_error(output: Tensor, label: Tensor) -> Tensor:
    """Return the squared error of each row, the mean over its targets.

    Examples:
        >>> import torch
        >>> output = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> squared_error(output, torch.tensor([[1.0, 0.0], [3.0, 4.0]]))
        tensor([2., 0.])
    """
    return nnf.mse_loss(output, label, reduction="none").reshape(len(output), -1).mean(1)


def takes_logits(loss: Any) -> bool:
    """Return whether a loss is known to take logits."""
    return is_one(loss, (*_OF_LOGITS, cross_entropy, binary_cross_entropy))


def is_one(loss: Any, kinds: tuple[Any, ...]) -> bool:
    """Return whether a loss is one of some functions, or of some classes, perhaps with fixed arguments."""
    if isinstance(loss, partial):
        return is_one(loss.func, kinds)
    return any(isinstance(loss, kind) if isinstance(kind, type) else loss is kind for kind in kinds)

"""Modules that end in a sigmoid or softmax, under a classifier that takes what they give for logits."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkdl.exceptions import ConfigError, SparkdlWarning
from sparkdl.nn.batch import Inputs, call, tensors_of
from sparkdl.nn.losses import is_one, takes_logits

_OF_PROBABILITIES = (nn.BCELoss, functional.binary_cross_entropy)
_MAKE = ("SigmoidBackward", "SoftmaxBackward")
_KEEP = (
    *("View", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Permute"),
    *("Alias", "Clone", "ToCopy", "Clamp"),
)


def check_logits(module: nn.Module, inputs: Inputs, loss: Any) -> None:
    """Check that a classifier's module gives logits."""
    name = type(module).__name__
    if is_one(loss, _OF_PROBABILITIES):
        raise ConfigError(
            f"loss: {_name(loss)} takes probabilities, and a classifier's model takes what {name} gives for "
            "logits: it would apply the sigmoid again. Leave the sigmoid out of the module and give "
            "loss=torch.nn.BCEWithLogitsLoss(), the same loss of a logit"
        )
    made = _made_by(module, inputs)
    if not made:
        return
    again = f"{name} ends in a {made}, and a classifier's model takes what it gives for logits"
    remedy = f"Leave the {made} out of the module, with CrossEntropyLoss or BCEWithLogitsLoss"
    if loss is None or takes_logits(loss):
        loss_too = "" if loss is None else f", as {_name(loss)} does"
        warnings.warn(
            SparkdlWarning(f"{again}{loss_too}: the {made} is applied twice. {remedy}", "model-output"),
            stacklevel=6,
        )
        return
    raise ConfigError(
        f"module: {again}, but the loss is {_name(loss)}: if it takes probabilities, the model would apply "
        f"the {made} again. {remedy}; or give TorchEstimator, whose model gives outputs as they are"
    )


def _made_by(module: nn.Module, inputs: Inputs) -> str:
    """Return what makes a module's output probabilities; empty if that cannot be seen."""
    training = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        with torch.enable_grad():
            tensors = tensors_of(call(module, inputs))
    except Exception:
        return ""  # whoever trains it says why
    finally:
        for layer, mode in training:
            layer.training = mode
    return _last(tensors[0]) if len(tensors) == 1 else ""


def _last(output: Tensor) -> str:
    node: Any = output.grad_fn
    while node is not None:
        kind = type(node).__name__
        if kind.startswith(_MAKE):
            return kind.partition("Backward")[0].lower()
        before = [parent for parent, _ in node.next_functions if parent is not None]
        if not kind.removeprefix("Unsafe").startswith(_KEEP) or len(before) != 1:
            return ""
        node = before[0]
    return ""


def _name(loss: Any) -> str:
    loss = loss.func if isinstance(loss, partial) else loss
    return str(getattr(loss, "__name__", type(loss).__name__))

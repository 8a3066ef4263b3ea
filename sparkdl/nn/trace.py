"""Finding the layer that fails: the error a user needs instead of a shape mismatch in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sparkdl.exceptions import ModelError
from sparkdl.hf.sampling import numbered
from sparkdl.nn.batch import Inputs, tensors_of
from sparkdl.nn.batch import call as call_module
from sparkdl.wire.frame import Array


def infer(module: nn.Module, inputs: Inputs, numbers: Array | None = None) -> Any:
    """Return what a module gives for some rows, without gradients: the forward pass of every prediction.

    Samples follow from the rows' ``numbers``, which are counted from 0 by default.
    """
    with torch.inference_mode(), numbered(numbers):
        try:
            return call_module(module, inputs)
        except Exception as error:
            otherwise = ("the module", "look at its forward method")
            raise explain_failure(module, inputs, call_module, error, otherwise) from error


def explain_failure(
    module: nn.Module,
    inputs: Any,
    call: Callable[[nn.Module, Any], Any],
    error: Exception,
    otherwise: tuple[str, str] | None = None,
) -> ModelError:
    """Run a failed forward pass again and say in which layer, on which shapes, it fails.

    ``otherwise`` says what failed if no layer did, and what to look at; the loss by default.
    """
    stack: list[tuple[str, nn.Module, str]] = []
    ids: list[int | None] = []  # of each layer entered: which input it got as floating-point ids
    given = tensors_of(inputs)
    handles = []
    for name, layer in module.named_modules():

        def enter(layer: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            stack.append((name, layer, describe(args if not kwargs else (*args, kwargs))))
            ids.append(_floating_ids(layer, (*args, *kwargs.values()), given))

        def leave(layer: nn.Module, args: Any, output: Any) -> None:
            stack.pop()
            ids.pop()

        handles.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(layer.register_forward_hook(leave))
    try:
        with torch.random.fork_rng(devices=[]):
            call(module, inputs)
    except Exception:
        pass  # expected: the stack now ends at the failing layer
    finally:
        for handle in handles:
            handle.remove()
    cause = f"{type(error).__name__}: {error}"
    if not stack:
        culprit, check = otherwise or (
            "the loss",
            f"The module ran on inputs {describe(inputs)}; "
            "check that its output and the label have the shapes and dtypes that the loss expects",
        )
        return ModelError(f"{culprit} failed: {cause}. {check}", code="model-input")
    name, layer, found = stack[-1]
    where = f"layer {name!r}, {_summary(layer)}" if name else f"module {_summary(module)}"
    if ids[-1] is not None:
        explained = ModelError(
            f"{where}: got {found}{_expected(layer)}. Columns of doubles, such as those of StringIndexer, "
            "become float32: say that they hold integers, with Column(name, dtype='int64') in a Dataset and "
            "inputTypes=[..., 'int64'] in an estimator, or cast the column to int",
            code="model-input",
        )
        explained.input = ids[-1] if ids[-1] >= 0 else None
        return explained
    return ModelError(f"{where}: got input {found}{_expected(layer)}: {cause}", code="model-input")


def _floating_ids(layer: nn.Module, arguments: Any, inputs: list[torch.Tensor]) -> int | None:
    """Return which of a module's inputs a layer got as ids though it has floating-point numbers."""
    if not isinstance(layer, nn.Embedding | nn.EmbeddingBag) or not arguments:
        return None
    ids = arguments[0]
    if not isinstance(ids, torch.Tensor) or not ids.is_floating_point():
        return None
    memory = ids.untyped_storage().data_ptr()
    same = (n for n, tensor in enumerate(inputs) if tensor.untyped_storage().data_ptr() == memory)
    return next(same, -1)


def describe(value: Any) -> str:
    """Say dtypes and shapes of a tree of tensors."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {describe(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        return describe(value[0]) if len(value) == 1 else f"({', '.join(map(describe, value))})"
    return type(value).__name__


def _summary(layer: nn.Module) -> str:
    extra = layer.extra_repr()
    return f"{type(layer).__name__}({extra})" if extra else type(layer).__name__


def _expected(layer: nn.Module) -> str:
    """Say what input common layers expect."""
    if isinstance(layer, nn.Linear):
        return f", expected float[..., {layer.in_features}]"
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        dims = ", ".join(["*"] * len(layer.kernel_size))
        return f", expected float[rows, {layer.in_channels}, {dims}]"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return f", expected integers from 0 to {layer.num_embeddings - 1}"
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return f", expected float[rows, {layer.num_features}, ...], more than one value per channel"
    return ""

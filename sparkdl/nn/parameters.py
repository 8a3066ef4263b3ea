"""The parameters of a module that are trained: whether they can be, and how they lie in a flat vector."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from sparkdl.exceptions import ModelError
from sparkdl.nn.module_buffers import as_real, is_dense
from sparkdl.wire.layout import ParamLayout, lay_out

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """List the parameters to train; a tied parameter is listed once, under its first name."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def layout_of(
    module: nn.Module,
    group_of: Callable[[nn.Parameter], int] | None = None,
    moving: Container[str] = (),
) -> ParamLayout:
    """Describe how a module's parameters and buffers lie in flat vectors.

    Without ``group_of`` all are in optimizer group 0. ``moving`` names frozen parameters that forward
    changes; they lie among the buffers.
    """
    check_device(module)
    params = trainable(module)
    for name, p in params:
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ModelError(
                f"parameter {name!r} of a lazy module is not initialized yet: "
                "call the module once on a sample batch before training it",
                code="model-parameters",
            )
        if p.layout != torch.strided:
            raise ModelError(
                f"parameter {name!r} has layout {p.layout}; only dense ones can be trained",
                code="model-parameters",
            )
        if p.dtype not in _DTYPES:
            raise ModelError(
                f"parameter {name!r} is {p.dtype}; parameters must be float32 or float64 "
                "(call module.float() before training)",
                code="model-parameters",
            )
    dtypes = {p.dtype: name for name, p in reversed(params)}
    if len(dtypes) > 1:
        found = ", ".join(f"{name!r} is {dtype}" for dtype, name in dtypes.items())
        raise ModelError(
            f"all parameters must have one dtype: {found}; call module.float()", code="model-parameters"
        )
    _reject_overlap(params)
    buffers = [(name, buffer) for name, buffer in module.named_buffers() if is_dense(buffer)]
    for name, b in buffers:
        if isinstance(b, nn.parameter.UninitializedBuffer):
            raise ModelError(
                f"buffer {name!r} of a lazy module is not initialized yet: "
                "call the module once on a sample batch before training it",
                code="model-parameters",
            )
    buffers += [(n, p) for n, p in module.named_parameters() if n in moving and not p.requires_grad]
    floating = [(n, as_real(b)) for n, b in buffers if b.is_floating_point() or b.is_complex()]
    integers = [(n, b) for n, b in buffers if not (b.is_floating_point() or b.is_complex())]
    group = group_of or (lambda _: 0)
    return ParamLayout(
        params=lay_out([(name, tuple(p.shape), group(p)) for name, p in params]),
        buffers=lay_out([(n, tuple(b.shape), 0) for n, b in floating]),
        counters=lay_out([(n, tuple(b.shape), 0) for n, b in integers]),
        dtype=_DTYPES[params[0][1].dtype] if params else _of_frozen(module),
    )


def _of_frozen(module: nn.Module) -> str:
    """Return the dtype of a module's vectors if nothing of it is trained."""
    return next((_DTYPES[p.dtype] for p in module.parameters() if p.dtype in _DTYPES), "float32")


def moving_with_buffers(layout: ParamLayout, module: nn.Module, moving: Collection[str]) -> ParamLayout:
    """Return a layout in which frozen parameters that forward changes lie among the buffers."""
    if not moving:
        return layout
    known = {spec.name for spec in (*layout.buffers, *layout.counters)}
    found = layout_of(module, moving={*moving, *known})
    return replace(layout, buffers=found.buffers, counters=found.counters)


def nothing_to_train(module: nn.Module) -> ModelError:
    """Return the error that no parameter of a module is to be trained."""
    return ModelError(
        f"{type(module).__name__} has no parameter with requires_grad=True: there is nothing to train",
        code="model-parameters",
    )


def check_device(module: nn.Module) -> None:
    """Check that all parameters and buffers have values."""
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        name = next((name for name, tensor in tensors if tensor.is_meta), None)
        if name is not None:
            raise ModelError(
                f"{kind} {name!r} of {type(module).__name__} is on the meta device: it has a shape but no "
                "values. Build the module outside of torch.device('meta'), or call "
                "module.to_empty(device='cpu') and load or initialize its weights",
                code="model-parameters",
            )


def _reject_overlap(params: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Refuse distinct parameters that share memory: flattening would silently untie them."""
    ranges: list[tuple[int, int, str]] = []
    for name, p in params:
        if p.numel() == 0:
            continue
        if any(stride == 0 and size > 1 for stride, size in zip(p.stride(), p.shape, strict=True)):
            raise ModelError(
                f"elements of parameter {name!r} share memory (it is an expanded tensor); make it a "
                "Parameter of the tensor before expand() and expand it in forward",
                code="model-parameters",
            )
        ranges.append((*_range(p), name))
    ranges.sort()
    for (_, end, owner), (start, _, name) in pairwise(ranges):
        if start < end:
            raise ModelError(
                f"parameters {owner!r} and {name!r} are different Parameter objects that share "
                "memory; tie them by assigning the same Parameter object to both",
                code="model-parameters",
            )


def refuse_aliases(module: nn.Module) -> None:
    """Refuse buffers and attributes in the memory of trained parameters: tasks would have copies of them."""
    params = trainable(module)
    ranges = sorted((*_range(p), name) for name, p in params if p.numel())
    starts, trained = [start for start, *_ in ranges], {id(p) for _, p in params}
    for prefix, layer in module.named_modules():
        own = {n: t for n, t in vars(layer).items() if isinstance(t, torch.Tensor) and id(t) not in trained}
        for name, tensor in {**own, **layer._buffers}.items():
            if tensor is None or not is_dense(tensor) or not tensor.numel():
                continue
            if f"{name}_orig" in layer._parameters:
                continue  # spectral_norm, which computes it before each forward pass
            start, end = _range(tensor)
            last = bisect_left(starts, end) - 1
            if last >= 0 and ranges[last][1] > start:
                path, owner = f"{prefix}.{name}" if prefix else name, ranges[last][2]
                raise ModelError(
                    f"{path!r} of {type(module).__name__} lies in the memory of parameter {owner!r}: tasks "
                    "have copies of both, so that it would keep its values while the parameter is trained. "
                    "Take it from the parameter in forward, with .detach() if no gradient is to flow",
                    code="model-parameters",
                )


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses between which a tensor's elements lie."""
    last = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def tables_of(module: nn.Module, *, sparse: bool) -> list[int]:
    """Return the trainable parameters, by index, that are weights of embeddings with such gradients."""
    kind = {
        id(layer.weight): bool(layer.sparse)
        for layer in module.modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    }
    return [index for index, (_, p) in enumerate(trainable(module)) if kind.get(id(p)) is sparse]

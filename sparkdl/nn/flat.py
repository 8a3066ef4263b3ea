"""A module whose trainable parameters, gradients and buffers lie in flat vectors.

Loading weights into the module is one copy, and its gradient is one vector without a gather: the
module's parameters and their ``.grad`` are views into the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparkdl.exceptions import ModelError
from sparkdl.frame import Array
from sparkdl.layout import ParamLayout, TensorSpec, lay_out

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """List the parameters to train; a tied parameter is listed once, under its first name."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def layout_of(module: nn.Module, group_of: Callable[[nn.Parameter], int] | None = None) -> ParamLayout:
    """Describe how a module's parameters and buffers lie in flat vectors.

    Args:
        module: any module with at least one trainable parameter.
        group_of: optimizer group of a parameter; all in group 0 by default.

    Raises:
        ModelError: if there is nothing to train, or a parameter cannot be flattened.
    """
    params = trainable(module)
    if not params:
        raise ModelError(
            f"{type(module).__name__} has no parameter with requires_grad=True: there is nothing to train"
        )
    for name, p in params:
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ModelError(
                f"parameter {name!r} of a lazy module is not initialized yet: "
                "call the module once on a sample batch before training it"
            )
        if p.layout != torch.strided:
            raise ModelError(f"parameter {name!r} has layout {p.layout}; only dense ones can be trained")
        if p.dtype not in _DTYPES:
            raise ModelError(
                f"parameter {name!r} is {p.dtype}; parameters must be float32 or float64 "
                "(call module.float() before training)"
            )
    dtypes = {p.dtype: name for name, p in reversed(params)}
    if len(dtypes) > 1:
        found = ", ".join(f"{name!r} is {dtype}" for dtype, name in dtypes.items())
        raise ModelError(f"all parameters must have one dtype: {found}; call module.float()")
    _reject_overlap(params)
    buffers = list(module.named_buffers())
    for name, b in buffers:
        if isinstance(b, nn.parameter.UninitializedBuffer):
            raise ModelError(
                f"buffer {name!r} of a lazy module is not initialized yet: "
                "call the module once on a sample batch before training it"
            )
    floating = [(n, _as_real(b)) for n, b in buffers if b.is_floating_point() or b.is_complex()]
    integers = [(n, b) for n, b in buffers if not (b.is_floating_point() or b.is_complex())]
    group = group_of or (lambda _: 0)
    return ParamLayout(
        params=lay_out([(name, tuple(p.shape), group(p)) for name, p in params]),
        buffers=lay_out([(n, tuple(b.shape), 0) for n, b in floating]),
        counters=lay_out([(n, tuple(b.shape), 0) for n, b in integers]),
        dtype=_DTYPES[params[0][1].dtype],
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
                "Parameter of the tensor before expand() and expand it in forward"
            )
        last = sum(stride * (size - 1) for stride, size in zip(p.stride(), p.shape, strict=True))
        ranges.append((p.data_ptr(), p.data_ptr() + (last + 1) * p.element_size(), name))
    ranges.sort()
    for (_, end, owner), (start, _, name) in pairwise(ranges):
        if start < end:
            raise ModelError(
                f"parameters {owner!r} and {name!r} are different Parameter objects that share "
                "memory; tie them by assigning the same Parameter object to both"
            )


def _as_real(buffer: torch.Tensor) -> torch.Tensor:
    """View a complex buffer as its real and imaginary parts."""
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer


def _writable_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's buffers by name, expanded ones replaced by buffers with own memory."""
    for layer in module.modules():
        for name, buffer in layer._buffers.items():
            if buffer is not None and 0 in buffer.stride():
                layer._buffers[name] = buffer.clone(memory_format=torch.contiguous_format)
    return {name: _as_real(buffer) for name, buffer in module.named_buffers()}


class FlatModule:
    """A module together with its flat vectors.

    Attributes:
        module: the module; its parameters are views of ``params``.
        layout: what lies where.
        params: trainable parameters, shape (layout.numel,).
        grad: their gradients, same shape; ``backward`` accumulates into it.
        used: per parameter, whether the last backward passes reached it.
    """

    def __init__(self, module: nn.Module, layout: ParamLayout | None = None) -> None:
        self.module = module
        self.layout = layout or layout_of(module)
        dtype = getattr(torch, self.layout.dtype)
        self._tensors = [p for _, p in trainable(module)]
        self.params = torch.empty(self.layout.numel, dtype=dtype)
        self.grad = torch.zeros(self.layout.numel, dtype=dtype)
        self.used: NDArray[np.bool_] = np.zeros(len(self._tensors), np.bool_)
        for index, (spec, p) in enumerate(zip(self.layout.params, self._tensors, strict=True)):
            view = self.params[spec.offset : spec.end].view(spec.shape)
            view.copy_(p.detach())
            p.data = view
            p.grad = self.grad[spec.offset : spec.end].view(spec.shape)
            p.register_post_accumulate_grad_hook(self._marker(index))  # type: ignore[no-untyped-call]
        named = _writable_buffers(module)
        self._buffers = [named[spec.name] for spec in self.layout.buffers]
        doubles = any(buffer.dtype == torch.float64 for buffer in self._buffers)
        self._buffer_dtype = "float64" if doubles else self.layout.dtype
        self._counters = [named[spec.name] for spec in self.layout.counters]

    def _marker(self, index: int) -> Callable[[torch.Tensor], None]:
        def mark(_: torch.Tensor) -> None:
            self.used[index] = True

        return mark

    def zero_grad(self) -> None:
        """Clear gradients and the record of which parameters were reached."""
        self.grad.zero_()
        self.used[:] = False

    def load(self, params: Array, buffers: Array, counters: Array) -> None:
        """Copy weights and buffers in; the arrays may be read-only."""
        np.copyto(self.params.numpy(), params)
        with torch.no_grad():
            _scatter(self._buffers, self.layout.buffers, buffers)
            _scatter(self._counters, self.layout.counters, counters)

    def buffers(self) -> Array:
        """Return a copy of the floating-point buffers as one vector."""
        return _gather(self._buffers, self._buffer_dtype)

    def counters(self) -> Array:
        """Return a copy of the integer and boolean buffers as one int64 vector."""
        return _gather(self._counters, "int64")


def _gather(tensors: Sequence[torch.Tensor], dtype: str) -> Array:
    if not tensors:
        return np.empty(0, dtype)
    kind = getattr(torch, dtype)
    return torch.cat([t.detach().reshape(-1).to(kind) for t in tensors]).numpy()


def _scatter(tensors: Sequence[torch.Tensor], specs: Sequence[TensorSpec], flat: Array) -> None:
    for tensor, spec in zip(tensors, specs, strict=True):
        values = np.array(flat[spec.offset : spec.end])  # a copy: torch wants writable memory
        tensor.copy_(torch.from_numpy(values).view(spec.shape))


def write_back(
    module: nn.Module, layout: ParamLayout, params: Array, buffers: Array, counters: Array
) -> None:
    """Copy flat vectors into a module's own, separate parameters and buffers."""
    named = _writable_buffers(module)
    with torch.no_grad():
        _scatter([p for _, p in trainable(module)], layout.params, params)
        _scatter([named[spec.name] for spec in layout.buffers], layout.buffers, buffers)
        _scatter([named[spec.name] for spec in layout.counters], layout.counters, counters)

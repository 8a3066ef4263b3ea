"""Buffers, and frozen parameters that forward changes, as a flat vector; sparse ones must not change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl.exceptions import ModelError
from sparkdl.wire.frame import Array
from sparkdl.wire.layout import TensorPlace


def as_real(buffer: torch.Tensor) -> torch.Tensor:
    """View a complex buffer as its real and imaginary parts."""
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer


def writable_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's buffers by name, expanded ones replaced by buffers with own memory.

    Sparse ones are left out, see :class:`SparseBuffers`.
    """
    for layer in module.modules():
        for name, buffer in layer._buffers.items():
            if buffer is not None and is_dense(buffer) and 0 in buffer.stride():
                layer._buffers[name] = buffer.clone(memory_format=torch.contiguous_format)
    return {name: as_real(buffer) for name, buffer in module.named_buffers() if is_dense(buffer)}


def is_dense(buffer: torch.Tensor) -> bool:
    """Return whether a buffer has an element in memory for each of its values."""
    return buffer.layout == torch.strided


class SparseBuffers:
    """Sparse buffers of a module, such as adjacency matrices: they travel with it and must not change."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        sparse = [(name, buffer) for name, buffer in module.named_buffers() if not is_dense(buffer)]
        self._known = {name: (buffer, buffer._version) for name, buffer in sparse}

    def check(self) -> None:
        """Check that forward has not changed one."""
        if not self._known:
            return
        now = dict(self._module.named_buffers())
        for name, (buffer, version) in self._known.items():
            if now.get(name) is not buffer or buffer._version != version:
                raise ModelError(
                    f"the forward pass changed buffer {name!r}, which is sparse ({buffer.layout}): "
                    "only dense buffers are kept from step to step. Register it as a dense tensor, or keep "
                    "its values in a dense buffer and build the sparse tensor in forward",
                    code="model-output",
                )


def carried(module: nn.Module, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return the tensors with these names that travel as buffers do: buffers, and frozen parameters."""
    buffers, parameters = writable_buffers(module), dict(module.named_parameters())
    return {name: buffers[name] if name in buffers else as_real(parameters[name]) for name in names}


class BufferVector:
    """Buffers of a module, and frozen parameters among them, read and written as one vector."""

    def __init__(
        self, module: nn.Module, specs: Sequence[TensorPlace], dtype: torch.dtype, device: torch.device
    ) -> None:
        owners: dict[str, tuple[dict[str, Any], str]] = {
            f"{prefix}.{name}" if prefix else name: (tensors, name)
            for prefix, layer in module.named_modules()
            for tensors in (layer._parameters, layer._buffers)
            for name in tensors
        }
        self._names = [spec.name for spec in specs]
        self._owners = [owners[name] for name in self._names]
        self._known: list[Any] = [owner[name] for owner, name in self._owners]
        self._stage = torch.empty(specs[-1].end if specs else 0, dtype=dtype, device=device)
        self._views = [self._stage[spec.offset : spec.end].view(spec.shape) for spec in specs]
        own = zip(map(as_real, self._known), self._views, strict=True)
        self._tensors = [buffer if buffer.shape == view.shape else view for buffer, view in own]

    def _current(self) -> list[torch.Tensor]:
        """Return the buffers, also those that the module assigned anew."""
        for index, (owner, name) in enumerate(self._owners):
            now, known = owner.get(name), self._known[index]
            # One of another size is a cache that grew, and nothing that could be averaged.
            if now is None or now.shape != known.shape:
                continue
            if not torch.can_cast(now.dtype, known.dtype):
                raise ModelError(
                    f"the forward pass makes buffer {self._names[index]!r}, {known.dtype} when the fit "
                    f"began, {now.dtype}: its values would be cut to the former from step to step. Register "
                    f"it as {now.dtype}",
                    code="model-output",
                )
            # The view of a complex tensor's parts is of the memory that it had.
            if now is not known or known.is_complex():
                self._known[index] = now
                self._tensors[index] = as_real(now)
        return self._tensors

    def load(self, flat: Array) -> None:
        """Copy a vector into the buffers."""
        if not self._views:
            return
        if self._stage.device.type == "cpu":
            np.copyto(self._stage.numpy(), flat)
        else:
            self._stage.copy_(torch.from_numpy(np.array(flat)))  # a copy: torch wants writable memory
        with torch.no_grad():
            torch._foreach_copy_(self._current(), self._views)

    def read(self) -> Array:
        """Return a copy of the buffers as a vector."""
        if self._views:
            with torch.no_grad():
                torch._foreach_copy_(self._views, self._current())
        return np.array(self._stage.cpu().numpy())

"""Changes by a forward pass beside gradients and buffers: parameters, and attributes of Python objects.

Frozen parameters that change travel as buffers do. Everything else is found here, to be refused by name: it
would be in one process of one executor alone, so results would depend on how iterations form jobs.
"""

from __future__ import annotations

import marshal
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparkdl.exceptions import ModelError
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.module_buffers import as_real

_OF_MODULES = {*vars(nn.Module()), "forward", "_sparkdl_epoch"} - {"training"}
"""What is registered, and what this library sets."""
_GENERATORS = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
_SCALARS = (int, float, complex, bool, str, bytes, type(None))
_MOST = 50_000  # so many values are looked at; that is some tens of milliseconds


class ChangeWatch:
    """Tells what has changed in a module, its loss and other objects since it was made.

    It is made before the module's first forward pass. With ``trained`` it looks at the values of parameters,
    without, at writes through the parameters themselves.
    """

    def __init__(self, replica: FlatModule, others: Sequence[object], *, trained: bool = False) -> None:
        self._module, self._others = replica.module, others
        known = {spec.name for spec in (*replica.layout.buffers, *replica.layout.counters)}
        own = {spec.name for spec in replica.layout.params}
        named = dict(replica.module.named_parameters())
        self._trained = {name: p for name, p in named.items() if name in own}
        self._fixed = {name: p for name, p in named.items() if name not in own | known}
        self._carried = {s.name: s.shape for s in (*replica.layout.buffers, *replica.layout.counters)}
        self._values = trained
        self._before = self._tensors()
        self._attributes = {path: mark for path, mark, _ in self._walk()}

    def _tensors(self) -> dict[str, Any]:
        both = {**self._trained, **self._fixed}
        return {name: _written(p, values=self._values) for name, p in both.items()}

    def tensors(self) -> tuple[list[str], list[str]]:
        """Return the names of trained parameters, and of frozen ones, that were written to."""
        now = self._tensors()
        changed = [name for name, mark in self._before.items() if now[name] != mark]
        return [n for n in changed if n in self._trained], [n for n in changed if n in self._fixed]

    def attributes(self) -> list[str]:
        """Return the names of attributes that have other values, or were not there."""
        return [path for path, mark, _ in self._walk() if self._attributes.get(path, _NONE) != mark]

    def accept(self) -> None:
        """Take attributes as they are now for unchanged."""
        self._attributes = {path: mark for path, mark, _ in self._walk()}

    def untrained(self) -> list[str]:
        """Return the names of parameters with a gradient that are the loss's or step's alone."""
        own = {id(p) for p in self._module.parameters()}
        return [
            path
            for path, mark, tensor in self._walk()
            if mark[0] == "tensor" and isinstance(tensor, nn.Parameter) and id(tensor) not in own
            if tensor.grad is not None
        ]

    def _walk(self) -> Iterator[Found]:
        seen: set[int] = set()
        seen.update(map(id, self._module.modules()))
        for prefix, layer in self._module.named_modules():
            place = f"{prefix}." if prefix else ""
            for name, value in list(vars(layer).items()):
                if name not in _OF_MODULES:
                    yield from _look(value, f"{place}{name}", seen)
            for name, buffer in layer._buffers.items():  # None at first, or of another size now
                shape = None if buffer is None else tuple(as_real(buffer).shape)
                if shape is None or shape != self._carried.get(f"{place}{name}"):
                    yield from _look(buffer, f"{place}{name}", seen)
            for name, value in _named_in(getattr(type(layer), "forward", None)):
                if isinstance(value, _GENERATORS):
                    yield from _look(value, f"{place}forward.{name}", seen)
        for other in self._others:
            yield from _look(other, getattr(other, "__name__", type(other).__name__), seen)


_NONE = (None, None)
Found = tuple[str, Any, Any]
"""Name, mark, and the tensor if it is one."""


@dataclass(frozen=True, slots=True)
class Result:
    """Loss and gradient of a batch, as a forward pass and a backward pass gave them."""

    loss: float
    gradient: NDArray[Any]

    def same_as(self, other: Result) -> bool:
        """Return whether both are equal, up to the rounding of sums in another order."""
        scale = max(abs(self.gradient).max(initial=0.0), abs(other.gradient).max(initial=0.0))
        return bool(
            np.isclose(self.loss, other.loss, rtol=_ROUNDING, atol=1e-12, equal_nan=True)
            and np.allclose(self.gradient, other.gradient, rtol=0.0, atol=_ROUNDING * scale, equal_nan=True)
        )


_ROUNDING = 1e-5


def _written(tensor: torch.Tensor, *, values: bool = True) -> tuple[Any, ...]:
    """Return what differs after something has written to a tensor, or put other memory behind it."""
    return (tensor._version, tensor.data_ptr(), _content(tensor) if values else None)


def _content(tensor: torch.Tensor) -> bytes:
    """Return sums of the bytes: 64 of them, so that rows that change places count."""
    try:
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
    except (RuntimeError, NotImplementedError):  # sparse, quantized: what is written counts
        return b""
    whole = len(raw) // 512 * 512
    with np.errstate(over="ignore"):
        sums = raw[:whole].view(np.uint64).reshape(-1, 64).sum(0, dtype=np.uint64)
    return bytes(sums.tobytes() + raw[whole:].tobytes())


def _look(value: Any, path: str, seen: set[int]) -> Iterator[Found]:
    """Yield what is found of a value and of all that it consists of."""
    kind = type(value)
    if kind in _SCALARS:
        yield path, (kind, repr(value) if value != value else value), None  # NaN
        return
    if id(value) in seen or len(seen) > _MOST:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        # A tensor that forward makes anew lies elsewhere each time; its values tell.
        yield path, ("tensor", tuple(value.shape), _content(value)), value
    elif isinstance(value, np.ndarray):
        found = value.tobytes() if value.dtype != object else len(value)
        yield path, ("array", value.shape, found), None
    elif isinstance(value, nn.Module):
        tensors = {**dict(value.named_parameters(recurse=False)), **dict(value.named_buffers(recurse=False))}
        parts = {**tensors, **dict(value.named_children())}
        parts |= {name: part for name, part in vars(value).items() if name not in _OF_MODULES}
        for name, part in parts.items():
            yield from _look(part, f"{path}.{name}", seen)
    elif isinstance(value, torch.Generator):
        yield path, ("generator", _content(value.get_state())), None
    elif isinstance(value, np.random.Generator):
        yield path, ("generator", repr(value.bit_generator.state)), None
    elif isinstance(value, np.random.RandomState | random.Random):
        state = value.get_state() if isinstance(value, np.random.RandomState) else value.getstate()
        yield path, ("generator", repr(state)), None
    elif isinstance(value, Mapping | Sequence | Set):
        yield from _look_inside(value, path, seen)
    elif isinstance(value, FunctionType):
        for name, named in _named_in(value):
            yield from _look(named, f"{path}.{name}", seen)
    elif isinstance(value, MethodType):
        yield from _look(value.__self__, path, seen)
    elif isinstance(value, partial):
        for part in (value.func, value.args, value.keywords):
            yield from _look(part, path, seen)
    elif not isinstance(value, type | ModuleType | BuiltinFunctionType) and hasattr(value, "__dict__"):
        for name, part in list(vars(value).items()):
            yield from _look(part, f"{path}.{name}", seen)


def _named_in(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function's code names: what it encloses, and globals that hold values."""
    if not isinstance(function, FunctionType):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not set yet
            yield name, cell.cell_contents
    for name in function.__code__.co_names:
        named: Any = function.__globals__.get(name)
        if type(named) in _SCALARS or isinstance(named, list | dict | set | torch.Tensor | _GENERATORS):
            yield name, named


def _look_inside(value: Any, path: str, seen: set[int]) -> Iterator[Found]:
    try:
        yield path, ("values", hash(marshal.dumps(value, 2))), None  # numbers and strings, at C's speed
    except ValueError:
        yield path, ("length", len(value)), None
        if isinstance(value, Mapping):
            for key, part in list(value.items()):
                yield from _look(part, f"{path}[{key!r}]" if type(key) in _SCALARS else path, seen)
        elif not isinstance(value, Set):
            for index, part in enumerate(value):
                yield from _look(part, f"{path}[{index}]", seen)


def refuse_trained(names: Sequence[str]) -> None:
    """Refuse a forward pass that writes to trained parameters."""
    if names:
        raise ModelError(
            f"forward writes to {_some(names)}, which the optimizer trains: each process would have weights "
            "of its own. Compute the values that are used from the parameter (in forward, or by "
            "torch.nn.utils.parametrize), as for weights of a bounded norm; leave max_norm of embeddings out",
            code="model-state",
        )


def refuse_moving(names: Sequence[str]) -> None:
    """Refuse frozen parameters that forward begins to change after the first iteration."""
    if names:
        raise ModelError(
            f"forward has begun to change {_some(names)}, which the first forward pass left alone. A frozen "
            "parameter travels between processes if each forward pass changes it: change it from the first "
            "one on (by an average of weight zero until it counts), or make it a buffer",
            code="model-state",
        )


def refuse_untrained(names: Sequence[str]) -> None:
    """Refuse parameters outside of the module that get a gradient."""
    if names:
        raise ModelError(
            f"{_some(names)} of the loss or step has a gradient and is no parameter of the module, so it "
            "would not be trained. To train it, make the loss a part of the module and give step=, such as "
            "lambda module, batch: module.loss(module.net(batch.inputs), batch.label); otherwise freeze "
            "it by requires_grad_(False)",
            code="model-state",
        )


def refuse_attributes(names: Sequence[str]) -> None:
    """Refuse a forward pass whose result depends on attributes that it changes."""
    raise ModelError(
        f"forward changes {_some(names)}, and the loss or its gradient depends on that. Python attributes, "
        "and buffers that are None or of another size at first, stay in one process of one executor. "
        "Register tensors by register_buffer (a counter as torch.tensor(0), changed in place), which travel "
        "with the weights; take random numbers from torch's global generator; a step gets batch.iteration "
        "and batch.epoch",
        code="model-state",
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

"""Digests of values, equal in all processes: by which choices, losses and options are compared.

Plain values count by themselves, functions and classes by their qualified names, tensors and arrays by their
content, other objects by their class and the state that a pickle of them would have. A lambda, a function
within a function and what holds one have none, for nothing of them outlasts a process.
"""

from __future__ import annotations

import enum
import hashlib
import pickle
import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparkdl.nn.embedding import IDENTITY
from sparkdl.saved.weights import flat_bytes

_LONGEST = 100
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_BUILT_IN = ("builtins", "torch", "numpy", "math")
_NAMED = (FunctionType, BuiltinFunctionType, np.ufunc, type)


class _NoDigestError(Exception):
    """A value has nothing that outlasts its process."""


def stable_digest(value: Any) -> str | None:
    """Return a digest that equal values have in all processes; ``None`` if there is none."""
    try:
        return _Digest().of(value).hex()[:32]
    except (_NoDigestError, RecursionError):
        return None


def label_of(value: Any) -> str:
    """Return a short text for a value, without what differs between processes."""
    if isinstance(value, _NAMED):
        name = value.__name__ if isinstance(value, BuiltinFunctionType) else None
        name = name or getattr(value, "__qualname__", value.__name__)
        return str(name).rpartition("<locals>.")[2][:_LONGEST]
    if isinstance(value, partial):
        arguments = [*map(label_of, value.args), *(f"{k}={label_of(v)}" for k, v in value.keywords.items())]
        return f"{label_of(value.func)}({', '.join(arguments)})"[:_LONGEST]
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(label_of, value)))}}}"[:_LONGEST]
    text = " ".join(_ADDRESS.sub("", repr(value)).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def class_and_digest(value: Any) -> str:
    """Return the name of an object's class, with its digest if it has one."""
    return f"{type(value).__name__} {stable_digest(value) or ''}".rstrip()


class _Digest:
    """Digests of one value's parts. Each object is looked at once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, Any]] = {}  # with the object, so that its id stays its own
        self._open: dict[int, int] = {}

    def of(self, value: Any) -> bytes:
        """Return the digest of a value."""
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            return _hashed(type(value).__name__.encode(), repr(value).encode())
        key = id(value)
        if key in self._known:
            return self._known[key][0]
        if key in self._open:  # it holds itself
            return _hashed(b"above", str(len(self._open) - self._open[key]).encode())
        self._open[key] = len(self._open)
        found = _hashed(*self._parts(value))
        del self._open[key]
        self._known[key] = found, value
        return found

    def _parts(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, _NAMED):
            yield from (b"name", _name(value).encode())
        elif isinstance(value, ModuleType):
            yield from (b"module", value.__name__.encode())
        elif isinstance(value, MethodType):
            yield from (b"method", value.__name__.encode(), self.of(value.__self__))
        elif isinstance(value, partial):
            yield from (b"partial", self.of(value.func), self.of(value.args))
            for name in sorted(value.keywords):
                yield from (self.of(name), self.of(value.keywords[name]))
        elif isinstance(value, enum.Enum):
            yield from (b"enum", _name(type(value)).encode(), value.name.encode())
        elif isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format | np.dtype):
            yield from (b"torch", str(value).encode())
        elif isinstance(value, Tensor):
            yield from self._tensor(value)
        elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            array = np.ascontiguousarray(value)
            yield from (b"array", array.dtype.str.encode(), str(np.shape(value)).encode(), array.tobytes())
        elif type(value) in (tuple, list, torch.Size):
            yield from (type(value).__name__.encode(), *map(self.of, value))
        elif type(value) in (set, frozenset):
            yield from (b"set", *sorted(map(self.of, value)))
        elif type(value) is dict:
            yield b"dict"
            for name, each in value.items():
                yield from (self.of(name), self.of(each))
        else:
            yield from self._object(value)

    def _tensor(self, value: Tensor) -> Iterator[bytes]:
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise _NoDigestError
        kind = f"{value.dtype} {tuple(value.shape)} {value.requires_grad}"
        yield from (b"tensor", kind.encode(), flat_bytes(value).numpy().tobytes())

    def _object(self, value: Any) -> Iterator[bytes]:
        """Yield the class, and what a pickle would have."""
        try:
            reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:
            raise _NoDigestError from None
        yield b"object"
        yield _name(type(value)).encode()
        if isinstance(reduced, str):
            yield reduced.encode()
            return
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        if isinstance(state, dict):  # of which run a module is does not change what it does
            state = {name: each for name, each in state.items() if name != IDENTITY}
        for part in (make, arguments, state):
            yield self.of(part)
        yield self.of(list(items or ()))
        yield self.of([tuple(pair) for pair in pairs or ()])


def _name(value: Any) -> str:
    """Return the name by which a function or class is found in all processes."""
    qualified, own = getattr(value, "__qualname__", value.__name__), getattr(value, "__module__", None)
    modules = [own] if isinstance(own, str) else _BUILT_IN
    places = [(module, name) for module in modules for name in (qualified, value.__name__)]
    for module, name in places:
        try:
            found: Any = sys.modules.get(module) or import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError):
            continue
        if found is value:
            return f"{module}.{name}"
    raise _NoDigestError


def _hashed(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()

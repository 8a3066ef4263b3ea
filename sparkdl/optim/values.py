"""Values that optimizers keep, as JSON and arrays: tensors, numbers, and lists and dicts of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from sparkdl.wire.frame import Array

_SCALARS = (bool, int, float, str, type(None))
_VIEWED = {"bfloat16": torch.int16, "complex64": torch.float32, "complex128": torch.float64}
"""Dtypes that frames and files do not know, and those that they travel as."""


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of numbers, which numpy can hold once it is on the host."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and value.device.type != "meta"
        and not value.is_quantized
    )


def is_plain(value: Any) -> bool:
    """Whether :func:`to_json` can lay a value out."""
    try:
        to_json(value, lambda _: "")
    except TypeError:
        return False
    return True


def is_direct(value: Any) -> bool:
    """Whether a tensor is an array as it is."""
    return is_tensor(value) and str(value.dtype).removeprefix("torch.") not in _VIEWED


def to_json(value: Any, add: Callable[[Array], str]) -> Any:
    """Return a value as JSON; plain numbers and strings stay, others become a dict of one entry.

    ``add`` takes an array, and returns its name.
    """
    if isinstance(value, np.generic):
        return to_json(value.item(), add)
    if isinstance(value, _SCALARS):
        return value
    if is_tensor(value):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": [add(_viewed(value.detach().cpu(), dtype).numpy()), dtype]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": add(value)}
    if type(value) is list:
        return {"list": [to_json(item, add) for item in value]}
    if type(value) in (tuple, torch.Size):
        return {"tuple": [to_json(item, add) for item in value]}
    if type(value) is deque:
        return {"deque": [value.maxlen, [to_json(item, add) for item in value]]}
    if type(value) is dict and all(isinstance(key, _SCALARS) for key in value):
        return {"dict": [[key, to_json(item, add)] for key, item in value.items()]}
    raise TypeError(type(value).__name__)


def from_json(value: Any, tensor_of: Callable[[str], torch.Tensor]) -> Any:
    """Read what :func:`to_json` has returned."""
    if not isinstance(value, Mapping):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        name, dtype = held
        return _restored(tensor_of(name), dtype)
    if kind == "array":
        return tensor_of(held).numpy()
    if kind == "dict":
        return {key: from_json(item, tensor_of) for key, item in held}
    if kind == "deque":
        return deque((from_json(item, tensor_of) for item in held[1]), held[0])
    items = [from_json(item, tensor_of) for item in held]
    return tuple(items) if kind == "tuple" else items


def _viewed(value: torch.Tensor, dtype: str) -> torch.Tensor:
    if dtype.startswith("complex"):
        return torch.view_as_real(value.resolve_conj())
    return value.view(_VIEWED[dtype]) if dtype in _VIEWED else value


def _restored(value: torch.Tensor, dtype: str) -> torch.Tensor:
    if dtype.startswith("complex"):
        return torch.view_as_complex(value)
    return value.view(getattr(torch, dtype)) if dtype in _VIEWED else value

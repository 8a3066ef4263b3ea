"""Values as JSON can hold them, and back.

What JSON lacks is an object with one marked key::

    {"$tuple": [3, 3]}          {"$float": "inf"}        {"$dtype": "float16"}
    {"$tensor": [1.0, 2.0], "dtype": "float32"}          at most 4,096 elements
    {"$dict": [[1, "a"]]}       keys that are no strings, or start with $

Other marks belong to the caller: those of :mod:`sparkdl.saved.source` stand for code.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl.exceptions import ConfigError, SparkdlError

_MOST_ELEMENTS = 4096
_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}

Writer = Callable[[Any, str], Any]
Reader = Callable[[dict[str, Any]], Any]


def write(value: Any, what: str, other: Writer) -> Any:
    """Return a value as JSON values; ``other`` writes values of types beside those of JSON.

    Those are numbers, strings, ``None``, lists, tuples, dicts, and dtypes and small tensors. ``what`` is its
    name in errors.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        plain = int(value) if isinstance(value, int) else float(value)
        return plain if math.isfinite(plain) else {"$float": str(plain)}
    if isinstance(value, tuple) and type(value) in (tuple, torch.Size):
        return {"$tuple": [write(item, f"{what}[{i}]", other) for i, item in enumerate(value)]}
    if type(value) is list:
        return [write(item, f"{what}[{i}]", other) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return _write_mapping(value, what, other)
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        return _write_tensor(value, what, other)
    try:
        return other(value, what)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error


def read(value: Any, readers: Mapping[str, Reader]) -> Any:
    """Return the value from which :func:`write` made this."""
    if isinstance(value, list):
        return [read(item, readers) for item in value]
    if not isinstance(value, dict):
        return value
    mark = next((key for key in value if key.startswith("$")), None)
    if mark is None:
        return {key: read(item, readers) for key, item in value.items()}
    try:
        if mark in readers:
            return readers[mark](value)
        return _read_marked(mark, value, readers)
    except SparkdlError:
        raise
    except Exception as error:
        raise ConfigError(f"{reprlib.repr(value):.200} cannot be read: {error!r:.300}") from error


def _read_marked(mark: str, value: dict[str, Any], readers: Mapping[str, Reader]) -> Any:
    held = value[mark]
    if mark == "$float":
        return float(held)
    if mark == "$tuple":
        return tuple(read(item, readers) for item in held)
    if mark == "$dict":
        return {read(key, readers): read(item, readers) for key, item in held}
    if mark == "$dtype":
        return _dtype(held)
    if mark == "$tensor":
        return torch.tensor(read(held, readers), dtype=_dtype(value["dtype"]), device="cpu")
    raise ConfigError(f"{mark!r} is not known here: the value was written by a newer sparkdl")


def _write_mapping(value: Mapping[Any, Any], what: str, other: Writer) -> Any:
    pairs = [(key, write(item, f"{what}[{key!r}]", other)) for key, item in value.items()]
    if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
        return dict(pairs)
    return {"$dict": [[write(key, f"{what}: key {key!r}", other), item] for key, item in pairs]}


def _write_tensor(value: torch.Tensor, what: str, other: Writer) -> Any:
    if value.numel() > _MOST_ELEMENTS:
        raise ConfigError(
            f"{what} is a tensor of {value.numel()} elements, at most {_MOST_ELEMENTS} are written: make it "
            "a buffer of the module"
        )
    if value.dtype in (torch.bfloat16, torch.float16) or value.is_complex() or value.is_sparse:
        raise ConfigError(f"{what} is a {value.dtype} tensor, which cannot be written; make it float32")
    items = write(value.detach().cpu().tolist(), what, other)
    return {"$tensor": items, "dtype": str(value.dtype).removeprefix("torch.")}


def _dtype(name: Any) -> torch.dtype:
    if not isinstance(name, str) or name not in _DTYPES:
        raise ConfigError(f"{name!r} is not a dtype of torch")
    return _DTYPES[name]

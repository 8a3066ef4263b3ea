"""Compares a rebuilt module with the described one."""

from __future__ import annotations

import math
import types
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from sparkdl.hf import rebuilt
from sparkdl.hf.outputs import is_model
from sparkdl.nn.embedding import IDENTITY
from sparkdl.saved.weights import all_tensors

_OWN_VALUES = frozenset({"_parameters", "_buffers", "_modules", "training", IDENTITY})


def difference(module: nn.Module, twin: nn.Module) -> str | None:
    """Return the first difference of two modules, or ``None``; values of tensors do not count."""
    own, other = dict(module.named_modules()), dict(twin.named_modules())
    if own.keys() != other.keys() or any(type(part) is not type(other[n]) for n, part in own.items()):
        return "it builds other submodules from its arguments"
    if layout_of(module) != layout_of(twin):
        return "it builds other parameters or buffers from its arguments"
    inside = _inside_models(own)
    for name, part in own.items():
        if is_model(part) and name not in inside and rebuilt.describe(part) != rebuilt.describe(other[name]):
            return "its configuration builds another model"
        for key in vars(part).keys() | vars(other[name]).keys():
            mine, theirs = vars(part).get(key), vars(other[name]).get(key)
            if key in _OWN_VALUES or ((is_model(part) or name in inside) and not _is_setting(key, mine)):
                continue
            if key.endswith("_hooks") or "_hooks_" in key:
                alike = len(mine or ()) == len(theirs or ())
            else:
                alike = same(mine, theirs)
            if not alike:
                return f"attribute {'.'.join(filter(None, (name, key)))} is not what it is built with"
        for key in part._non_persistent_buffers_set:
            if not same(part._buffers[key], other[name]._buffers[key]):
                return f"buffer {key} is not saved and was changed"
    return None


def _inside_models(parts: Mapping[str, nn.Module]) -> set[str]:
    """Return the names of parts of models of Hugging Face, whose configuration says how they are built."""
    models = [name for name, part in parts.items() if is_model(part)]
    return {
        part
        for part in parts
        for name in models
        if part != name and (not name or part.startswith(f"{name}."))
    }


def _is_setting(key: str, value: Any) -> bool:
    """Tell whether an attribute of such a part counts; the others are its library's notes."""
    return not key.startswith("_") and key != "name_or_path" and isinstance(value, bool | int | float | str)


def unsaved_tensors(module: nn.Module) -> bool:
    """Tell whether a module has tensors that are not in its state_dict."""
    plain = any(isinstance(value, torch.Tensor) for value in vars(module).values())
    return plain or bool(module._non_persistent_buffers_set)


def layout_of(module: nn.Module) -> list[tuple[str, int, torch.Size]]:
    """Return name, identity and shape of the module's parameters and buffers."""
    seen: dict[int, int] = {}
    found = []
    for name, tensor in all_tensors(module):
        number = seen.setdefault(id(tensor), len(seen))
        shape = torch.Size() if is_lazy(tensor) else tensor.shape
        found.append((name, number, shape))
    return found


def same(mine: Any, theirs: Any, depth: int = 8) -> bool:
    """Return whether two attributes are the same, apart from parameter values; in doubt they are not."""
    if mine is theirs:
        return True
    if type(mine) is not type(theirs) or depth == 0:
        return False
    if isinstance(mine, nn.Parameter):  # held in a list as well; compared as a parameter elsewhere
        return bool(mine.shape == theirs.shape)
    if isinstance(mine, torch.Tensor):
        return not theirs.is_meta and torch.equal(mine, theirs)
    if isinstance(mine, weakref.ref):
        return same(mine(), theirs(), depth - 1)
    if isinstance(mine, np.ndarray):
        return bool(np.array_equal(mine, theirs))
    if isinstance(mine, float):
        return mine == theirs or (math.isnan(mine) and math.isnan(theirs))
    if isinstance(mine, Mapping):
        return mine.keys() == theirs.keys() and all(same(v, theirs[k], depth - 1) for k, v in mine.items())
    if isinstance(mine, list | tuple):
        pairs = zip(mine, theirs, strict=False)
        return len(mine) == len(theirs) and all(same(a, b, depth - 1) for a, b in pairs)
    if isinstance(mine, partial):
        return same((mine.func, mine.args, mine.keywords), (theirs.func, theirs.args, theirs.keywords))
    if isinstance(mine, types.FunctionType):
        cells = [tuple(c.cell_contents for c in f.__closure__ or ()) for f in (mine, theirs)]
        bound = same(cells[0], cells[1], depth - 1) and mine.__defaults__ == theirs.__defaults__
        return mine.__code__ is theirs.__code__ and bound
    if isinstance(mine, types.MethodType):  # methods of the modules that are being compared
        return mine.__func__ is theirs.__func__ and isinstance(mine.__self__, nn.Module)
    equality: Any = type(mine).__eq__
    if hasattr(mine, "__dict__") and equality is object.__eq__:
        return same(vars(mine), vars(theirs), depth - 1)
    return bool(mine == theirs)

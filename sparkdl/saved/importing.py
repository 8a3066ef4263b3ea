"""Classes and functions by their import path, and paths of classes and functions."""

from __future__ import annotations

import inspect
import types
import typing
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from sparkdl.exceptions import ConfigError
from sparkdl.saved.allowlist import LISTED, NAMES
from sparkdl.saved.moved import current
from sparkdl.saved.trust import Trust, split

_CLASSES = (nn.Module, torch.optim.Optimizer, LRScheduler)


def find(path: str, trust: Trust | None = None) -> Any:
    """Import a class or function by its path, as in ``"torch.nn.modules.linear:Linear"``.

    ``trust`` says what may be imported for a path from a file; ``None`` if the caller gives it. Raises
    ConfigError if it does not admit the path, which is then not imported; if nothing is there; if it is not
    listed, and neither the class of a module, optimizer or schedule, nor a function whose return annotation
    is one or a tensor.
    """
    split(path)  # checks that it is one
    path = current(path)
    module, names = split(path)
    if trust is not None:
        trust.check(path)
    target = _import(path, module, names)
    if path in LISTED:
        return target
    if not _is_kind(target):
        raise ConfigError(
            f"{path} may not be named in a saved model: expected the class of a module, optimizer or "
            "schedule, or a function whose return annotation is one (def make(...) -> nn.Module) or a "
            "tensor (def loss(output: Tensor, label: Tensor) -> Tensor)"
        )
    if trust is not None:  # a trusted module may have imported it from one that is not
        trust.check(f"{target.__module__}:{target.__qualname__}")
    return target


def path_of(target: Any) -> str:
    """Return ``"package.module:name"`` of a class or function that can be imported again."""
    if not isinstance(target, type) and inspect.isbuiltin(target) and (found := _of_torch(target)):
        return found
    module = getattr(target, "__module__", None)
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    if not callable(target) or not isinstance(name, str):
        raise ConfigError(f"{target!r:.100} has no import path: expected a class or a function")
    remedy = "move it to the top level of a file that can be imported"
    if module in (None, "__main__"):
        raise ConfigError(f"{name} is defined in {module or 'no module'} and cannot be imported: {remedy}")
    if "<" in name:
        raise ConfigError(f"{module}:{name} is a lambda or defined inside of a function: {remedy}")
    path = f"{module}:{name}"
    if find(path) is not target:
        raise ConfigError(f"{path} is not what {target!r:.100} is: {remedy}, under its own name")
    return path


def _of_torch(target: Any) -> str | None:
    """Return the path of a listed function that is written in C, whose own names lead nowhere."""
    for module in ("torch.nn.functional", "torch"):
        for name in NAMES[module]:
            if getattr(import_module(module), name, None) is target:
                return f"{module}:{name}"
    return None


def _import(path: str, module: str, names: list[str]) -> Any:
    try:
        target: Any = import_module(module)
        for depth, name in enumerate(names):
            if depth and not isinstance(target, type):  # a way through other modules leads anywhere
                raise AttributeError(f"{'.'.join(names[:depth])} is no class")
            target = inspect.getattr_static(target, name)
    except (Exception, SystemExit) as error:  # the module's own code runs
        raise ConfigError(
            f"{path} cannot be imported ({error}): install its package, or put its folder on PYTHONPATH"
        ) from error
    return target


def _is_kind(target: Any) -> bool:
    """Tell whether it is, or returns, a part of models. This is no protection: trust is."""
    if isinstance(target, type):
        return issubclass(target, _CLASSES)
    if not isinstance(target, types.FunctionType):
        return False
    annotations = types.SimpleNamespace(__annotations__={"return": target.__annotations__.get("return")})
    try:
        result = typing.get_type_hints(annotations, globalns=target.__globals__)["return"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return False
    result = typing.get_origin(result) or result
    return isinstance(result, type) and issubclass(result, (*_CLASSES, torch.Tensor))

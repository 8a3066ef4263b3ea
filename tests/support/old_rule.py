"""What the rule before the allowlist let a saved model name; prints one path per line.

Run in a process of its own, for it imports modules by the thousand: ``python old_rule.py fast|all``. With
``fast`` it looks at the modules that torch, torchmetrics and numpy import by themselves, and at the standard
library.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import pkgutil
import sys
import types
import typing
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
import torch
import torchmetrics
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

CLASSES = (nn.Module, torch.optim.Optimizer, LRScheduler)
FAST = ("torch.fx.graph_module", "torch.hub", "torchmetrics.functional.text.bert", "torch.utils.data")
PROGRAMS = {"antigravity", "this", "idlelib", "turtledemo", "lib2to3", "test"}


def admitted(target: Any) -> bool:
    if isinstance(target, type):
        return issubclass(target, CLASSES)
    if getattr(target, "__module__", None) == "torch._C._nn":
        return True
    if not isinstance(target, types.FunctionType):
        return False
    annotations = types.SimpleNamespace(__annotations__={"return": target.__annotations__.get("return")})
    try:
        result = typing.get_type_hints(annotations, globalns=target.__globals__)["return"]
    except Exception:
        return False
    result = typing.get_origin(result) or result
    return isinstance(result, type) and issubclass(result, (*CLASSES, torch.Tensor))


def modules(everything: bool) -> Iterator[types.ModuleType]:
    roots = ("torch", "torchmetrics", "numpy")
    names = set(FAST) | {name for name in sys.modules if name.split(".")[0] in roots}
    if everything:
        for root in (torch, torchmetrics, numpy):
            names |= {
                found.name
                for found in pkgutil.walk_packages(root.__path__, root.__name__ + ".", lambda _: None)
            }
    names |= {name for name in sys.stdlib_module_names if name not in PROGRAMS}
    for name in sorted(names):
        if name.endswith("__main__") or ".test" in name or "_test" in name:
            continue
        with contextlib.suppress(BaseException):
            yield importlib.import_module(name)


def members(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(module).items()):
        yield name, value
        if inspect.isclass(value) and value.__module__ == module.__name__:
            for inner, found in vars(value).items():
                yield f"{name}.{inner}", found


def main() -> None:
    warnings.simplefilter("ignore")
    out = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()):
        for module in modules(sys.argv[1] == "all"):
            for name, value in members(module):
                with contextlib.suppress(Exception):
                    if admitted(value):
                        out.write(f"{module.__name__}:{name}\n")
    print(out.getvalue(), end="")


if __name__ == "__main__":
    main()

"""Shipping modules, losses and other user objects to the executors.

cloudpickle ships classes and functions that the executors cannot import (defined in a notebook
cell, in ``__main__`` or as a lambda) by value and everything else by name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from sparkdl.code import pickling
from sparkdl.exceptions import SerializationError


def dumps(obj: Any, what: str) -> bytes:
    """Pickle ``obj`` for the executors."""
    try:
        return pickling.dumps(obj, _Pickler)
    except Exception as error:
        path, culprit = _find_culprit(obj, what)
        raise SerializationError(
            f"{what} cannot be shipped to the executors: {path} is a {type(culprit).__name__}, "
            f"which cannot be pickled ({error}). Create it where it is used (for example in "
            "forward), or leave it out by defining __getstate__."
        ) from error


def loads(data: bytes) -> Any:
    """Unpickle the bytes of :func:`dumps`. Only for bytes that this application itself shipped.

    Raises SerializationError if this process has other code of the user's than the one that pickled.
    """
    return pickling.loads(data)


def dumps_module(module: nn.Module) -> bytes:
    """Write a module as :func:`torch.save` does, with the code that :func:`dumps` tells of.

    Raises SerializationError naming the attribute that cannot be pickled.
    """
    file = io.BytesIO()
    try:
        torch.save(module, file, pickle_module=_FOR_TORCH)
    except Exception:  # it also refuses tensors that see the same memory as numbers of different types
        return dumps(module, "the module")
    return file.getvalue()


def loads_module(data: bytes) -> nn.Module:
    """Read the bytes of :func:`dumps_module`; errors as of :func:`loads`."""
    return _load_module(io.BytesIO(data)) if can_map(data) else loads(data)


def map_module(path: Path) -> nn.Module:
    """Return a module of :func:`dumps_module` in a file's memory, shared by processes until one writes there.

    :func:`can_map` says whether that is possible.
    """
    return _load_module(str(path), mmap=True)


def can_map(data: bytes) -> bool:
    """Return whether bytes of :func:`dumps_module` have the tensors apart."""
    return data.startswith(_ZIP)


def _load_module(source: Any, **options: Any) -> nn.Module:
    # It was made by this application. Tensors of a driver's GPU come to whatever the task has.
    module: nn.Module = torch.load(
        source, map_location="cpu", pickle_module=_FOR_TORCH, weights_only=False, **options
    )
    return module


class _Pickler(pickling.Pickler):
    """Pickles what torch leaves out or refuses: hooks of parameters, and parametrized modules."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is made again."""
        if isinstance(obj, nn.Parameter):
            hooks = {name: dict(found) for name in _HOOKS if (found := getattr(obj, name, None))}
            if hooks:
                make, arguments = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[:2]  # type: ignore[no-untyped-call]
                # As state, which is pickled after the parameter: a hook may refer to it.
                return make, arguments, hooks, None, None, _set_hooks
        elif isinstance(obj, nn.Module) and parametrize.is_parametrized(obj):
            names = [*obj.parametrizations]  # type: ignore[misc]
            return _parametrized, (type(obj).__bases__[0], names), vars(obj), None, None, _set_state
        return super().reducer_override(obj)


_ZIP = b"PK"
_FOR_TORCH = SimpleNamespace(__name__=__name__, Pickler=_Pickler, Unpickler=pickling.Unpickler)

_HOOKS = {
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}
"""Where a tensor has hooks, and how they are registered."""


def _set_hooks(parameter: Any, hooks: Mapping[str, Mapping[int, Any]]) -> None:
    for name, found in hooks.items():
        for hook in found.values():
            getattr(parameter, _HOOKS[name])(hook)


def _parametrized(base: type[nn.Module], names: list[str]) -> nn.Module:
    """Return an empty module of the class that torch makes for a parametrized one."""
    module = base.__new__(base)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    return module


def _set_state(module: nn.Module, state: Mapping[str, Any]) -> None:
    module.__setstate__(dict(state))  # type: ignore[no-untyped-call]


def _picklable(obj: Any) -> bool:
    try:
        _Pickler(io.BytesIO()).dump(obj)
    except Exception:
        return False
    return True


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, nn.Module):
        yield from ((f".{name}", child) for name, child in obj.named_children())
    if isinstance(obj, dict):
        yield from ((f"[{name!r}]", value) for name, value in obj.items())
    elif isinstance(obj, list | tuple | set):
        yield from ((f"[{index}]", value) for index, value in enumerate(obj))
    elif isinstance(obj, partial):
        yield ".func", obj.func
        yield from ((f".args[{index}]", value) for index, value in enumerate(obj.args))
        yield from ((f".keywords[{name!r}]", value) for name, value in obj.keywords.items())
    elif isinstance(obj, MethodType):
        yield ".__self__", obj.__self__
    elif callable(obj) and getattr(obj, "__closure__", None):
        names = obj.__code__.co_freevars
        for name, cell in zip(names, obj.__closure__, strict=True):
            yield f".<closure>.{name}", cell.cell_contents
    elif hasattr(obj, "__dict__"):
        yield from ((f".{name}", value) for name, value in vars(obj).items())


def _find_culprit(obj: Any, path: str) -> tuple[str, Any]:
    """Descend to the innermost attribute that cannot be pickled."""
    seen: set[int] = set()
    while True:
        seen.add(id(obj))
        for suffix, child in _children(obj):
            if id(child) not in seen and not _picklable(child):
                obj, path = child, path + suffix
                break
        else:
            return path, obj

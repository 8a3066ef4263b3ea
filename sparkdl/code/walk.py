"""A walk through the user's functions and classes, from those that are named to all that they use."""

from __future__ import annotations

import enum
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from sparkdl.code import digest

Names = tuple[str, str]
"""A module, and the name of something in it."""

_SCALARS = (int, float, complex, bool, str, bytes, type(None), type(...))
_MOST = 2_000  # so many elements of a value are looked at; of a tensor a hundred times as many


class Walk:
    """Follows names from function to function, through modules of the user, which ``is_users`` tells by name.

    ``code`` is the digest of functions and classes, by module and name; ``values`` that of what functions
    read: constants, objects, and which function a name stands for; ``modules`` are those that these are of.
    """

    def __init__(self, is_users: Callable[[str], bool]) -> None:
        self.code: dict[str, str] = {}
        self.values: dict[str, str] = {}
        self.modules: set[str] = set()
        self._is_users = is_users
        self._seen: dict[int, Any] = {}
        self._left = 0

    def follow(self, names: Iterable[Names]) -> None:
        """Follow what loaded modules have under names, of which the parts are separated by dots."""
        for module, name in names:
            value: Any = sys.modules.get(module)
            own = {} if value is None else vars(value)
            for part in name.split("."):
                value = getattr(value, part, None)
            self._reach(value)
            if name in own and not isinstance(own[name], type | FunctionType | ModuleType):
                self._value(module, name, own[name])

    def in_scope(self, function: FunctionType) -> list[tuple[str, str, Any]]:
        """Return module, name and value of what a function reads from modules of the user that it can see."""
        used, names = digest.names_in(function.__code__), function.__globals__
        package = str(names.get("__package__") or "")
        found: list[tuple[str, str, Any]] = []
        waiting = [names.get(name) for name in used] + list(_closure(function).values())
        waiting = [value for value in waiting if isinstance(value, ModuleType)]
        for name in used:  # import within the function
            parent = package
            while parent:
                waiting.append(sys.modules.get(f"{parent}.{name}"))
                parent = parent.rpartition(".")[0]
            waiting.append(sys.modules.get(name))
        seen: set[str] = set()
        while waiting:
            module = waiting.pop()
            if module is None or module.__name__ in seen or not self._is_users(module.__name__):
                continue
            seen.add(module.__name__)
            own = vars(module)
            for name in used & own.keys():
                if isinstance(own[name], ModuleType):
                    waiting.append(own[name])
                elif not name.startswith("__"):
                    found.append((module.__name__, name, own[name]))
        return found

    # -- functions and classes ------------------------------------------------------------------

    def _reach(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        if isinstance(value, FunctionType):
            self._seen[id(value)] = value
            self._function(value)
        elif isinstance(value, type):
            self._seen[id(value)] = value
            if self._is_users(value.__module__):
                self._class(value)
        else:
            for part in _parts(value):
                self._reach(part)

    def _add(self, module: str, name: str, found: str) -> None:
        self.modules.add(module)
        key = f"{module}:{name}"
        before = self.code.get(key)
        # Of several functions of one name, such as lambdas, all count, in any order.
        self.code[key] = found if before is None else "+".join(sorted({*before.split("+"), found}))

    def _function(self, function: FunctionType) -> None:
        home, name = str(function.__globals__.get("__name__")), function.__qualname__
        if self._is_users(home):
            self._add(home, name, digest.of_code(function.__code__))
            self._globals(function, home)
        elif self._is_users(str(function.__module__)):  # a library's, around one of the user's
            home = str(function.__module__)
            self._add(home, name, "wrapped")
        else:
            home = ""
        code = function.__code__
        arguments = code.co_varnames[: code.co_argcount]
        defaults = dict(zip(arguments[::-1], (function.__defaults__ or ())[::-1], strict=False))
        for argument, value in (defaults | (function.__kwdefaults__ or {})).items():
            self._value(home, f"{name}({argument})", value)
        for variable, value in _closure(function).items():
            self._value(home, f"{name}[{variable}]", value)
        if "__wrapped__" in vars(function):
            self._reach(vars(function)["__wrapped__"])

    def _globals(self, function: FunctionType, home: str) -> None:
        names = function.__globals__
        for name in digest.names_in(function.__code__) & names.keys():
            if not name.startswith("__") and not isinstance(names[name], ModuleType):
                self._value(home, name, names[name])
        for module, name, value in self.in_scope(function):
            self._value(module, name, value)

    def _class(self, cls: type) -> None:
        module, qualname = cls.__module__, cls.__qualname__
        if issubclass(cls, enum.Enum):
            self._note(module, qualname, ("enum", [(part.name, part.value) for part in cls]))
        methods = []
        for name, value in list(vars(cls).items()):
            parts = [value] if isinstance(value, FunctionType) else _parts(value)
            if parts and not isinstance(value, partial):
                for part in parts:
                    methods.append(f"{name} {_name(part)}")
                    self._reach(part)
            elif not (name.startswith("_") and name.endswith("_")) and not name.startswith("_abc_"):
                self._value(module, f"{qualname}.{name}", value)
        self._add(module, qualname, digest.text(" ".join(sorted(methods)).encode()))
        self._note(module, f"{qualname}()", [_name(base) for base in cls.__bases__])
        for base in cls.__bases__:
            self._reach(base)

    # -- values -----------------------------------------------------------------------------------

    def _note(self, module: str, name: str, value: Any) -> None:
        shown = repr(value)
        self.modules.add(module)
        self.values[f"{module}:{name}"] = shown if len(shown) <= 60 else digest.text(shown.encode())

    def _value(self, module: str, name: str, value: Any) -> None:
        if module and f"{module}:{name}" in self.values:
            return
        self._left = _MOST
        found = self._content(value, set())
        if module:
            self._note(module, name, found)

    def _content(self, value: Any, path: set[int]) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        self._left -= 1
        if isinstance(value, type | FunctionType | BuiltinFunctionType | MethodType) or _parts(value):
            self._reach(value)
            if not isinstance(value, partial):
                return f"-> {_name(value)}"
        if id(value) in path or self._left < 0:
            return "..."
        path = path | {id(value)}
        if isinstance(value, partial):
            return [self._content(part, path) for part in (value.func, value.args, value.keywords)]
        if isinstance(value, enum.Enum):
            self._reach(kind)
            return str(value)
        if isinstance(value, dict | MappingProxyType):
            pairs = [(self._content(k, path), self._content(v, path)) for k, v in self._some(value.items())]
            return (_name(kind), len(value), pairs)
        if isinstance(value, set | frozenset):
            return (_name(kind), len(value), sorted(repr(self._content(p, path)) for p in self._some(value)))
        if isinstance(value, list | tuple | deque):
            return (_name(kind), len(value), [self._content(p, path) for p in self._some(value)])
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(value, torch.Tensor):
            return _array(value.detach())
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            return _array(value)
        if isinstance(value, range) or (torch is not None and isinstance(value, torch.dtype | torch.device)):
            return str(value)
        if isinstance(value, ModuleType):
            return f"-> {value.__name__}"
        layer = torch is not None and isinstance(value, torch.nn.Module)
        if layer or self._is_users(kind.__module__):
            self._reach(kind)
            parts = getattr(value, "__dict__", {})
            return (
                _name(kind),
                {name: self._content(part, path) for name, part in self._some(parts.items())},
            )
        return _name(kind)

    def _some(self, values: Iterable[Any]) -> list[Any]:
        found = list(islice(values, max(0, self._left)))
        self._left -= len(found)
        return found


def _closure(function: FunctionType) -> dict[str, Any]:
    found = {}
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[variable] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found


def _parts(value: Any) -> list[Any]:
    """Return the functions that a descriptor, a method or a wrapper consists of."""
    if isinstance(value, staticmethod | classmethod | MethodType):
        return [value.__func__]
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    if isinstance(value, cached_property | partial):
        return [value.func]
    wrapped = getattr(value, "__dict__", {}).get("__wrapped__") if not isinstance(value, type) else None
    return [] if wrapped is None else [wrapped]


def _name(value: Any) -> str:
    value = value.__func__ if isinstance(value, MethodType) else value
    code = getattr(value, "__code__", None)
    if isinstance(value, FunctionType) and isinstance(code, CodeType):
        return f"{value.__globals__.get('__name__')}.{code.co_qualname}"
    kind = type(value)
    return (
        f"{getattr(value, '__module__', kind.__module__)}.{getattr(value, '__qualname__', kind.__qualname__)}"
    )


def _array(value: Any) -> Any:
    try:
        array = value.cpu().numpy() if hasattr(value, "cpu") else value
        flat = array.reshape(-1)
        some = flat if flat.size <= 100 * _MOST else flat[:: flat.size // (100 * _MOST)]
        return (str(value.dtype), tuple(value.shape), digest.text(some.tobytes()))
    except Exception:  # sparse, on another device, of objects: what nobody can read is left out
        return str(getattr(value, "dtype", ""))

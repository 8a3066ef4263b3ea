"""Modules of the user: those that are no library, and no part of Python or of sparkdl."""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import ModuleType
from typing import Any
from zipimport import zipimporter

_LIBRARIES = frozenset({"sparkdl", "pyspark", "py4j", "cloudpickle", "__main__", "__mp_main__"})
_PLAIN = (SourceFileLoader, SourcelessFileLoader, zipimporter)
_PYTHON = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)}
)

Stamp = tuple[int, int] | None
"""Time and size of a file; ``None`` if there is none."""


def spec_of(name: str) -> Any:
    """Return the spec of a loaded module, which is another one after each reload; ``None`` if it has none."""
    return getattr(sys.modules.get(name), "__spec__", None)


def is_users(name: str) -> bool:
    """Return whether a module is loaded from a source file outside of libraries."""
    spec = spec_of(name)
    known = _users.get(name)
    if known is None or known[0] is not spec:
        known = _users[name] = spec, name.partition(".")[0] not in _LIBRARIES and _is_outside(spec)
    return known[1]


_users: dict[str, tuple[Any, bool]] = {}


def _is_outside(spec: Any) -> bool:
    origin = getattr(spec, "origin", None)
    if not isinstance(origin, str) or not origin.endswith(".py"):
        return False
    parts = origin.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    return not os.path.realpath(origin).startswith(_PYTHON)


def is_plain(name: str) -> bool:
    """Return whether a module was loaded as its file says: pytest, for example, rewrites assert."""
    return type(getattr(spec_of(name), "loader", None)) in _PLAIN


def file_of(name: str) -> str:
    """Return where a loaded module comes from; empty if nobody knows."""
    return str(getattr(spec_of(name), "origin", None) or "")


def stamp_of(name: str) -> Stamp:
    """Return the stamp of a loaded module's file as it is now."""
    archive = getattr(getattr(spec_of(name), "loader", None), "archive", None)
    try:
        found = os.stat(archive or file_of(name))
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def is_edited(name: str) -> bool:
    """Return whether a module's file has changed since this process first looked at the loaded module."""
    spec, stamp = spec_of(name), stamp_of(name)
    known = _first.get(name)
    if known is None or known[0] is not spec:
        known = _first[name] = spec, stamp
    return known[1] != stamp


_first: dict[str, tuple[Any, Stamp]] = {}


def drop(names: set[str]) -> dict[str, ModuleType]:
    """Forget modules and those of the user that hold something of them, so that they are imported anew."""
    users = {name: module for name, module in list(sys.modules.items()) if is_users(name) or name in names}
    going: set[str] = set()
    found = names & users.keys()
    while found - going:
        going |= found
        packages = tuple(f"{name}." for name in going)
        found = {
            name
            for name, module in users.items()
            if name.startswith(packages) or any(_comes_from(value, going) for value in vars(module).values())
        }
    dropped = {name: sys.modules.pop(name) for name in going}
    for name, module in dropped.items():
        parent, _, own = name.rpartition(".")
        if vars(sys.modules.get(parent, module)).get(own) is module:
            delattr(sys.modules[parent], own)
    return dropped


def _comes_from(value: Any, names: set[str]) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", None)
    own = getattr(value, "__module__", None) if isinstance(value, type) or callable(value) else None
    return home in names or own in names

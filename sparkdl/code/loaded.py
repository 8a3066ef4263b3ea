"""The user's code that a pickle names, as a process has loaded it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from sparkdl.code.walk import Walk

Names = tuple[str, str]
"""A module, and the name of something in it."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module on the driver."""

    file: str  # its file
    plain: bool  # whether it was loaded as the file says
    edited: bool  # whether the file has changed since


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCode:
    """The user's code that a pickle names, as its process has it."""

    process: str
    dialect: str  # what compiled code depends on beside its source
    names: list[Names]  # what the pickle names
    code: dict[str, str]  # digest of functions and classes, by module and name
    values: dict[str, str]  # what they read, likewise
    modules: dict[str, Module]  # by name


def walked(names: list[Names], is_users: Callable[[str], bool]) -> Walk:
    """Follow names through the modules that this process has loaded."""
    walk = Walk(is_users)
    for module, name in names:
        walk.start(module, name)
        found = _simple(module, name)
        if found is not None and not isinstance(found[0], type | FunctionType | ModuleType):
            walk.bound(module, name, found[0])
    return walk


def _simple(module: str, name: str) -> tuple[Any] | None:
    """Return what a loaded module has under a simple name, in a tuple; ``None`` if it has not."""
    space = vars(sys.modules[module]) if module in sys.modules else {}
    return (space[name],) if name in space else None

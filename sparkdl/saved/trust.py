"""The code that a description may name: listed names, and names that the caller trusts.

A file that names code can do harm without a pickle: ``os:system`` with an argument is enough. So a path that
is read from a file is judged as text, before anything is imported: importing a module runs its top level.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sparkdl.exceptions import ConfigError
from sparkdl.saved.allowlist import LISTED
from sparkdl.saved.moved import current

Entry = str | Callable[..., Any]
"""What ``trust=`` takes: ``"package"``, ``"package.module"``, ``"package.module:Class"``, or a class."""

_GUARDED = sys.stdlib_module_names | {"numpy", "pyspark", "sparkdl", "torch", "torchmetrics"}
"""Packages with functions that run or fetch their arguments. Only single names in them can be trusted."""


@dataclass(frozen=True)
class Trust:
    """Names that a description may use beside the listed ones."""

    prefixes: frozenset[str] = frozenset()  # packages, modules, and paths of single classes
    # whether any name is good. For files that hold a pickle, which can do anything anyway.
    everything: bool = False

    @classmethod
    def of(cls, entries: Entry | Iterable[Entry] = (), *, everything: bool = False) -> Trust:
        """Return a trust in the names that the caller gives, commas in a string separating several.

        Raises ConfigError if an entry is none, or is a whole package that nobody should trust with arguments
        from a file, such as ``os``.
        """
        if isinstance(entries, str) or callable(entries):
            entries = [entries]
        prefixes: set[str] = set()
        for entry in entries:
            prefixes.update(_prefixes(entry))
        return cls(frozenset(prefixes), everything)

    def __or__(self, other: Trust) -> Trust:
        """Return a trust in the names of both."""
        return Trust(self.prefixes | other.prefixes, self.everything or other.everything)

    def admits(self, path: str) -> bool:
        """Tell whether a path is listed, or lies in a package, module or class that the caller trusts.

        A prefix counts by whole components: ``my`` does not admit ``mypackage:Net``.
        """
        path = current(path)
        if self.everything or path in LISTED or path in self.prefixes:
            return True
        module, _, _ = path.partition(":")
        parts = module.split(".")
        if "__main__" in parts[1:]:  # a program: importing it runs it
            return False
        return any(".".join(parts[: n + 1]) in self.prefixes for n in range(len(parts)))

    def check(self, path: str) -> None:
        """Check a path that was read from a file. Nothing is imported."""
        module, _ = split(path)
        if self.admits(path):
            return
        root = module.partition(".")[0]
        if root in _GUARDED:
            raise ConfigError(
                f"{path} is not among the classes and functions of {root} that a saved model may name; it "
                "was not imported. Sound models rarely name it: do not load this file unless you know why "
                "it does",
                code="config-trust",
            )
        raise ConfigError(
            f"{path} is code of a package that you have not said you trust; it was not imported. If you "
            f"trust {module} and who wrote the file: load(path, trust=[{module!r}]), or "
            f"read().option('trust', {module!r}).load(path); for pipelines with "
            f"sparkdl.ml.trust({module!r}): PipelineModel.load(path)",
            code="config-trust",
        )


LISTED_ONLY = Trust()
"""Trusts nothing beyond the list."""


def split(path: object) -> tuple[str, list[str]]:
    """Return module and names of an import path such as ``package.module:Class``."""
    if isinstance(path, str):
        module, _, name = path.partition(":")
        names = name.split(".")
        if all(part.isidentifier() for part in (*module.split("."), *names)):
            return module, names
    raise ConfigError(f"{path!r:.200} is not an import path such as 'package.module:Class'")


def _prefixes(entry: Entry) -> Iterable[str]:
    if callable(entry):
        module, name = getattr(entry, "__module__", None), getattr(entry, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str):
            raise ConfigError(f"trust={entry!r:.100}: expected a class, a function, or their package's name")
        return [f"{module}:{name}"]
    if not isinstance(entry, str):
        raise ConfigError(
            f"trust={entry!r:.100}: expected names of packages, such as ['mypackage'], or classes"
        )
    return [_checked(part.strip()) for part in entry.split(",") if part.strip()]


def _checked(prefix: str) -> str:
    module, colon, name = prefix.partition(":")
    parts = [*module.split("."), *(name.split(".") if colon else ())]
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(
            f"trust={prefix!r}: expected a package, a module, or a class, as in 'mypackage', "
            "'mypackage.nets' or 'mypackage.nets:Net'"
        )
    if not colon and parts[0] in _GUARDED:
        raise ConfigError(
            f"trust={prefix!r}: {parts[0]} has functions that run or fetch what a file tells them. Trust the "
            f"one class that you need, as in '{module}:Class'"
        )
    return current(prefix)

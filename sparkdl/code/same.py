"""A worker has the code of the process that pickled something, or an error says what differs."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl.code import digest, modules
from sparkdl.code.walk import Names, Walk
from sparkdl.exceptions import SerializationError

_checked: dict[str, dict[str, Any]] = {}
"""By the code of a pickle, the specs of the modules that have been compared."""
_stamps: dict[str, tuple[Any, modules.Stamp]] = {}
"""By module its spec, and its file when this process loaded it; ``None`` if nobody knows."""
_MOST = 64


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


def with_same_code(loaded: LoadedCode, load: Callable[[], Any]) -> Any:
    """Load something with another process's code; stale modules are imported anew.

    Raises SerializationError naming module and file, if imported anew they still differ.
    """
    key = repr((loaded.names, loaded.code, loaded.values))
    if _checked.get(key) == _specs(loaded):
        return load()
    before = {name for name in loaded.modules if name in sys.modules}
    try:
        found, failure = load(), None
    except (AttributeError, ImportError, TypeError) as error:  # a name that the stale module lacks
        found, failure = None, error
    _note_stamps(loaded, before)
    differing = _differing(loaded)
    stale = {name.partition(":")[0] for name in differing if _may_be_stale(loaded, name)}
    if failure is not None:
        stale |= before
    if stale:
        dropped = modules.drop(stale)
        importlib.invalidate_caches()
        try:
            found, failure = load(), None
        except Exception as error:
            sys.modules.update(dropped)
            if failure is not None or any(name in loaded.code for name in differing):
                error.add_note(
                    f"sparkdl has imported {', '.join(sorted(stale))} anew, for the driver has changed"
                )
                raise
        else:
            _note_stamps(loaded, before - dropped.keys())
            differing = _differing(loaded)
    if failure is not None:
        raise failure
    wrong = [name for name in differing if _is_wrong(loaded, name)]
    if wrong:
        raise _error(loaded, wrong, differing)
    while len(_checked) >= _MOST:
        _checked.pop(next(iter(_checked)))
    _checked[key] = _specs(loaded)
    return found


def _specs(loaded: LoadedCode) -> dict[str, Any]:
    return {name: modules.spec_of(name) for name in loaded.modules}


def _note_stamps(loaded: LoadedCode, before: set[str]) -> None:
    for name in loaded.modules:
        spec = modules.spec_of(name)
        if spec is not None and (name not in _stamps or _stamps[name][0] is not spec):
            _stamps[name] = spec, None if name in before else modules.stamp_of(name)


def _differing(loaded: LoadedCode) -> dict[str, str]:
    """Return what is loaded here and differs, with what is here."""
    walk = Walk(loaded.modules.__contains__)
    walk.follow(loaded.names)
    found = {}
    for theirs, own in ((loaded.code, walk.code), (loaded.values, walk.values)):
        for name, value in theirs.items():
            # What is not reached here follows from what a name stands for, or a class has.
            if own.get(name, value) != value:
                found[name] = own[name]
    return found


def _may_be_stale(loaded: LoadedCode, name: str) -> bool:
    """Return whether a module may be another one if it is imported anew."""
    module = name.partition(":")[0]
    stamp = _stamps.get(module, (None, None))[1]
    return name in loaded.code or stamp is None or stamp != modules.stamp_of(module)


def _is_wrong(loaded: LoadedCode, name: str) -> bool:
    """Return whether a difference means other code, and not another machine, time or state."""
    module = name.partition(":")[0]
    about = loaded.modules[module]
    if not (about.plain and modules.is_plain(module)) or loaded.dialect != digest.dialect():
        return False
    return name in loaded.code or about.edited or _is_literal(name)


def _is_literal(name: str) -> bool:
    """Return whether a file sets a name once, to a number or text, and nothing else sets it."""
    module, _, path = name.partition(":")
    try:
        tree = ast.parse(modules.spec_of(module).loader.get_source(module))
    except Exception:
        return False
    *classes, last = path.split(".")
    body: list[ast.stmt] = tree.body
    for wanted in classes:
        found = [one for one in body if isinstance(one, ast.ClassDef) and one.name == wanted]
        if len(found) != 1:
            return False
        body = found[0].body
    if last.endswith(")") and not last.endswith("()"):
        return _is_literal_default(body, *last[:-1].split("("))
    values = [_assigned(one, last) for one in body]
    set_at = [node for node in ast.walk(tree) if _sets(node, last)]
    (value,) = [one for one in values if one is not None] if sum(map(bool, values)) == 1 else (None,)
    return len(set_at) == 1 and value is not None and _is_plain(value)


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(statement, ast.Assign):
        (first, *more) = statement.targets
        return statement.value if not more and isinstance(first, ast.Name) and first.id == name else None
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.value if statement.target.id == name else None
    return None


def _sets(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Attribute):
        return node.attr == name and not isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Global) and name in node.names


def _is_literal_default(body: list[ast.stmt], function: str, argument: str) -> bool:
    found = [
        one
        for one in body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == function
    ]
    if len(found) != 1:
        return False
    arguments = found[0].args
    named = [*arguments.posonlyargs, *arguments.args]
    defaults: dict[str, ast.expr | None] = {
        one.arg: value for one, value in zip(named[::-1], arguments.defaults[::-1], strict=False)
    }
    defaults |= {
        one.arg: value for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    }
    value = defaults.get(argument)
    return value is not None and _is_plain(value)


def _is_plain(value: ast.expr) -> bool:
    try:
        hash(ast.literal_eval(value))
    except (ValueError, TypeError):
        return False
    return True


def _error(loaded: LoadedCode, wrong: list[str], here: dict[str, str]) -> SerializationError:
    name = wrong[0]
    module, _, path = name.partition(":")
    theirs, own = loaded.values.get(name), here[name]
    what = f"{module}.{path} is other code" if theirs is None else f"{module}.{path} is {own}"
    than = "than on the driver" if theirs is None else f"and on the driver {theirs}"
    more = f" ({len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
    return SerializationError(
        f"{what} in {modules.file_of(module)} on this executor {than}{more}, which loaded "
        f"{loaded.modules[module].file}. If the file was edited, load it on the driver, too: "
        f"importlib.reload({module}) and the modules that import from it, or start again. Values that "
        "the driver sets at run time do not reach executors: pass them as arguments. On a cluster every "
        "machine needs the same file (spark.submit.pyFiles)",
        code="serialization-code",
    )

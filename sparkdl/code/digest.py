"""A digest of compiled code that is the same in all processes: no addresses, lines, files or docstrings."""

from __future__ import annotations

import hashlib
import marshal
import sys
from types import CodeType
from typing import Any

_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x200  # *args, **kwargs, generator, coroutine, asynchronous generator
_HAS_DOCSTRING = 0x4000000

_digests: dict[int, tuple[CodeType, str, frozenset[str]]] = {}
_MOST = 20_000


def dialect() -> str:
    """Return what compiled code depends on beside its source."""
    return f"{sys.implementation.cache_tag} {sys.version_info.micro} {sys.flags.optimize}"


def text(data: bytes) -> str:
    """Return a short name of some bytes."""
    return hashlib.blake2b(data, digest_size=9).hexdigest()


def of_code(code: CodeType) -> str:
    """Return the digest of compiled code."""
    return _known(code)[1]


def names_in(code: CodeType) -> frozenset[str]:
    """Return all names of globals, attributes and modules in compiled code, and in functions inside of it."""
    return _known(code)[2]


def _known(code: CodeType) -> tuple[CodeType, str, frozenset[str]]:
    found = _digests.get(id(code))
    if found is None:
        if len(_digests) >= _MOST:
            _digests.clear()
        inner = [const for const in code.co_consts if isinstance(const, CodeType)]
        names = frozenset(code.co_names).union(*map(names_in, inner))
        found = _digests[id(code)] = code, text(marshal.dumps(_structure(code), 2)), names
    return found


def _structure(code: CodeType) -> tuple[Any, ...]:
    consts = [_const(value) for value in code.co_consts]
    if _has_docstring(code):
        consts[0] = ("doc",)
    return (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags & _FLAGS,
        code.co_code,
        getattr(code, "co_exceptiontable", b""),
        tuple(consts),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
    )


def _has_docstring(code: CodeType) -> bool:
    if sys.version_info >= (3, 13):
        return bool(code.co_flags & _HAS_DOCSTRING)
    # The first constant of a function is its docstring, or None.
    return (
        not code.co_name.startswith("<")
        and bool(code.co_consts)
        and isinstance(code.co_consts[0], str | None)
    )


def _const(value: Any) -> Any:
    if isinstance(value, CodeType):
        return ("code", of_code(value))
    if isinstance(value, tuple):
        return ("tuple", tuple(map(_const, value)))
    if isinstance(value, frozenset):
        return ("set", tuple(sorted(repr(_const(part)) for part in value)))
    return (type(value).__name__, repr(value))

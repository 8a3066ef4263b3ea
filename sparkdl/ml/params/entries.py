"""Params as a table: what a Param is stands in one place, and what else there is of it is derived.

A line of the table is an :class:`ParamEntry` in the body of a mixin; its name, doc, converter and default are
there alone. Accessors, defaults, the signature and the documentation of a constructor are made of it::

    class HasTraining(HasEntries, HasMaxIter):
        maxEpochs = ParamEntry("maxEpochs", "passes over the rows.", whole("maxEpochs", 0, "passes"), 20)
        getMaxEpochs, setMaxEpochs = accessors(maxEpochs)

What a type checker and an editor must know besides, the names and types of a constructor's arguments, are in
:mod:`sparkdl.ml.params.keywords`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

from pyspark.ml.param import Param, Params

T = TypeVar("T")
P = TypeVar("P", bound=Params)
C = TypeVar("C", bound=type[Any])


class ParamEntry(Param[T]):
    """A Param and its default, ``None`` if there is none; ``convert`` raises where a value cannot be."""

    def __init__(self, name: str, doc: str, convert: Callable[[Any], T], default: T | None = None) -> None:
        super().__init__(Params._dummy(), name, doc, typeConverter=convert)
        self.default = default

    @classmethod
    def of(cls, param: Param[T], default: T | None = None) -> ParamEntry[T]:
        """Make an entry of one of Spark's Params, or of another entry, with a default of its own."""
        return cls(param.name, param.doc, param.typeConverter, default)


def entries(of: type[Params]) -> dict[str, ParamEntry[Any]]:
    """Return the table of a class: its entries by name."""
    found = ((name, getattr(of, name, None)) for name in dir(of))
    return {name: entry for name, entry in found if isinstance(entry, ParamEntry)}


class HasEntries(Params):
    """Mixin that sets the defaults of entries. It goes before Spark's own mixins, whose defaults give way."""

    def __init__(self) -> None:
        super().__init__()
        table = entries(type(self)).values()
        self._setDefault(**{entry.name: entry.default for entry in table if entry.default is not None})

    def getOrDefault(self, param: Any) -> Any:
        """Gets the value of a param, or its default value; to give it ``None`` is to leave it open."""
        found = super().getOrDefault(param)
        return self._defaultParamMap.get(self._resolveParam(param)) if found is None else found


def getter(param: Param[T]) -> Callable[[Any], T]:
    """Return the method that reads a Param."""

    def get(self):  # type: ignore[no-untyped-def]
        return self.getOrDefault(param.name)

    has_default = getattr(param, "default", None) is not None
    doc = f"Gets the value of {param.name}{' or its default value' if has_default else ''}."
    _name(get, "get", param, doc)
    return get


def setter(param: Param[T], note: str = "") -> Callable[[P, T], P]:
    """Return the method that sets a Param."""

    def set_(self, value):  # type: ignore[no-untyped-def]
        return self._set(**{param.name: value})

    doc = f"Sets the value of :py:attr:`{param.name}`{'; ' if note else ''}{note}."
    _name(set_, "set", param, doc)
    return set_


def accessors(param: Param[T]) -> tuple[Callable[[Any], T], Callable[[P, T], P]]:
    """Return the methods that read and set a Param."""
    return getter(param), setter(param)


def _name(method: Callable[..., Any], verb: str, param: Param[Any], doc: str) -> None:
    method.__name__ = method.__qualname__ = f"{verb}{param.name[0].upper()}{param.name[1:]}"
    method.__doc__ = doc


def constructed_by(keywords: type[Any], attributes: Mapping[str, Any]) -> Callable[[C], C]:
    """Return a decorator that says what a constructor takes, for ``help``, notebooks and ``inspect``."""

    def decorate(cls: C) -> C:
        table = entries(cls)
        defaults = {**attributes, **{name: entry.default for name, entry in table.items()}}
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint)
            for name, hint in get_type_hints(keywords).items()
        ]
        cls.__init__.__signature__ = inspect.Signature([own, *taken], return_annotation=None)
        if cls.__doc__ is not None:  # there is none where Python leaves them out
            lines = [describe(entry) for entry in table.values()]
            cls.__doc__ += "\n    Params:\n" + textwrap.indent("\n".join(lines), " " * 8) + "\n    "
        return cls

    return decorate


def describe(entry: ParamEntry[Any]) -> str:
    """Return the name, doc and default of an entry."""
    default = "" if entry.default is None else f" (default: {entry.default!r})"
    return f"{entry.name}: {entry.doc.removesuffix('.')}{default}."

"""Griffe extension: the Params of an estimator below its arguments, as its own table of Params has them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from griffe import Class, Extension

_TAKES_PARAMS = "**params: by name"


class ParamTables(Extension):
    """Adds a table to the docstring of each class whose constructor takes Params by name."""

    def on_class(self, *, cls: Class, **_: Any) -> None:
        """Add the table."""
        if cls.docstring is not None and _TAKES_PARAMS in cls.docstring.value:
            module, _, name = cls.path.rpartition(".")
            cls.docstring.value += "\n\n" + params_table(getattr(import_module(module), name))


def params_table(of: type[Any]) -> str:
    """Return the Params of a class with default and doc, as a block that opens."""
    from sparkdl.ml.params.entries import entries

    table = entries(of)
    rows = [
        f"| `{name}` | {_default(table[name].default)} | {_cell(table[name].doc.removesuffix('.'))} |"
        for name in sorted(table)
    ]
    summary = f"<summary>{len(rows)} Params of {of.__name__}, with default and meaning</summary>"
    head = ["| Param | default | |", "|---|---|---|"]
    return "\n".join(['<details class="params" markdown="1">', summary, "", *head, *rows, "", "</details>"])


def _default(value: Any) -> str:
    return "not set" if value is None else f"`{_cell(repr(value))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

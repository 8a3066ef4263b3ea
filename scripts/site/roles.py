"""Griffe extension: what docstrings say for Sphinx and plain readers, as Markdown."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:py:)?(?:class|meth|func|mod|data|attr|exc):`(~?)([\w.]+)(?:\s+<[^>`]+>)?`")
_LITERAL = re.compile(r"(^|\S)::$", re.MULTILINE)
_SHAPES = re.compile(r"^Shapes:\n((?:    .*\n?)+)", re.MULTILINE)
_SHAPE = re.compile(r"^    (\w[\w, *]*): (.*(?:\n     .*)*)", re.MULTILINE)


class Roles(Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(docstring: str) -> str:
    """Return a docstring with roles as code, literal blocks as indented code and shapes as a list."""
    code = _ROLE.sub(lambda match: f"`{match[2].rpartition('.')[2] if match[1] else match[2]}`", docstring)
    plain = _LITERAL.sub(lambda match: f"{match[1]}:" if match[1] else "", code)
    return _SHAPES.sub(lambda match: f"**Shapes:**\n\n{_SHAPE.sub(_item, match[1])}", plain)


def _item(match: re.Match[str]) -> str:
    return f"- **`{match[1]}`**: {' '.join(match[2].split())}"

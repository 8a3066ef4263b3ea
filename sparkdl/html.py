"""Small pieces of HTML for notebooks: tables and sparklines, with everything escaped and nothing loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

SMALL = (240, 40)
"""Width and height of a line beside others, in pixels."""

_POINTS = 120
_TEXT = 200


def text(value: object, most: int = _TEXT) -> str:
    """Return a value as text of HTML, cut off after so many characters."""
    found = str(value)
    return escape(found if len(found) <= most else f"{found[: most - 1]}…")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table. Cells that are :class:`Raw` go in as they are, others are escaped."""
    names = "".join(f"<th style='text-align:left'>{text(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{_cell(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def block(title: str, facts: Mapping[str, object], *parts: str) -> str:
    """Return a titled block: facts on one line, then tables and pictures."""
    said = ", ".join(f"{text(name)} <b>{_cell(value)}</b>" for name, value in facts.items())
    return f"<div><p><b>{text(title)}</b>{': ' if said else ''}{said}</p>{''.join(parts)}</div>"


class Raw(str):
    """HTML, not to be escaped."""

    __slots__ = ()


def sparkline(values: Sequence[float], label: str, size: tuple[int, int] = SMALL) -> Raw:
    """Return values as a small line in SVG; empty if fewer than two are finite.

    What is not finite leaves a gap, many are averaged in groups. ``label`` names the line for readers that do
    not see it; ``size`` is width and height in pixels.
    """
    width, height = size
    points = thinned(values, _POINTS)
    if len(points) < 2:
        return Raw("")
    low, high = min(y for _, y in points), max(y for _, y in points)
    last, span = max(len(values) - 1, 1), (high - low) or 1.0
    drawn = " ".join(
        f"{2 + x / last * (width - 4):.1f},{2 + (high - y) / span * (height - 4):.1f}" for x, y in points
    )
    name = f"{label}: {points[0][1]:.4g} to {points[-1][1]:.4g}"
    return Raw(
        f'<svg role="img" aria-label="{escape(name)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">'
        f'<polyline points="{drawn}" fill="none" stroke="#1f5fa8" stroke-width="1.5"/></svg>'
    )


def short(value: object, otherwise: Callable[[object], str] = str) -> str:
    """Return four digits of a float, and anything else as a function tells it."""
    return f"{value:.4g}" if isinstance(value, float) else otherwise(value)


def amount(nbytes: int) -> str:
    """Return a number of bytes in the largest unit that it fills.

    Examples:
        >>> amount(3 * 1024 * 1024 // 2)
        '1.5 MiB'
    """
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, _ = value / 1024, units.pop(0)
    return f"{value:.4g} {units[0]}"


def _cell(value: object) -> str:
    return value if isinstance(value, Raw) else text(value)


def thinned(values: Sequence[Any], most: int) -> list[tuple[float, float]]:
    """Return places and values that are finite; averaged in groups, if there are more than so many."""
    size = max(1, -(-len(values) // most))
    found = []
    for start in range(0, len(values), size):
        group = [float(value) for value in values[start : start + size] if math.isfinite(value)]
        if group:
            found.append((start + (min(size, len(values) - start) - 1) / 2, sum(group) / len(group)))
    return found

"""Models found for a table or for series: a stated space, a time budget, a leaderboard, and a fit to all rows.

Needs Optuna: ``pip install sparkdl[tune]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.auto.leaderboard import Entry as Entry
    from sparkdl.auto.leaderboard import Leaderboard as Leaderboard

_HOME = {
    "Entry": "sparkdl.auto.leaderboard",
    "Leaderboard": "sparkdl.auto.leaderboard",
}

__all__ = ["Entry", "Leaderboard"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sparkdl.auto' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Models found for a table or series: a stated space, a time budget, a leaderboard, a fit to all rows.

Needs Optuna: ``pip install sparkdl[tune]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.auto.forecast import AutoForecast as AutoForecast
    from sparkdl.auto.forecast import AutoForecastModel as AutoForecastModel
    from sparkdl.auto.leaderboard import Entry as Entry
    from sparkdl.auto.leaderboard import Leaderboard as Leaderboard
    from sparkdl.auto.tabular import AutoTabular as AutoTabular
    from sparkdl.auto.tabular import Candidate as Candidate

_HOME = {
    "AutoForecast": "sparkdl.auto.forecast",
    "AutoForecastModel": "sparkdl.auto.forecast",
    "AutoTabular": "sparkdl.auto.tabular",
    "Candidate": "sparkdl.auto.tabular",
    "Entry": "sparkdl.auto.leaderboard",
    "Leaderboard": "sparkdl.auto.leaderboard",
}

__all__ = ["AutoForecast", "AutoForecastModel", "AutoTabular", "Candidate", "Entry", "Leaderboard"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sparkdl.auto' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

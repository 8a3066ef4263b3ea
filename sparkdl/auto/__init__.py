"""Models found for a table or series: a stated space, a time budget, a leaderboard, a fit to all rows.

Needs Optuna: ``pip install sparkdl[tune]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl.lazy import lazy

if TYPE_CHECKING:
    from sparkdl.auto.forecast import AutoForecast as AutoForecast
    from sparkdl.auto.forecast import AutoForecastModel as AutoForecastModel
    from sparkdl.auto.leaderboard import Entry as Entry
    from sparkdl.auto.leaderboard import Leaderboard as Leaderboard
    from sparkdl.auto.tabular import AutoTabular as AutoTabular
    from sparkdl.auto.tabular import Candidate as Candidate

_HOMES = {
    "sparkdl.auto.forecast": "AutoForecast AutoForecastModel",
    "sparkdl.auto.leaderboard": "Entry Leaderboard",
    "sparkdl.auto.tabular": "AutoTabular Candidate",
}

__all__, __getattr__, __dir__ = lazy(__name__, _HOMES)

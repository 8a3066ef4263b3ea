"""A command's request to the first fit of a script, in the environment of its process.

The fit rehearses in place of training (:mod:`sparkdl.train.planning.asked`).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Literal

from sparkdl._spark.tasks import in_task
from sparkdl.exceptions import ConfigError

VARIABLE = "SPARKDL_REHEARSAL"
"""Environment variable of the script: a request, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the first fit is to do."""

    kind: Literal["plan", "profile"]  # ``"plan"`` or ``"profile"``
    answer: str  # file to write
    rows: int | None = None  # of an epoch; ``None`` to count them
    executors: tuple[int, ...] = (1,)  # numbers to forecast for
    price: float = 0.0  # of a core hour
    gigabits: float = 10.0  # per second, of a machine's network
    seconds: float = 4.0  # of each fit, about
    trace: str = ""  # file of the trace of a profile

    def variable(self) -> dict[str, str]:
        """Return the environment that a script needs."""
        return {VARIABLE: json.dumps(asdict(self))}


def take() -> Request | None:
    """Return the request of this process, once; ``None`` without one, and in tasks."""
    found = _told()
    if found is not None:
        del os.environ[VARIABLE]
    return found


def planned_rows(rows: int) -> int:
    """Return the rows of an epoch that a plan is asked for, those of the table if there is none."""
    asked = _told()
    return rows if asked is None or asked.rows is None else asked.rows


def _told() -> Request | None:
    told = os.environ.get(VARIABLE)
    if not told or in_task():
        return None
    try:
        found = Request(**json.loads(told))
        return replace(found, executors=tuple(found.executors))
    except (ValueError, TypeError, RecursionError) as error:
        del os.environ[VARIABLE]
        raise ConfigError(
            f"{VARIABLE}={told!r:.200}: expected what `sparkdl plan` sets: {error}", code="config-command"
        ) from None

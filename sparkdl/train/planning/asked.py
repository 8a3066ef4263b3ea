"""The first fit of a script as a rehearsal, for the commands ``plan`` and ``profile``.

The command starts the user's script with a request in
:data:`sparkdl.train.planning.request.VARIABLE`. The script goes as far as its first ``fit``. This fit
rehearses instead, writes the answer to the file that the request names, and ends the script in order, by
``SystemExit``: ``finally`` blocks run and sessions stop.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from sparkdl.data.dataset import Dataset
from sparkdl.train.planning.plan import plan_of
from sparkdl.train.planning.profile import profile_of
from sparkdl.train.planning.request import Request
from sparkdl.wire import private

if TYPE_CHECKING:
    from sparkdl.train.trainer import Trainer


def answer(request: Request, trainer: Trainer, data: Dataset) -> None:
    """Rehearse in place of a fit, as a command has asked for, and end the script then."""
    found: dict[str, Any]
    if request.kind == "plan":
        plan = plan_of(
            trainer,
            data,
            request.rows,
            request.executors,
            request.price,
            request.gigabits,
            seconds=request.seconds,
            tell=_tell,
        )
        found = {"text": str(plan), "job": plan.job_table(), "plan": plan.to_json()}
    else:
        found = profile_of(trainer, data, request.trace, seconds=request.seconds, tell=_tell)
    with open(request.answer, "w", encoding="utf-8", opener=private.opener) as file:
        json.dump(found, file)
    raise SystemExit(0)


def _tell(doing: str) -> None:
    print(f"sparkdl: rehearsal: {doing}", file=sys.stderr, flush=True)

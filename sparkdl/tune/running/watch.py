"""Outside events of a search: Ctrl-C and time, loggers, the table of trials, and the job's next driver."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparkdl import attempts
from sparkdl.tune.loggers import TrialLogger
from sparkdl.tune.running.search import Search
from sparkdl.tune.shown import SearchProgress
from sparkdl.tune.trial import Trial


class Retried:
    """What a driver notes of the search in a folder, for the next one; nothing if it is not kept.

    ``sparkdl submit --retries`` starts a driver again that died.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._attempt = None if folder is None else attempts.current()
        self._folder = os.path.abspath(os.fspath(folder or ""))

    def resumes(self) -> bool:
        """Return whether an earlier driver of the job has begun this search; it goes on then."""
        return self._attempt is not None and self._attempt.earlier(self._folder) is not None

    def begun(self) -> None:
        """Note that the search begins. Its folder may be there from now on."""
        if self._attempt is not None:
            self._attempt.begun(self._folder)
            self.reached(0)

    def reached(self, rungs: int) -> None:
        """Note how many rungs have begun."""
        if self._attempt is not None:
            self._attempt.written(self._folder, rungs + 1)  # 0 would say that there is nothing yet

    def finished(self) -> None:
        """Note that the search came to its end."""
        if self._attempt is not None:
            self._attempt.finished(self._folder)


@dataclass(slots=True, kw_only=True)
class SearchWatch:
    """Tells whether a search is to end, and tells others of its course."""

    interrupted: Callable[[], bool]  # whether Ctrl-C was pressed
    timeout: float | None  # seconds that the search may take, with a fit that follows it
    # how long that takes, in multiples of the seconds that the best trial has trained; 0 for none
    refit: float = 0.0
    retried: Retried  # notes how far the search has come
    loggers: Sequence[TrialLogger]  # hear of each rung
    progress: SearchProgress | None  # the table of trials; ``None`` to show none
    began: float = field(default_factory=time.monotonic)  # when the search did, by the monotonic clock
    _kept: float = 0.0

    def stop(self) -> str:
        """Return why no further rung is to begin; empty if one may."""
        if self.interrupted():
            return "interrupt"
        late = self.timeout is not None and time.monotonic() - self.began + self._kept > self.timeout
        return "timeout" if late else ""

    def rung(self, search: Search, trial: Trial, ended: bool) -> None:
        """Tell of a rung."""
        if (best := search.best) is not None:
            found = search.trials[best.trial]
            self._kept = self.refit * found.seconds * best.epoch / max(1, found.epochs)
        self.retried.reached(search.rungs)
        for logger in self.loggers:
            logger.rung(trial, ended)
        if self.progress is not None:
            self.progress.update(search.trials, search.spent, search.completed)

    def close(self, search: Search, stopped_by: str) -> None:
        """Tell of the end."""
        for logger in self.loggers:
            logger.end(stopped_by, search.best.trial if search.best is not None else None)
        if self.progress is not None:
            self.progress.close(search.trials)

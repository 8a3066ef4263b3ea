"""A search in a job whose driver is started again when it dies: ``sparkdl submit --retries``."""

from __future__ import annotations

import os

from sparkdl import attempts


class Retried:
    """What a driver notes of the search in a folder, for the next one; nothing if it is not kept."""

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

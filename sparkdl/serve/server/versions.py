"""The version of a model that is served, and its successor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sparkdl.exceptions import SparkdlError
from sparkdl.saved.reading import read_version
from sparkdl.saved.trust import Entry
from sparkdl.serve.served import ServedModel

logger = logging.getLogger("sparkdl")
_TRIES = 3


@dataclass(frozen=True, slots=True, eq=False)
class ServedVersion:
    """A model with its copies, a session group: they share the weights, and each belongs to one thread."""

    model: ServedModel  # converts rows; any thread may use it for that
    copies: tuple[ServedModel, ...]  # compute


class Versions:
    """Holds the version that is served, and puts another in its place once that is complete.

    A request belongs to the version that was served when it was read. Its rows are checked and computed by
    that version, which goes when the last such request has its answer. So no request meets a server without a
    model, or two models. A save that replaces the one at ``path`` makes a new version; ``note`` is told
    ``done`` or ``failed`` and the version that is served, after each attempt. Raises SparkdlError if there is
    no model that can be read.
    """

    def __init__(
        self,
        path: str,
        *,
        copies: int,
        trust: Iterable[Entry] = (),
        quantize: bool | None = None,
        note: Callable[[str, str], None] = lambda result, version: None,
    ) -> None:
        self._path, self._count, self._trust, self._quantize = path, copies, tuple(trust), quantize
        self._note = note
        self._reloading = asyncio.Lock()
        self.current = self._load()

    def _load(self) -> ServedVersion:
        return self._version(ServedModel.load(self._path, trust=self._trust, quantize=self._quantize))

    def _next(self) -> ServedVersion:
        """Make the changes that were published since, or read the model as a whole."""
        changed = self.current.model.after_changes(self._path)
        return self._load() if changed is None else self._version(changed)

    def _version(self, model: ServedModel) -> ServedVersion:
        copies = tuple(model.copy() for _ in range(self._count))
        for copy in copies:
            copy.warm_up()
        return ServedVersion(model, copies)

    async def reload(self, *, force: bool = True) -> bool:
        """Read the model again, beside the one that is served, and serve it; else keep that one."""
        async with self._reloading:
            before = self.current.model.version
            try:
                if not force and (await asyncio.to_thread(read_version, self._path)).name == before:
                    return False
                self.current = await self._attempt(self._load if force else self._next)
            except Exception as error:
                logger.error("%s cannot be read again, version %s stays: %s", self._path, before, error)
                self._note("failed", before)
                return False
            logger.info("serving version %s of %s, was %s", self.current.model.version, self._path, before)
            self._note("done", self.current.model.version)
            return True

    async def _attempt(self, read: Callable[[], ServedVersion]) -> ServedVersion:
        """Read the model; again if a save has replaced it in the meantime."""
        for left in reversed(range(_TRIES)):
            try:
                return await asyncio.to_thread(read)
            except SparkdlError:
                if not left:
                    raise
                await asyncio.sleep(0.5)
        raise AssertionError

    async def watch(self, seconds: float) -> None:
        """Look for a new version again and again, for ever."""
        while True:
            await asyncio.sleep(seconds)
            await self.reload(force=False)

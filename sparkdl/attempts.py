"""The attempts of a job that is started again when its driver dies, as the driver tells of them.

``sparkdl submit --retries`` names a folder in :data:`VARIABLE`. Before each attempt it writes a small file
of JSON there. The attempt's driver adds to which folders it writes checkpoints, how far they are, and how it
ends. By this, and by the exit status, the command decides whether to start another driver
(:mod:`sparkdl.cli.submit.retries`). The next driver sees from it which runs to go on with.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import posixpath
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any

from sparkdl import redaction
from sparkdl._spark.session import lost_context
from sparkdl.exceptions import ConfigError, is_integer
from sparkdl.wire import private

VARIABLE = "SPARKDL_ATTEMPTS"
"""Environment variable of the driver: the folder of the notes. Empty in tasks."""

_PREFIX = "attempt-"
_log = logging.getLogger("sparkdl")


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """A folder of checkpoints, as an attempt left it."""

    newest: int = 0  # iteration of the last checkpoint that the attempt wrote there; 0 for none
    ended: bool = False  # whether its last run there came to its end


@dataclass(frozen=True, slots=True)
class Note:
    """What a driver said of its attempt."""

    pid: int = 0  # its process; 0 if no driver came so far as to import sparkdl
    places: tuple[tuple[str, CheckpointPlace], ...] = ()  # folders of checkpoints
    ended: bool = False  # whether its interpreter ended in order
    lost: str = ""  # what ended it, if its SparkContext was gone or no executor had come
    failed: str = ""  # the exception that ended it

    def to_json(self) -> dict[str, Any]:
        """Return the note as a file holds it."""
        places = {path: {"newest": p.newest, "ended": p.ended} for path, p in self.places}
        return {name: getattr(self, name) for name in ("pid", "ended", "lost", "failed")} | {"places": places}

    @classmethod
    def parse(cls, text: bytes) -> Note:
        """Read a file; whatever is not a note's has no effect."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(found, dict):
            return cls()
        places = found.get("places")
        kept = [
            (path, CheckpointPlace(count(place.get("newest")), place.get("ended") is True))
            for path, place in (places.items() if isinstance(places, dict) else ())
            if isinstance(place, dict)
        ]
        lost, failed = (
            value if isinstance(value, str) else "" for value in map(found.get, ("lost", "failed"))
        )
        return cls(count(found.get("pid")), tuple(kept), found.get("ended") is True, lost, failed)


class Notes:
    """A folder with one note for each attempt: a local folder, or any that fsspec opens; else ConfigError."""

    def __init__(self, folder: str) -> None:
        from fsspec.core import url_to_fs

        try:
            self._fs, self._root = url_to_fs(folder)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"retry-folder {folder!r}: {error}", code="config-command") from error
        self._local = "file" in (
            self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,)
        )

    def create(self) -> None:
        """Make the folder, for the owner alone where there are owners."""
        if self._local:
            private.make_folder(self._root)
        else:
            self._fs.makedirs(self._root, exist_ok=True)

    def numbers(self) -> list[int]:
        """Return the attempts that have a note, oldest first."""
        self._fs.invalidate_cache()
        names = [posixpath.basename(str(path)) for path in self._fs.ls(self._root, detail=False)]
        parts = [
            name.removeprefix(_PREFIX).removesuffix(".json") for name in names if name.startswith(_PREFIX)
        ]
        return sorted(int(part) for part in parts if part.isdecimal())

    def read(self, number: int) -> Note:
        """Return the note of an attempt; an empty one if there is none."""
        try:
            return Note.parse(self._fs.cat_file(self._path(number)))
        except FileNotFoundError:
            return Note()

    def write(self, number: int, note: Note) -> None:
        """Write the note of an attempt, as a whole or not at all."""
        content, path = json.dumps(note.to_json()).encode(), self._path(number)
        if not self._local:
            self._fs.pipe_file(path, content)
            return
        draft = f"{path}.{os.getpid()}.draft"
        with open(draft, "wb", opener=private.opener) as file:
            file.write(content)
        os.replace(draft, path)

    def _path(self, number: int) -> str:
        return posixpath.join(self._root, f"{_PREFIX}{number}.json")


class Attempt:
    """This process as the driver of an attempt."""

    def __init__(self, notes: Notes, number: int) -> None:
        self.number = number
        self._notes = notes
        self._lock = threading.Lock()
        self._note: dict[str, Any] = {"pid": os.getpid()}
        self._places: dict[str, CheckpointPlace] = {}
        self._lost: BaseException | None = None
        self._earlier = {n: dict(notes.read(n).places) for n in notes.numbers() if n < number}
        self._write()

    def earlier(self, path: object) -> CheckpointPlace | None:
        """Return what earlier attempts left in a folder of checkpoints; ``None`` if they wrote none there.

        ``ended`` is true for the second run of this attempt that writes there: it is another run than the one
        that was cut off.
        """
        name = _name(path)
        found = [places[name] for _, places in sorted(self._earlier.items()) if name in places]
        newest = max((place.newest for place in found), default=0)
        return CheckpointPlace(newest, found[-1].ended or name in self._places) if newest else None

    def begun(self, path: object) -> None:
        """Note that a run writes checkpoints to a folder."""
        self._set(path, ended=False)

    def written(self, path: object, iteration: int) -> None:
        """Note a checkpoint."""
        self._set(path, newest=iteration)

    def finished(self, path: object) -> None:
        """Note that the run which writes to a folder came to its end."""
        self._set(path, ended=True)

    def _set(self, path: object, *, newest: int = 0, ended: bool = False) -> None:
        with self._lock:
            before = self._places.get(_name(path), CheckpointPlace())
            self._places[_name(path)] = CheckpointPlace(max(newest, before.newest), ended)
            self._write()

    def look(self, error: BaseException) -> None:
        """Remember an error if the SparkContext is lost: the script may close its session afterwards."""
        if isinstance(error, Exception) and lost_context():
            self._lost = error

    def failed(self, error: BaseException) -> None:
        """Note the exception that ends the script, and whether the cluster is to blame."""
        self.look(error)
        told = redaction.text(f"{type(error).__name__}: {error}".split("\n")[0])[:500]
        with self._lock:
            self._note["failed"] = told
            if any(found is self._lost or _is_no_executor(found) for found in _chain(error)):
                self._note["lost"] = told
            self._write()

    def ended(self) -> None:
        """Note that the interpreter ends in order."""
        with self._lock:
            self._note["ended"] = True
            self._write()

    def _write(self) -> None:
        try:
            self._notes.write(self.number, Note(places=tuple(self._places.items()), **self._note))
        except OSError as error:
            _log.warning("the note on attempt %d cannot be written: %s", self.number, error)


def watch() -> None:
    """Note how this process ends, if it is the driver of an attempt; called when sparkdl is imported."""
    attempt = current()
    if attempt is None:
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        try:
            attempt.failed(error)
        finally:
            before(kind, error, traceback)

    sys.excepthook = hook
    atexit.register(attempt.ended)


@cache
def current() -> Attempt | None:
    """Return the attempt that this process drives; ``None`` in tasks, and without ``--retries``."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    try:
        notes = Notes(folder)
        numbers = notes.numbers()
        # A driver's own child processes have the variable, too.
        if not numbers or notes.read(numbers[-1]).pid not in (0, os.getpid()):
            return None
        return Attempt(notes, numbers[-1])
    except (ConfigError, OSError) as error:
        _log.warning("%s=%s cannot be read: %s", VARIABLE, redaction.text(folder), error)
        return None


def number() -> int | None:
    """Return the number of this attempt, from 1; ``None`` without ``--retries``."""
    attempt = current()
    return attempt.number if attempt is not None else None


def _is_no_executor(error: BaseException) -> bool:
    """Return whether a session found no executor: Spark gives a master that does not answer a minute."""
    return isinstance(error, ConfigError) and error.code == "config-executors"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it followed."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _name(path: object) -> str:
    return redaction.text(str(path))


def count(value: Any) -> int:
    """Return a positive whole number, 0 for anything else."""
    return value if is_integer(value, 1) else 0

"""One run at a time writes to a folder of checkpoints.

``.running.json`` names the run that writes. In a local folder the run also holds a lock on that file: a
second run is refused, and a killed run holds no lock. On other stores a killed run looks like a live one, so
the newest run takes the folder over, and the run before notices before its next write.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from sparkdl.exceptions import CheckpointError, ConfigError
from sparkdl.train.checkpoint.lock import Lock
from sparkdl.train.checkpoint.store import CheckpointStore, join

RUNNING = ".running.json"
TAKEN = "checkpoint-folder"
"""Code of the error that another run writes to the folder."""

_log = logging.getLogger("sparkdl")


class Claim:
    """A run's claim to a folder.

    Raises CheckpointError if another run on a local folder goes on, ConfigError if it cannot be written to.
    """

    def __init__(self, store: CheckpointStore, name: str) -> None:
        self._store = store
        self._path = join(store.root, RUNNING)
        self._lock: Lock | None = None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        host, pid = socket.gethostname(), os.getpid()
        self._own = {"id": uuid.uuid4().hex, "name": name, "host": host, "pid": pid, "since": since}
        try:
            if store.local:
                self._lock = self._take_lock()
            elif (other := self._owner()) is not None:
                _log.warning(
                    "Checkpoint: %s was not given back by %s; if it goes on, it will end before its next "
                    "checkpoint",
                    store.outside(store.root),
                    _describe(other),
                )
            store.write(self._path, json.dumps(self._own).encode())
        except CheckpointError:
            raise
        except OSError as error:
            self.release()
            raise ConfigError(f"cannot write to the checkpoint folder {store.root}: {error}") from error

    def check(self) -> None:
        """See that no other run has taken the folder over; CheckpointError if so, OSError if unknown."""
        other = self._owner()
        if other is None:
            raise FileNotFoundError(
                f"{self._path} is gone: the folder was deleted, or another run has used it meanwhile"
            )
        if other.get("id") != self._own["id"]:
            raise CheckpointError(
                f"{_describe(other)} has taken over the checkpoint folder "
                f"{self._store.outside(self._store.root)}, so this run writes no more to it. Give each run a "
                "folder of its own, or end the other run and start this one again with fit(..., resume=True)",
                code=TAKEN,
            )

    def release(self) -> None:
        """Give the folder back."""
        with suppress(OSError):
            if (self._owner() or {}).get("id") == self._own["id"]:
                self._store.delete(self._path)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _owner(self) -> dict[str, Any] | None:
        """Return what the file says, ``None`` if there is none."""
        try:
            found = json.loads(self._store.read(self._path))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _take_lock(self) -> Lock | None:
        """Lock the file and return it; ``None`` where the file system has no locks."""
        while True:
            file = Lock(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            try:
                file.take(wait=False)
            except BlockingIOError:
                file.close()
                raise self._refused() from None
            except (OSError, ImportError) as error:
                file.close()
                _log.warning("Checkpoint: cannot lock %s: %s", self._path, error)
                return None
            if _is_at(file.fileno(), self._path):
                return file
            file.close()  # the run before has deleted it just now

    def _refused(self) -> CheckpointError:
        return CheckpointError(
            f"{_describe(self._owner() or {})} writes its checkpoints to {self._store.root} now. "
            "Give each run a folder of its own; or wait until the other run has ended, or end it, and go on "
            "from its last checkpoint with fit(..., resume=True)",
            code=TAKEN,
        )


def _is_at(handle: int, path: str) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _describe(owner: dict[str, Any]) -> str:
    if not owner:
        return "another run"
    name, pid, host, since = (str(owner.get(key))[:60] for key in ("name", "pid", "host", "since"))
    return f"the run {name!r} (process {pid} on {host}, since {since})"

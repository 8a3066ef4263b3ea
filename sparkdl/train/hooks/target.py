"""Targets of summaries: local folders directly, other stores by copies of a local one."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from sparkdl import redaction
from sparkdl.exceptions import ConfigError

_PUSH_SECONDS = 60.0
_MAX_SHARE = 0.05


class Target:
    """A file or folder that is written locally and, where it belongs elsewhere, copied there.

    Stores such as S3 cannot append, so the whole file is copied from time to time. Copies are spaced so that
    they take at most a twentieth of the time. ``parameter`` is the address's name in errors. Raises
    ConfigError for a bad scheme or path, or a package missing.
    """

    def __init__(self, parameter: str, path: str | Path, *, folder: bool = False) -> None:
        self.path = str(path)
        if self.path.startswith("file://"):
            self.path = self.path.removeprefix("file://")
        self.remote = "://" in self.path
        self._store: Any = None
        self._address = ""
        self._folder: Path | None = None
        self._local = Path()
        self._due = 0.0
        if self.remote:
            import fsspec

            try:
                self._store, self._address = fsspec.core.url_to_fs(self.path)
            except (ImportError, ValueError) as error:
                raise ConfigError(
                    f"{parameter}={self.path!r}: expected a local path or an address that fsspec opens; "
                    f"{error}",
                    code="config-package",
                ) from error
        else:
            self._check(parameter, Path(self.path), folder)

    def _check(self, parameter: str, path: Path, folder: bool) -> None:
        """Look whether the path can be written, before hours of work; nothing is made."""
        there = next(place for place in (path, *path.absolute().parents) if os.path.exists(place))
        kind = "a folder" if folder or there != path else "a file"
        if there.is_dir() != (kind == "a folder"):
            problem = f"{there} is {'a folder' if there.is_dir() else 'a file'}, expected {kind}"
        elif not os.access(there, os.W_OK | (os.X_OK if there.is_dir() else 0)):
            problem = f"no permission to write to {there}"
        else:
            return
        raise ConfigError(f"{parameter}={self.path!r} cannot be written: {problem}")

    def open(self) -> Path:
        """Return the local path to write to; its parent exists."""
        local = Path(self.path)
        if self.remote:
            self._folder = Path(tempfile.mkdtemp(prefix="sparkdl-summary-"))
            local = self._folder / (self._address.rstrip("/").rsplit("/", 1)[-1] or "summary")
        try:
            local.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error}") from error
        self._local, self._due = local, time.monotonic() + _PUSH_SECONDS
        return local

    def fetch(self) -> None:
        """Begin with what the remote file holds, if it is there: for files that are appended to."""
        if self.remote and self._store.exists(self._address):
            self._store.get_file(self._address, str(self._local))

    def due(self) -> bool:
        """Return whether it is time for :meth:`push`; never for local paths."""
        return self.remote and self._folder is not None and time.monotonic() >= self._due

    def push(self, *, strict: bool = False) -> bool:
        """Copy to the remote store; return whether that worked, with ``strict`` raise what the store does.

        Training goes on if it does not: the next copy will hold everything.
        """
        if not self.remote or self._folder is None:
            return True
        begin = time.monotonic()
        try:
            if self._local.is_dir():
                for file in sorted(self._local.rglob("*")):
                    if file.is_file():
                        name = file.relative_to(self._local).as_posix()
                        self._store.put_file(str(file), f"{self._address.rstrip('/')}/{name}")
            elif self._local.exists():
                self._store.put_file(str(self._local), self._address)
        except Exception as error:
            if strict:
                raise
            message = redaction.text(f"{self.path} could not be written: {error!r}")
            warnings.warn(message, UserWarning, stacklevel=2)
            return False
        finally:
            now = time.monotonic()
            self._due = now + max(_PUSH_SECONDS, (now - begin) / _MAX_SHARE)
        return True

    def close(self) -> None:
        """Copy a last time and remove the local copy; after a failure it stays, and a warning says where."""
        if self.push() and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        elif self._folder is not None:
            message = redaction.text(f"{self.path} is incomplete; all of it is in {self._folder}")
            warnings.warn(message, UserWarning, stacklevel=2)
        self._folder = None

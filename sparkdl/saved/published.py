"""A folder of published versions: which of them is served.

::

    path/version-00000123/                       a saved model, as of the completed iterations of its name
         changes-00000123-00000130.safetensors   what has changed from one version to another
         current.json                            the version to serve, and the changes that lead to it

``current.json`` is replaced as a whole, after its version is complete: whoever reads the path finds the old
version or the new one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl.exceptions import ConfigError
from sparkdl.saved.identity import Identity, count_of

POINTER = "current.json"
LONGEST = 1 << 16
_NAME = re.compile(r"version-([0-9]{8,})", re.ASCII)
_CHANGES = re.compile(r"changes-([0-9]{8,})-([0-9]{8,})\.safetensors", re.ASCII)
_RUN = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ChangesFile:
    """A file that leads from one version to another."""

    since: int  # completed iterations of the version before
    until: int  # completed iterations of the version after
    sha256: str  # checksum of the file

    @property
    def name(self) -> str:
        """The file."""
        return changes_name(self.since, self.until)


@dataclass(frozen=True, slots=True)
class Current:
    """What ``current.json`` says."""

    iteration: int  # completed iterations of the version that is served
    batches: int = 0  # batches of the stream that it has learned
    seconds: float = 0.0  # when it was published, in seconds since 1970
    # what leads to it from a version that was saved as a whole, in this order
    changes: tuple[ChangesFile, ...] = ()
    # of which run it is (:class:`sparkdl.saved.identity.Identity`); empty if an earlier release has published
    # it
    run: str = ""
    digest: str = ""  # checksum of the version that was saved as a whole; likewise

    @property
    def base(self) -> int:
        """Completed iterations of the version that was saved as a whole."""
        return self.changes[0].since if self.changes else self.iteration

    @property
    def name(self) -> str:
        """The folder of that version."""
        return name_of(self.base)

    @property
    def identity(self) -> Identity:
        """Of which moment of which run it is."""
        return Identity(self.run, self.iteration)

    def before(self, change: ChangesFile) -> str:
        """Return the checksum of what a change is made in."""
        place = self.changes.index(change)
        return self.changes[place - 1].sha256 if place else self.digest

    def to_json(self) -> bytes:
        """Return the file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes, path: str) -> Current:
        """Read the file; names made of numbers lead nowhere else."""
        try:
            values = json.loads(data)
            iteration, batches = (count_of(values[name]) for name in ("iteration", "batches"))
            # Earlier releases published complete versions only.
            changes = tuple(_change(**change) for change in values.get("changes", ()))
            _check_chain(changes, iteration)
            seconds = float(values["seconds"])
            if not math.isfinite(seconds):
                raise ValueError(f"seconds are {seconds}")
            run, digest = values.get("run", ""), values.get("digest", "")
            if run and not _RUN.fullmatch(run):
                raise TypeError(f"{run!r:.80} names no run")
            return cls(iteration, batches, seconds, changes, run, digest and _checksum(digest))
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ConfigError(
                f"path={path!r}: its {POINTER} does not name a version: {error!r:.200}", code="config-saved"
            ) from error


def name_of(iteration: int) -> str:
    """Return the folder of a version."""
    return f"version-{iteration:08d}"


def iteration_of(name: str) -> int | None:
    """Return the iteration of a version's folder, ``None`` if it is called otherwise."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and name == name_of(int(match[1])) else None


def changes_name(since: int, until: int) -> str:
    """Return the file of changes from one version to another."""
    return f"changes-{since:08d}-{until:08d}.safetensors"


def changes_of(name: str) -> tuple[int, int] | None:
    """Return from and to which iteration a file of changes leads, ``None`` if it is called otherwise."""
    match = _CHANGES.fullmatch(name)
    found = (int(match[1]), int(match[2])) if match else None
    return found if found is not None and name == changes_name(*found) else None


@dataclass(frozen=True, slots=True)
class Chains:
    """The versions of a folder, and which files lead to each."""

    complete: frozenset[int]  # completed iterations of the versions that were saved as a whole
    changes: Mapping[int, int]  # since when each file of changes is, by where it leads

    @classmethod
    def of(cls, names: Iterable[str]) -> Chains:
        """Read the names in a folder."""
        names = list(names)
        complete = {iteration_of(name) for name in names} - {None}
        changes = [found for name in names if (found := changes_of(name)) is not None]
        return cls(frozenset(n for n in complete if n is not None), {b: a for a, b in sorted(changes)})

    @property
    def iterations(self) -> list[int]:
        """The versions, ascending: completed iterations of each."""
        return sorted({*self.complete, *(n for n in self.changes if self._leads(n))})

    def leading_to(self, iteration: int) -> list[tuple[int, int]]:
        """Return the changes that lead to a version from one that was saved as a whole, in order."""
        found: list[tuple[int, int]] = []
        while iteration not in self.complete:
            found.append((self.changes[iteration], iteration))
            iteration = self.changes[iteration]
        return found[::-1]

    def names(self, iteration: int) -> list[str]:
        """Return the files and the folder that a version needs, the folder first."""
        chain = self.leading_to(iteration)
        return [name_of(chain[0][0] if chain else iteration), *(changes_name(*each) for each in chain)]

    def newer(self, iteration: int) -> list[str]:
        """Return what is of no version up to one."""
        return self.needless(n for n in self.iterations if n <= iteration)

    def needless(self, kept: Iterable[int]) -> list[str]:
        """Return the files and folders that some versions do not need."""
        needed = {name for iteration in kept for name in self.names(iteration)}
        files = [changes_name(since, until) for until, since in sorted(self.changes.items())]
        return [name for name in (*files, *map(name_of, sorted(self.complete))) if name not in needed]

    def _leads(self, iteration: int) -> bool:
        while iteration not in self.complete:
            since = self.changes.get(iteration)
            if since is None or since >= iteration:
                return False
            iteration = since
        return True


def _check_chain(changes: Sequence[ChangesFile], iteration: int) -> None:
    ends = [change.until for change in changes]
    begins = [change.since for change in changes]
    if changes and (ends[-1] != iteration or begins[1:] != ends[:-1] or begins != sorted(set(begins))):
        raise ValueError(f"changes from {begins} to {ends} do not lead to {iteration}")


def _change(since: Any, until: Any, sha256: Any) -> ChangesFile:
    return ChangesFile(count_of(since), count_of(until), _checksum(sha256))


def _checksum(value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise TypeError(f"{value!r:.80} is no checksum")
    return value

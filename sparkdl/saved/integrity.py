"""Checks that a file is as it was written: checksums, pieces that fit together, names without duplicates.

Checksums are SHA-256. They find damage by disks, networks and copies; anyone who can write the file can
write its checksum, too, so they are no reason to trust it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sparkdl.exceptions import ConfigError


@dataclass(frozen=True)
class Chunk:
    """A piece of a file."""

    offset: int  # where it begins; of weights, the header is the piece at 0
    data: bytes  # its bytes

    def __post_init__(self) -> None:
        if type(self.offset) is not int or self.offset < 0 or type(self.data) is not bytes:
            kinds = f"{self.offset!r:.50} and {type(self.data).__name__}"
            raise ConfigError(f"a piece has {kinds}, expected its place and bytes", code="config-saved")


def of_json(value: Any) -> str:
    """Return the checksum of a JSON value, in any order of names; RecursionError if nested too deeply."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of a JSON file, for ``json.loads(..., object_pairs_hook=unique_names)``."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


class Hashed:
    """Hands on pieces, and takes their checksum on the way."""

    def __init__(self, pieces: Iterable[Chunk]) -> None:
        self._pieces = pieces
        self._digest = hashlib.sha256()

    def __iter__(self) -> Iterator[Chunk]:
        """Iterate once."""
        for piece in self._pieces:
            self._digest.update(piece.data)
            yield piece

    @property
    def sha256(self) -> str:
        """The checksum of the pieces so far, in hexadecimal digits."""
        return self._digest.hexdigest()


def joined(pieces: Iterable[Chunk], sha256: str | None) -> bytes:
    """Return the bytes that were cut into pieces, which may be in any order.

    Raises ConfigError if pieces are missing or overlap, or they are not what was written.
    """
    found = {piece.offset: piece.data for piece in pieces}
    ends = {offset: offset + len(data) for offset, data in found.items()}
    check_joined(ends.items(), max(ends.values(), default=0))
    data = b"".join(found[offset] for offset in sorted(found))
    if sha256 is not None:
        check_digest("the pickled code is", hashlib.sha256(data).hexdigest(), sha256)
    return data


def check_joined(pieces: Iterable[tuple[int, int]], size: int) -> None:
    """Check that pieces, given as begin and end, cover a file without holes and overlaps."""
    reached = 0
    for begin, end in sorted(pieces):
        if begin != reached:
            raise ConfigError(
                f"pieces overlap or are missing: one begins at {begin}, expected {reached}",
                code="config-saved",
            )
        reached = end
    if reached != size:
        raise ConfigError(f"pieces are missing: {reached} of {size} bytes are there", code="config-saved")


def check_digest(what: str, found: str, expected: Any, code: str = "config-damaged") -> None:
    """Check that something has the checksum with which it was written."""
    if found != expected:
        raise ConfigError(
            f"{what} damaged: the checksum is {found:.16}, expected {expected!s:.16}. This is not what was "
            "saved: copy it again, or save it again",
            code=code,
        )

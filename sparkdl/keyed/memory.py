"""The memory that all tables of a process share, and the files for the rest of them."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.wire.arrays import Mapped, Records

if TYPE_CHECKING:
    from sparkdl.keyed.tiers import TieredStore

_MAPPED_SHARE = 16  # one part in so many of the memory is for pages of files that are mapped
_LEAST_SHARE = 8  # one part in so many is for hot entries in any case
_AT_ONCE_SHARE = 64  # one part in so many is for entries that are read, written or copied at a time
_LEAST_AT_ONCE = 1024
_SEGMENT_SHARE, _LEAST_SEGMENT, _SEGMENT_BYTES = 256, 16, 1 << 20
"""One part in so many is for a segment of a file while it is cleaned; records and bytes that it has."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


class RowMemory:
    """A bound for the memory of all tables of a process.

    It has what tables need for each id, the index, and what they need while they work on a batch. The rest is
    for entries that are used often, *hot* ones. All others are in files, which are not mapped. What is read
    out as a whole is in mapped files; the process lets their pages go when they have taken their share.
    ``folders``, local directories for the files, take turns.
    """

    def __init__(self, nbytes: int, folders: Sequence[str]) -> None:
        self.nbytes = nbytes
        self._folders = folders
        self._made = 0
        self._files: weakref.WeakSet[Mapped] = weakref.WeakSet()
        self._wanted: weakref.WeakKeyDictionary[TieredStore, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._before = _mapped_bytes()

    @property
    def hot_bytes(self) -> int:
        """Bytes for entries that are used often."""
        beside = sum(beside for _, beside in self._wanted.values())
        return max(self.nbytes // _LEAST_SHARE, self.nbytes - self.nbytes // _MAPPED_SHARE - beside)

    def array(self, dtype: Any, *shape: int) -> Mapped:
        """Return an empty array in a mapped file."""
        made = Mapped(self._folder(), dtype, *shape)
        self._files.add(made)
        return made

    def records(self, nbytes: int) -> Records:
        """Return an empty file for records of so many bytes."""
        return Records(self._folder(), nbytes)

    def _folder(self) -> str:
        folder = self._folders[self._made % len(self._folders)]
        self._made += 1
        os.makedirs(folder, exist_ok=True)
        return folder

    def ask(self, holder: TieredStore, nbytes: int, beside: int = 0) -> int:
        """Return how many of so many wanted bytes a holder gets.

        Nobody gets more than is wanted, and those that get less get as much as each other. Others may have
        to hold less than before.
        """
        self._wanted[holder] = nbytes, beside
        most = _level([wanted for wanted, _ in self._wanted.values()], self.hot_bytes)
        for other, (wanted, _) in list(self._wanted.items()):
            if other is not holder:
                other.hold(min(wanted, most))
        return min(nbytes, most)

    def beside(self, holder: TieredStore) -> int:
        """Return what a holder has said that it takes in any case."""
        return self._wanted.get(holder, (0, 0))[1]

    def forget(self, holder: TieredStore) -> None:
        """Give a holder's share to the others, when they ask next."""
        self._wanted.pop(holder, None)

    def settle(self) -> None:
        """Let pages of files go if they are too many, first those of the largest files."""
        most = self._before + self.nbytes // _MAPPED_SHARE
        if _mapped_bytes() <= most:
            return
        for file in sorted(self._files, key=lambda file: -file.values.nbytes):
            file.trim()
            if _mapped_bytes() < most - self.nbytes // (2 * _MAPPED_SHARE):
                return
        self._before = min(self._before, _mapped_bytes())

    def segment(self, nbytes: int) -> int:
        """Return how many records of so many bytes a segment of a file has."""
        return min(max(_LEAST_SEGMENT, self.nbytes // _SEGMENT_SHARE // nbytes), _SEGMENT_BYTES // nbytes + 1)

    def at_once(self, nbytes: int) -> int:
        """Return how many entries of so many bytes may be worked on at once."""
        return max(_LEAST_AT_ONCE, self.nbytes // _AT_ONCE_SHARE // nbytes)


def _level(wanted: Iterable[int], total: int) -> int:
    """Return the most that anybody gets of a total."""
    ordered, left = sorted(wanted), total
    for position, one in enumerate(ordered):
        share = left // (len(ordered) - position)
        if one > share:
            return share
        left -= one
    return total


def _mapped_bytes() -> int:
    """Return how much of this process's memory are pages of files; 0 where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/self/statm") as told:
        return int(told.read().split()[2]) * _PAGE
    return 0

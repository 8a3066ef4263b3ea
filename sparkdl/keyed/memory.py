"""The memory that all tables of a process share, and the files for the rest of them."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from sparkdl.keyed.arrays import Mapped

_MAPPED_SHARE = 4
"""One part in so many of the memory is for pages of files that are mapped; the others are for hot rows."""


_LEAST_AT_ONCE = 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Holder(Protocol):
    """What has a share of the memory."""

    def hold(self, nbytes: int) -> None:
        """Have at most so many bytes from now on."""
        ...


class RowMemory:
    """A bound for the memory of all tables of a process.

    Three quarters are for rows that are used often, *hot* ones. All others are in mapped files. The system
    keeps what it can of these files in memory, which is its own, and which it takes back for others. The
    process lets their pages go when they have taken the last quarter. The index, that is ids and where their
    rows are, is in memory, beside the bound.

    Args:
        nbytes: the bound.
        folders: local directories for the files, which take turns.
    """

    def __init__(self, nbytes: int, folders: Sequence[str]) -> None:
        self.nbytes = nbytes
        self._folders = folders
        self._made = 0
        self._files: weakref.WeakSet[Mapped] = weakref.WeakSet()
        self._wanted: weakref.WeakKeyDictionary[Holder, int] = weakref.WeakKeyDictionary()
        self._before = _mapped_bytes()

    @property
    def hot_bytes(self) -> int:
        """Bytes for rows that are used often."""
        return self.nbytes - self.nbytes // _MAPPED_SHARE

    def array(self, dtype: Any, *shape: int) -> Mapped:
        """Return an empty array in a file."""
        folder = self._folders[self._made % len(self._folders)]
        self._made += 1
        os.makedirs(folder, exist_ok=True)
        made = Mapped(folder, dtype, *shape)
        self._files.add(made)
        return made

    def ask(self, holder: Holder, nbytes: int) -> int:
        """Return how many of so many wanted bytes a holder gets.

        Nobody gets more than is wanted, and those that get less get as much as each other. Others may have
        to hold less than before.
        """
        self._wanted[holder] = nbytes
        most = _level(self._wanted.values(), self.hot_bytes)
        for other, wanted in list(self._wanted.items()):
            if other is not holder:
                other.hold(min(wanted, most))
        return min(nbytes, most)

    def forget(self, holder: Holder) -> None:
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

    @property
    def at_once(self) -> int:
        """Elements of files, anywhere in them, that may be used before :meth:`settle`."""
        return max(_LEAST_AT_ONCE, self.nbytes // _MAPPED_SHARE // 2 // _PAGE)


def parts(memory: RowMemory, count: int) -> Iterator[slice]:
    """Yield parts of so many accesses to files, and settle after each."""
    for begin in range(0, count, memory.at_once):
        yield slice(begin, min(count, begin + memory.at_once))
        memory.settle()


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

"""Records in memory, by place, and which of them to give up: those that were not used lately."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparkdl.wire.arrays import Numbers, Reserved

_HOTTEST = 3
_NONE = -1
_LEAST_SCANNED = 4096
_BESIDE = 6  # bytes beside a record: whose it is, its uses, whether it must stay


class HotRecords:
    """Records; a clock that counts uses tells which to give up (GCLOCK: Smith, 1978).

    ``whose`` is the number of each record's entry, -1 where there is none; ``held`` counts places.
    """

    def __init__(self, most: int, nbytes: int) -> None:
        self._reserved = Reserved(most, np.uint8, nbytes), Reserved(most, np.int32)
        self._uses, self._stays = Reserved(most, np.uint8), Reserved(most, np.bool_)
        self.values, self.whose = (own.values for own in self._reserved)
        self.nbytes = nbytes + _BESIDE
        self.held = self._room = self._hand = 0

    def allow(self, nbytes: int) -> range:
        """Have at most so many bytes; return the places beyond, which are to be empty before :meth:`cut`."""
        self._room = min(nbytes // self.nbytes, len(self.values))
        return range(self._room, self.held)

    def cut(self) -> None:
        """Give the memory of all places beyond the allowed ones back."""
        if self.held > self._room:
            self.held, self._hand = self._room, 0
            for own in (*self._reserved, self._uses, self._stays):
                own.free(self.held)

    def use(self, places: Numbers) -> None:
        """Count a use of records."""
        self._uses.values[places] = np.minimum(self._uses.values[places] + 1, _HOTTEST)

    def put(self, places: Numbers, numbers: Numbers, records: NDArray[np.uint8]) -> None:
        """Write records of some entries."""
        self.values[places] = records
        self.whose[places] = numbers
        self._uses.values[places] = 0

    def vacate(self, places: Numbers) -> None:
        """Have no entry at places."""
        self.whose[places] = _NONE
        self._uses.values[places] = 0

    def taken(self, places: Numbers) -> NDArray[np.bool_]:
        """Return at which places there is an entry."""
        taken: NDArray[np.bool_] = self.whose[places] != _NONE
        return taken

    def find(self, count: int, stay: Numbers) -> Numbers:
        """Return at most so many places, new ones or of records to give up; not those that have to stay."""
        before, self.held = self.held, min(self._room, self.held + count)
        new = np.arange(before, self.held)
        self.whose[new] = _NONE
        uses, stays = self._uses.values, self._stays.values
        stays[stay] = True
        found, missing, left = [new], count - len(new), (_HOTTEST + 2) * before
        while missing and left > 0:
            size = min(before - self._hand, max(_LEAST_SCANNED, 4 * missing))
            own = uses[self._hand : self._hand + size]
            idle = (own == 0) & ~stays[self._hand : self._hand + size]
            chosen = np.flatnonzero(idle)[:missing]
            passed = size if len(chosen) < missing else int(chosen[-1]) + 1
            own[:passed] -= own[:passed] > 0
            found.append(chosen + self._hand)
            stays[found[-1]] = True
            missing, left = missing - len(chosen), left - passed
            self._hand = (self._hand + passed) % before
        stays[stay] = False
        for places in found[1:]:
            stays[places] = False
        return np.concatenate(found)

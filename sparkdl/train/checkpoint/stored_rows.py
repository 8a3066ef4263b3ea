"""Entries of embedding variables in files of shards, and what changes lead to, some of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.allreduce.messages import OwnedRows
from sparkdl.allreduce.shard_files import ShardFile, StoredArray, Streamed
from sparkdl.keyed.entries import Entries, joined, merged
from sparkdl.keyed.mix import Ids, distinct, mix, owners
from sparkdl.wire.arrays import LARGE
from sparkdl.wire.frame import Array, under

_KNOWN = 1 << 21
_KNOWN_SHARE = 64  # so many ids of changes are in memory at a time, about, or one for so many entries
_LEAST_BLOCK = 1 << 10
_EACH = ("ids", "counts", "last", "admitted")
_LOG = ("gone", "gone_at")
_COLUMN, _PAGES = "column.", "pages."

Check = Callable[[], None]
"""Raises if something is not wanted any more."""


@dataclass(slots=True)
class Block:
    """Neighbouring entries of a file."""

    arrays: Mapping[str, StoredArray]  # all entries of the file
    begin: int  # number of the first one
    stop: int  # one past the last one
    bits: NDArray[np.uint8]  # which of them are left, eight to a byte; none at first
    first: int = 0  # rows of the entries before
    rows: int = 0  # rows of these
    left: int = 0  # how many of them are left
    left_rows: int = 0  # rows of these

    def read(self, name: str) -> Array:
        """Return a value of each entry."""
        return self.arrays[name].read(self.begin, self.stop)

    def choose(self, chosen: NDArray[np.bool_]) -> None:
        """Let further entries be left."""
        self.bits |= np.packbits(chosen)

    @property
    def chosen(self) -> NDArray[np.bool_]:
        """Which entries are left."""
        return np.unpackbits(self.bits, count=self.stop - self.begin).view(np.bool_)

    def count(self, first: int) -> int:
        """Count what is left, behind so many rows; return how many there are with those of this block."""
        admitted, chosen = self.read("admitted"), self.chosen
        self.first, self.rows = first, int(admitted.sum())
        self.left, self.left_rows = int(chosen.sum()), int((admitted & chosen).sum())
        return first + self.rows

    def values(self, name: str) -> Array:
        """Return a value of each entry that is left."""
        found = self.read(name)
        return found if self.left == len(found) else found[self.chosen]

    def column(self, name: str) -> Array:
        """Return the rows that are left, or the optimizer's state of each."""
        found = self.arrays[name].read(self.first, self.first + self.rows)
        return found if self.left_rows == self.rows else found[self.chosen[self.read("admitted")]]


@dataclass(frozen=True, slots=True)
class StoredTable:
    """Entries of a table in a file."""

    common: (
        Entries  # what is not of each entry, such as the optimizer's state of the table; without evictions
    )
    arrays: Mapping[str, StoredArray]  # what is, and evictions
    blocks: Sequence[Block]  # the entries
    pages: StoredTable | None  # see :class:`Entries`

    @classmethod
    def of(cls, file: ShardFile, table: str) -> StoredTable:
        """Return the entries of a table."""
        found = [own for own in file.messages if own[0]["kind"] == OwnedRows.kind]
        if not found or table not in found[0][0]["tables"]:
            raise ValueError(f"{file.path} has no rows of table {table!r}")
        meta, arrays = found[0]
        number = meta["tables"].index(table)
        values = meta["values"][number] if "values" in meta else {"scalars": meta["scalars"][number]}
        return cls._read(under(f"{number}.", arrays), values)

    @classmethod
    def _read(cls, arrays: Mapping[str, StoredArray], values: Mapping[str, Any]) -> StoredTable:
        rest = dict(values)
        pages = rest.pop("pages", None)
        own = {name: stored for name, stored in arrays.items() if not name.startswith(_PAGES)}
        each = {name: stored for name, stored in own.items() if name not in _LOG}
        none = {name: each[name].read(0, 0) for name in _EACH}
        step = max(_LEAST_BLOCK, LARGE // max(1, *(stored.row_bytes for stored in each.values())))
        size = len(each["ids"])
        bounds = [(begin, min(size, begin + step)) for begin in range(0, size, step)]
        return cls(
            Entries.read(none, "", rest),
            own,
            [Block(own, begin, stop, _no_bits(stop - begin)) for begin, stop in bounds],
            None if pages is None else cls._read(under(_PAGES, arrays), pages),
        )

    def log(self) -> Iterator[tuple[Ids, NDArray[np.int64]]]:
        """Yield evictions and when they were, some at a time; earlier releases wrote none."""
        gone, at = (self.arrays.get(name) for name in _LOG)
        if gone is None or at is None:
            return
        step = max(_LEAST_BLOCK, LARGE // gone.row_bytes)
        for begin in range(0, len(gone), step):
            stop = min(len(gone), begin + step)
            yield gone.read(begin, stop), at.read(begin, stop)


def _no_bits(count: int) -> NDArray[np.uint8]:
    return np.zeros(-(-count // 8), np.uint8)


@dataclass(frozen=True, slots=True)
class LayerPart:
    """An owner's entries of a table in a layer: all of them, or those that have changed."""

    common: Entries  # what is not of each entry
    sources: Sequence[StoredTable]  # the entries
    # number of the owner, and how many there are, if other owners' entries are among them
    owner: tuple[int, int] | None

    @classmethod
    def of(cls, sources: Sequence[StoredTable], owner: tuple[int, int] | None) -> LayerPart:
        """Return the entries of an owner."""
        common = joined([source.common for source in sources])
        return cls(common if owner is None else common.of_owner(*owner), sources, owner)

    def __len__(self) -> int:
        """Return how many ids there are."""
        return sum(len(source.arrays["ids"]) for source in self.sources)

    @property
    def blocks(self) -> Iterator[Block]:
        """The blocks of all sources."""
        return (block for source in self.sources for block in source.blocks)

    def log(self) -> Iterator[tuple[Ids, NDArray[np.int64]]]:
        """Yield the owner's evictions and when they were, some at a time."""
        for source in self.sources:
            for gone, at in source.log():
                own = self.owned(gone)
                yield gone[own], at[own]

    @property
    def pages(self) -> LayerPart | None:
        """See :class:`Entries`."""
        found = [source.pages for source in self.sources if source.pages is not None]
        return self.of(found, self.owner) if found else None

    def owned(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which ids are this owner's."""
        if self.owner is None:
            return np.ones(len(ids), np.bool_)
        index, count = self.owner
        own: NDArray[np.bool_] = owners(ids, count, self.common.spread) == index
        return own


@dataclass(frozen=True, slots=True)
class TableRows:
    """All entries of a table."""

    common: Entries  # what is not of each entry
    parts: Sequence[LayerPart]  # where the entries are, and which of them are left
    pages: TableRows | None  # see :class:`Entries`

    @property
    def values(self) -> dict[str, Any]:
        """What is not in arrays, as :attr:`Entries.values` has it."""
        values = self.common.values
        return values if self.pages is None else {**values, "pages": self.pages.values}

    def arrays(self, prefix: str) -> dict[str, Array | Streamed]:
        """Return the arrays by name, as :meth:`Entries.arrays` does."""
        named = {
            name: own
            for part in self.parts
            for source in part.sources
            for name, own in source.arrays.items()
            if name not in _LOG
        }
        blocks = [block for part in self.parts for block in part.blocks if block.left]
        found: dict[str, Array | Streamed] = {}
        for name, stored in named.items():
            own = [block for block in blocks if name in block.arrays]
            each = name in _EACH
            count = sum(block.left if each else block.left_rows for block in own)
            read = methodcaller("values" if each else "column", name)
            found[name] = stored.like(count, partial(map, read, own))
        evicted = sum(len(gone) for gone, _ in self._log())
        for place, name in enumerate(_LOG):
            found[name] = Streamed(np.dtype(np.int64), (evicted,), partial(self._of_log, place))
        pages = {} if self.pages is None else self.pages.arrays(_PAGES)
        return {f"{prefix}{name}": values for name, values in (found | pages).items()}

    def _of_log(self, place: int) -> Iterator[Array]:
        return (own[place] for own in self._log())

    def _log(self) -> Iterator[tuple[Ids, NDArray[np.int64]]]:
        """Yield evictions and when they were: what a later part has, an earlier one may have, too."""
        ends = [*(part.common.since for part in self.parts[1:]), np.iinfo(np.int64).max]
        for part, end in zip(self.parts, ends, strict=True):
            for gone, at in part.log():
                known = (at < end) & (at >= self.common.logged)
                yield gone[known], at[known]


def merge_parts(layers: Sequence[LayerPart], check: Check) -> TableRows:
    """Return what changes lead to; see :func:`sparkdl.keyed.entries.merged`."""
    first = max(n for n, layer in enumerate(layers) if not layer.common.since or not n)
    parts = layers[first:]
    _choose(parts, check)
    for part in parts:
        for source in part.sources:
            rows = 0
            for block in source.blocks:
                rows = block.count(rows)
    pages = [part.pages for part in parts]
    paged = [found for found in pages if found is not None]
    return TableRows(
        merged([layer.common for layer in layers]), parts, merge_parts(paged, check) if paged else None
    )


def _choose(parts: Sequence[LayerPart], check: Check) -> None:
    """Let the entries be left that no later part has, or has evicted; some of the ids at a time."""
    oldest, *changes = parts
    most = max(_KNOWN, sum(map(len, parts)) // _KNOWN_SHARE)
    evicted = sum(len(gone) for part in changes for gone, _ in part.log())
    classes = 1 + (sum(map(len, changes)) + evicted) // most
    for class_ in range(classes):
        later = np.empty(0, np.int64)
        for part in reversed(parts):
            met = [later]
            if part is not oldest:
                met += [gone[_in_class(gone, class_, classes)] for gone, _ in part.log()]
            for block in part.blocks:
                check()
                ids = block.read("ids")
                own = part.owned(ids) & _in_class(ids, class_, classes)
                asked = ids[own]
                own[own] = ~_within(asked, later)
                block.choose(own)
                if part is not oldest:
                    met.append(asked)
            later = distinct(met)


def _in_class(ids: Ids, class_: int, classes: int) -> NDArray[np.bool_]:
    """Return which ids are in one of so many classes."""
    if classes == 1:
        return np.ones(len(ids), np.bool_)
    chosen: NDArray[np.bool_] = mix(ids.view(np.uint64)) % np.uint64(classes) == np.uint64(class_)
    return chosen


def _within(ids: Ids, known: Ids) -> NDArray[np.bool_]:
    """Return which ids are among others, which are in order."""
    if not len(known):
        return np.zeros(len(ids), np.bool_)
    at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    found: NDArray[np.bool_] = known[at] == ids
    return found

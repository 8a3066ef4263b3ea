"""Entries of a keyed table as plain arrays: as they travel, and as they are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.keyed.mix import Ids, owners
from sparkdl.wire.frame import Array, under

_OWN = ("ids", "counts", "last", "admitted", "gone", "gone_at")
_PAGES = "pages."

ROW = "row"
"""Name of the column that has the rows themselves; others are the optimizer's state."""


def _no_ids() -> Ids:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of a table: all of them, or those that have changed since some iteration.

    A change is made by removing the entries in ``gone``, and then writing the others; see :func:`merged`.
    """

    ids: Ids  # the ids, each once
    counts: NDArray[np.int64]  # how often each was looked up in training
    last: NDArray[np.int64]  # completed iterations when it was looked up last
    admitted: NDArray[np.bool_]  # whether it has a row
    # by name, the rows, and the optimizer's state of each, of those ids that have one
    columns: Mapping[str, Array]
    scalars: Mapping[str, Any] = field(default_factory=dict)  # the optimizer's state of the table as a whole
    # ids that were evicted, in the order of evictions; some of them may have come back
    gone: Ids = field(default_factory=_no_ids)
    gone_at: NDArray[np.int64] = field(default_factory=_no_ids)  # completed iterations when each was
    since: int = 0  # these are the entries that have changed since so many completed iterations; 0 for all
    logged: int = 0  # changes since fewer completed iterations cannot be told from those since 0
    # counters of ids that have no entry, by page; ``None`` if there are none. See
    # :class:`~sparkdl.keyed.bloom.CountingBloom`.
    pages: Entries | None = None
    # how many pages have the counters of all ids; ids of a page have one owner. 0 without pages.
    spread: int = 0

    def where(self, chosen: NDArray[np.bool_]) -> Entries:
        """Return the entries that are chosen, and all evictions; nothing is copied if they all are."""
        if chosen.all():
            return self
        rows = chosen[self.admitted]
        return replace(
            self,
            ids=self.ids[chosen],
            counts=self.counts[chosen],
            last=self.last[chosen],
            admitted=self.admitted[chosen],
            columns={name: values[rows] for name, values in self.columns.items()},
        )

    def which_changed(self, since: int) -> NDArray[np.bool_] | None:
        """Return which entries have changed since so many completed iterations; ``None`` if nobody can tell.

        An entry changes when it is looked up: it is counted then, and its row is updated in the same
        iteration, which ends before anybody asks.
        """
        return None if since <= self.since or since < self.logged else self.last >= since

    def changed(self, since: int) -> Entries:
        """Return what has changed since so many completed iterations, or more where that cannot be told."""
        which = self.which_changed(since)
        if which is None:
            return self
        late = self.gone_at >= since
        chosen = self.where(which)
        pages = self.pages and self.pages.changed(since)
        return replace(chosen, gone=self.gone[late], gone_at=self.gone_at[late], since=since, pages=pages)

    def rows_only(self) -> Entries:
        """Return the entries without the optimizer's state."""
        rows = {name: values for name, values in self.columns.items() if name == ROW}
        return replace(self, columns=rows, scalars={})

    def without_state(self) -> Entries:
        """Return the entries without the optimizer's state, as if they had not been looked up lately."""
        rows = self.rows_only()
        last = np.zeros_like(rows.last)
        pages = self.pages and replace(self.pages, last=np.zeros_like(self.pages.last))
        return Entries(
            rows.ids, rows.counts, last, rows.admitted, rows.columns, pages=pages, spread=self.spread
        )

    def of_owner(self, rank: int, ranks: int) -> Entries:
        """Return the entries that a rank owns."""
        own = owners(self.gone, ranks, self.spread) == rank
        chosen = self.where(owners(self.ids, ranks, self.spread) == rank)
        pages = self.pages and self.pages.of_owner(rank, ranks)
        return replace(chosen, gone=self.gone[own], gone_at=self.gone_at[own], pages=pages)

    def sorted(self) -> Entries:
        """Return the entries in the order of their ids."""
        order = np.argsort(self.ids)
        places = np.cumsum(self.admitted) - 1
        rows = places[order][self.admitted[order]]
        log = np.lexsort([self.gone, self.gone_at])
        return replace(
            self,
            ids=self.ids[order],
            counts=self.counts[order],
            last=self.last[order],
            admitted=self.admitted[order],
            columns={name: values[rows] for name, values in self.columns.items()},
            gone=self.gone[log],
            gone_at=self.gone_at[log],
            pages=self.pages and self.pages.sorted(),
        )

    def arrays(self, prefix: str) -> dict[str, Array]:
        """Return the arrays by name, to travel in a frame."""
        named = {f"column.{name}": values for name, values in self.columns.items()}
        own = {name: getattr(self, name) for name in _OWN}
        pages = {} if self.pages is None else self.pages.arrays(_PAGES)
        return {f"{prefix}{name}": values for name, values in (own | named | pages).items()}

    @property
    def values(self) -> dict[str, Any]:
        """What else travels, as JSON has it."""
        meta = {"scalars": dict(self.scalars), "since": self.since, "logged": self.logged}
        if self.spread:
            meta["spread"] = self.spread
        return meta if self.pages is None else {**meta, "pages": self.pages.values}

    @classmethod
    def read(cls, arrays: Mapping[str, Array], prefix: str, values: Mapping[str, Any]) -> Entries:
        """Read what :meth:`arrays` and :attr:`values` returned."""
        columns = under(f"{prefix}column.", arrays)
        found = {name: arrays.get(f"{prefix}{name}") for name in _OWN}
        # Frames of earlier releases have no evictions: what has changed since cannot be told from them.
        own: dict[str, Any] = {name: array for name, array in found.items() if array is not None}
        meta = dict(values)
        pages = meta.pop("pages", None)
        if pages is not None:
            pages = cls.read(arrays, f"{prefix}{_PAGES}", pages)
        return cls(**own, columns=columns, pages=pages, **meta)


def joined(parts: Sequence[Entries]) -> Entries:
    """Return the entries of several parts of a table, in the order of their ids."""
    names = dict.fromkeys(name for part in parts for name in part.columns)
    own: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _OWN}
    columns = {
        name: np.concatenate([part.columns[name] for part in parts if name in part.columns]) for name in names
    }
    logged, since = max(part.logged for part in parts), max(part.since for part in parts)
    paged = [part.pages for part in parts if part.pages is not None]
    return Entries(
        **own,
        columns=columns,
        scalars=parts[0].scalars,
        since=since,
        logged=logged,
        pages=joined(paged) if paged else None,
        spread=max(part.spread for part in parts),
    ).sorted()


def merged(parts: Sequence[Entries]) -> Entries:
    """Return the entries that changes lead to, in the order of their ids.

    ``parts`` are entries, and what has changed since then, in this order; each of them since the one before,
    or earlier.
    """
    left: list[Entries] = []
    later: list[Ids] = []
    log: list[Entries] = []
    for part in reversed(parts):
        left.append(part.where(~np.isin(part.ids, np.concatenate([_no_ids(), *later]))))
        begin = log[-1].since if log else np.iinfo(np.int64).max
        early = part.gone_at < begin
        log.append(replace(part, gone=part.gone[early], gone_at=part.gone_at[early]))
        later += [part.ids, part.gone]
        if not part.since:
            break
    logged, since = parts[-1].logged, left[-1].since
    whole = joined([replace(part, gone=_no_ids(), gone_at=_no_ids(), pages=None) for part in left])
    paged = [part.pages for part in reversed(left) if part.pages is not None]
    gone, gone_at = (np.concatenate([getattr(part, name) for part in reversed(log)]) for name in _OWN[-2:])
    known = gone_at >= logged
    return replace(
        whole,
        scalars=parts[-1].scalars,
        gone=gone[known],
        gone_at=gone_at[known],
        since=since,
        logged=logged,
        pages=merged(paged) if paged else None,
    )

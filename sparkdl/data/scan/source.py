"""The source of a Dataset whose rows stay in Parquet files."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from sparkdl.access.base import Access, Frames, described
from sparkdl.data import ragged
from sparkdl.data.columns import ColumnLike, Columns, TablePlan
from sparkdl.data.scan.filters import ROLE, RowFilter, SelectedRows
from sparkdl.data.scan.folders import packed
from sparkdl.data.scan.listing import Listing
from sparkdl.data.scan.manifest import EVEN, ScanManifest, streams_for
from sparkdl.data.scan.schema import plan_schema
from sparkdl.data.scan.storage import Storage
from sparkdl.data.scan.tasks import FirstRows, PlaceManifest, ReadFooters, ScanPlace, checked, list_files
from sparkdl.data.store.build import Partitions, StoreSource
from sparkdl.data.streams import RowShare
from sparkdl.exceptions import ConfigError, DataError, is_integer
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Parts

WINDOW = 256 << 20
"""Bytes of rows that are mixed with each other at a time, by default."""

_STREAMS_OF_SAMPLES = 24  # of which row groups may be cut
_ONE = b"\0"  # a frame for a task that needs none: without any there is no task
_MOST_FILES = 2000  # whose footers one task reads


class ScanSource(StoreSource):
    """Rows of Parquet files, which tasks read where they lie.

    ``window`` is bytes of rows mixed at a time, ``streams`` V (``None``: as many as suit the row groups),
    ``cache_bytes`` of row groups that each executor keeps on its disk.
    """

    def __init__(
        self,
        access: Access,
        place: ScanPlace,
        window: int,
        streams: int | None,
        filter: Any = None,
        cache_bytes: int = 0,
    ) -> None:
        for name, value, least, most in (
            ("window", window, 1, None),
            ("streams", 1 if streams is None else streams, 1, EVEN[-1]),
            ("cache_bytes", cache_bytes, 0, None),
        ):
            if not is_integer(value, least) or value > (most or value):
                kind = "positive number" if least else "number"
                upper = f" up to {most}" if most else " of bytes"
                raise ConfigError(f"{name}={value!r:.100}: expected a {kind}{upper}")
        self.access = access
        self._place = place
        self._window = window
        self._streams = streams
        self.cache_bytes = cache_bytes
        self._given = filter
        self._filter: RowFilter | None = None
        self._listed: Listing | None = None
        self._whole: ScanManifest | None = None  # before its columns are known
        self._manifest: ScanManifest | None = None
        self._taken: tuple[Callable[[ScanManifest], ScanManifest], ...] = ()  # of which rows it has some

    @property
    def storage(self) -> Storage:
        """Options of the file system."""
        return self._place.storage

    # -- before rows are read -------------------------------------------------------------------

    def planned(
        self, features: Columns, label: Columns | None, weight: ColumnLike | None, ragged: bool
    ) -> TablePlan:
        """Return the plan of some columns.

        DataError names a path that executors cannot see, or a column that is missing or no tensor.
        """
        found = self._files()
        if self._given is not None or found.selected:
            self._filter = RowFilter.of(pc.scalar(True) if self._given is None else self._given, found)
        plan = plan_schema(found.schema, found.values.schema, features, label, weight, ragged)
        if self._filter is None:
            self._check_folders(plan, range(len(found.files)))
        return plan

    def _check_folders(self, plan: TablePlan, files: Iterable[int]) -> None:
        """Check that no folder gives null to rows of these files."""
        found = self._files()
        for column in plan.columns:
            if column.source in found.values.schema.names:
                null = found.values.column(column.source).is_null().to_numpy(zero_copy_only=False)
                for file in files:
                    if null[file]:
                        raise DataError(
                            f"{column.role} {column.source!r} is null in {found.files[file].path}, as "
                            "its folder says; drop or fill nulls first",
                            code="data-null",
                        )

    def _files(self) -> Listing:
        """Return the files, and what is known of their columns."""
        if self._listed is None:
            task = partial(list_files, self._place)
            (found,) = self._run("list the files", self.access.one_task(_ONE), task)
            self._listed = Listing.of(found)
            self._place = self._place.pinned(self._listed)
        return self._listed

    def _run(self, what: str, frames: Frames, task: Any) -> list[frame.Frame]:
        try:
            with described(self.access, f"sparkdl: {what}"):
                return checked(self.access.collect(self.access.stage(frames, task)))
        finally:
            self.access.unpersist(frames, wait=True)  # with what it has shuffled

    def manifest(self, plan: TablePlan) -> ScanManifest:
        """Return the manifest; a job reads the footers once."""
        if self._manifest is None:
            self._whole = found = self._whole or self._footers(plan)
            if not found.rows.sum():
                which = "the Dataset is empty"
                if found.selected is not None:
                    which = f"of {found.selected.rows.sum():,} rows none is left"
                raise DataError(f"{which}: there is nothing to train on", code="data-empty")
            if found.selected is not None:
                self._check_folders(plan, np.unique(found.file[found.rows > 0]).tolist())
            for taken in self._taken:
                found = taken(found)
            if not found.rows.sum():
                raise DataError("no row is left for training or for validation", code="data-empty")
            self._manifest = found
        if plan.columns != self._manifest.columns and all(
            c.shape is not None and c.dtype for c in plan.columns
        ):
            streams = self._streams or streams_for(
                self._manifest.rows, plan.row_bytes, self._window, len(plan.columns)
            )
            self._manifest = self._manifest.resolved(plan.columns, self._window, streams)
        return self._manifest

    def _footers(self, plan: TablePlan) -> ScanManifest:
        listing = self._files()
        files, values = listing.files, listing.values
        names = dict.fromkeys(column.source for column in plan.columns)
        in_folders = [name for name in values.schema.names if name in names]
        of_filter = () if self._filter is None else self._filter.columns
        in_files = [name for name in (*names, *of_filter) if name not in values.schema.names]
        types = {name: str(listing.schema.field(name).type) for name in in_files}
        available = self.access.executors()
        tasks = max(min(len(files), available.count * available.tasks), -(-len(files) // _MOST_FILES))
        cuts = [len(files) * n // tasks for n in range(tasks + 1)]

        def pieces() -> Iterator[tuple[int, Parts]]:
            for task in range(tasks):
                first, end = cuts[task : task + 2]
                some = {n - first: mask for n, mask in listing.selected.items() if first <= n < end}
                meta = {"first": first, "files": files[first:end], "selected": [str(n) for n in some]}
                arrays = {f"selected/{n}": mask.view(np.uint8) for n, mask in some.items()}
                arrays["values"] = packed(values.slice(first, end - first))
                yield task, frame.pack(meta, arrays)

        roles = dict.fromkeys(of_filter, ROLE) | {c.source: c.role for c in plan.columns}
        where, numbers, mapped = self._place.where, listing.numbers, listing.mapped
        read = ReadFooters(where, types, roles, self._filter, self.storage, numbers, mapped)
        found = self._run("read the footers", self.access.scattered(pieces(), tasks), read)
        found.sort(key=lambda message: int(message.meta["first"]))
        groups = np.concatenate([message.arrays["groups"] for message in found])
        rows, left, bits = (
            np.concatenate([message.arrays[name] for message in found]) for name in ("rows", "left", "bits")
        )
        file = np.repeat(np.arange(len(files)), groups)
        number = np.arange(len(rows)) - np.repeat(np.cumsum(groups) - groups, groups)
        selected = None if self._filter is None else SelectedRows.of(rows, left, bits)
        folders = values.select(in_folders)
        return ScanManifest(self._place.where, tuple(files), file, number, left, folders, selected=selected)

    # -- see StoreSource -----------------------------------------------------------------------------

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`StoreSource`."""
        manifest = replace(self.manifest(plan), columns=plan.columns)
        first = FirstRows(frame.join(manifest.pack()), rows, self.storage)
        (found,) = self._run("look at the first rows", self.access.one_task(_ONE), first)
        return {column.key: _column(found.arrays, column.key) for column in plan.columns}

    def first(self, rows: int) -> StoreSource:
        """See :class:`StoreSource`."""
        found = self._with(lambda manifest: manifest.first(rows))
        found._streams = _STREAMS_OF_SAMPLES
        return found

    def part(self, plan: TablePlan, share: RowShare) -> ScanSource:
        """See :class:`StoreSource`, and :meth:`ScanManifest.part`."""
        self.manifest(plan)  # whose footers are read once for all shares
        return self._with(lambda manifest: manifest.part(share))

    def _with(self, taken: Callable[[ScanManifest], ScanManifest]) -> ScanSource:
        found = copy.copy(self)
        found._manifest = found._sent = None
        found._taken = (*self._taken, taken)
        return found

    def most_partitions(self, plan: TablePlan) -> int:
        """See :class:`StoreSource`."""
        return self.manifest(plan).streams

    def tokens(self, access: Access, plan: TablePlan, store: str, partitions: Partitions) -> Frames:
        """See :class:`StoreSource`."""
        manifest = self.manifest(plan)
        assert isinstance(partitions, int)
        if partitions > manifest.streams:
            raise ConfigError(
                f"num_partitions={partitions}: the {np.count_nonzero(manifest.rows)} row groups are dealt to "
                f"{manifest.streams} streams, so expected at most {manifest.streams}; streams={partitions} "
                "allows more, for which large row groups are cut and read several times; files with more "
                "row groups do it without"
            )
        executors = access.executors().count
        if partitions == manifest.streams < executors and self._streams is None:
            warnings.warn(
                f"the files have {np.count_nonzero(manifest.rows)} row groups, for {manifest.streams} "
                f"partitions at most, and there are {executors} executors. Write more row groups; streams= "
                "allows more partitions, for which large row groups are cut and read several times",
                UserWarning,
                stacklevel=5,
            )
        place, broadcasts = self.placing(plan, store, partitions)
        empty: Iterable[tuple[int, bytes]] = ((number, _ONE) for number in range(partitions))
        return access.stage(access.scattered(empty, partitions), place, broadcasts)

    def placing(self, plan: TablePlan, store: str, partitions: int) -> tuple[PlaceManifest, list[Any]]:
        """Return what puts the manifest where ranks are, and the broadcasts that it reads."""
        if self._sent is None:
            self._sent = self.access.send(frame.join(self.manifest(plan).pack()))
        place = PlaceManifest(store, self._sent.ref, partitions, self.storage, self.cache_bytes)
        return place, self._sent.broadcasts

    def shown(self) -> dict[str, object]:
        """See :class:`StoreSource`."""
        manifest = self._manifest
        if manifest is None:
            return {}
        listed = self._files()
        version: dict[str, object] = {} if listed.version is None else {"version": f"{listed.version:,}"}
        left = {}
        if manifest.selected is not None:
            left["left"] = f"{manifest.rows.sum():,} of {manifest.selected.rows.sum():,} rows"
        cache = {"cache": f"{self.cache_bytes:,} bytes on each executor"} if self.cache_bytes else {}
        return version | {
            "files": f"{len(manifest.files):,}",
            "row groups": f"{len(manifest.rows):,}, in {manifest.streams} streams",
            "window": f"{manifest.streams * manifest.window:,} rows",
            **left,
            **cache,
        }

    def release(self) -> None:
        """See :class:`StoreSource`."""
        self._manifest = self._whole = self._listed = None
        super().release()


def _column(arrays: Any, key: str) -> Array:
    """Return a column that :class:`FirstRows` has sent."""
    if key in arrays:
        return np.array(arrays[key])
    rows = [name for name in arrays if name.rpartition("/")[0] == key]
    return ragged.of_rows([np.array(arrays[f"{key}/{index}"]) for index in range(len(rows))])

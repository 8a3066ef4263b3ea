"""All rows of a Dataset in one place on each executor that needs them, shared by the tasks there.

A task of a search trains on all rows, but each executor has its partitions only. The driver reads the
partition store in blocks, one at a time, and makes each a broadcast. The first task on an executor writes the
blocks into one partition of raw column files; all tasks there map these files, so the rows are in its memory
once, whatever the number of trials. Shares and folds are views of the same files.

Of rows that stay in their files each share and fold is a scan of its own, of which the first task on an
executor writes the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sparkdl.access.alone import AloneAccess, LazyFrames
from sparkdl.access.base import Access, BytesRef, Frames, Published, described
from sparkdl.data import ragged
from sparkdl.data.collate import Collate
from sparkdl.data.columns import ColumnPlan, TablePlan
from sparkdl.data.dataset import Dataset, Transform
from sparkdl.data.sampler import in_order
from sparkdl.data.scan.source import ScanSource
from sparkdl.data.scan.tasks import PlaceManifest
from sparkdl.data.store import partition as store
from sparkdl.data.store.build import Partitions, StoreSource
from sparkdl.data.store.partition import StoreBatch, Token
from sparkdl.data.streams import RowShare
from sparkdl.session import TRANSPORT
from sparkdl.train.checkpoint.lock import alone_in
from sparkdl.train.passes.sweep import sweep
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Parts
from sparkdl.wire.private import local_folders, make_folder

BLOCK_BYTES = 32 << 20
"""So many bytes of rows, about, pass through the driver's memory at a time."""

_ALL = "all"
_LENGTHS = ".lengths"
_ORDER = "order"


@dataclass(frozen=True, slots=True)
class SharedRows:
    """All rows of a Dataset, as tasks get at them."""

    rows: DriverRows | Scans  # in blocks, or in the files where they lie
    plan: TablePlan  # their columns
    transform: Transform | None  # of the Dataset
    collate: Collate | None  # of the Dataset

    def dataset(self, part: RowShare | None = None) -> Dataset:
        """Return rows as a Dataset of this process alone; called in tasks."""
        return Dataset(
            None,  # type: ignore[arg-type]  # there is no session in a task
            self.plan,
            _TokenSource(self.rows.token(part)),
            1,
            self.transform,
            self.collate,
            access=AloneAccess({TRANSPORT: "shuffle"}),  # nobody else listens
        )


@dataclass(frozen=True, slots=True)
class Scans:
    """Rows that stay in their files."""

    # by name of a part, what writes its manifest; that of all rows has no name
    parts: Mapping[str, PlaceManifest]

    def token(self, part: RowShare | None) -> Token:
        """Return the token of some rows; the manifest is written if this executor lacks it."""
        place = self.parts["" if part is None else part.name]
        return _placed(place.store, lambda: Token.from_frame(frame.unpack(*place(0, iter(())))))


@dataclass(frozen=True, slots=True)
class DriverRows:
    """Rows that the driver has read."""

    store: str  # names the rows' folder on an executor
    blocks: tuple[BytesRef, ...]  # the rows, in the order of partitions
    columns: tuple[ColumnPlan, ...]  # their columns

    def token(self, part: RowShare | None) -> Token:
        """Return the token of some rows in the order of their source, written if this executor lacks them."""
        token = _placed(self.store, self._write)
        return token if part is None else store.view_of(token, part.name, part.rows(token.rows))

    def _write(self) -> Token:
        token = store.write_partition(self.store, 0, "", self.columns, self._batches())
        positions = in_order(token).positions()
        if (np.diff(positions) < 0).any():
            token = store.view_of(token, _ORDER, np.argsort(positions, kind="stable"))
        return token

    def _batches(self) -> Iterator[StoreBatch]:
        for block in self.blocks:
            arrays = frame.unpack(block.read(once=True)).arrays
            positions = arrays["positions"]
            columns = {
                key: ragged.split(arrays[key], np.cumsum(arrays[f"{key}{_LENGTHS}"]))
                if f"{key}{_LENGTHS}" in arrays
                else arrays[key]
                for key in (column.key for column in self.columns)
            }
            yield positions, columns


def _placed(name: str, write: Callable[[], Token]) -> Token:
    """Return the token that the first task of an executor got when it wrote what is shared."""
    folder = local_folders()[0] / "sparkdl" / name
    make_folder(folder)
    found = folder / "token"
    with alone_in(str(folder)):
        if not found.exists():
            draft = found.with_suffix(".draft")
            draft.write_bytes(write().to_frame())
            draft.rename(found)
        return Token.from_frame(frame.unpack(found.read_bytes()))


@contextmanager
def shared(data: Dataset, parts: Collection[RowShare | None]) -> Iterator[tuple[SharedRows, list[Any]]]:
    """Make rows of a Dataset available to tasks; yields how, and the broadcasts that they read.

    The Dataset's own store is used as it is; nothing else stays at the end. Tasks will ask for ``parts``;
    ``None`` is all rows.
    """
    name = f"shared-{data.id}"
    with ExitStack() as stack:
        stack.callback(_if_alive, data.access, partial(_delete, data.access, name))
        data.peek()
        source = data.source
        rows, broadcasts = (
            _scans(source, data, name, parts, stack)
            if isinstance(source, ScanSource)
            else _blocks(data, name, stack)
        )
        yield SharedRows(rows, data.plan, data.transform, data.collate), broadcasts


def _scans(
    source: ScanSource, data: Dataset, name: str, parts: Collection[RowShare | None], stack: ExitStack
) -> tuple[Scans, list[Any]]:
    placing: dict[str, PlaceManifest] = {}
    broadcasts: list[Any] = []
    for part in parts:
        own, key = source, ""  # the manifest of all rows is the Dataset's, which may have sent it
        if part is not None:
            own, key = source.part(data.plan, part), part.name
            stack.callback(_if_alive, data.access, own.release)
        placing[key], sent = own.placing(data.plan, f"{name}/{key or _ALL}", 1)
        broadcasts += sent
    return Scans(placing), broadcasts


def _blocks(data: Dataset, name: str, stack: ExitStack) -> tuple[DriverRows, list[Any]]:
    access, sent = data.access, list[Published]()
    for token in data.store().partitions:
        size = max(1, BLOCK_BYTES // max(1, token.nbytes // max(token.rows, 1)))
        for first in range(0, token.rows, size):
            read = partial(_read_block, token.partition, first, size)
            describe = f"sparkdl tune: read rows of partition {token.partition}"
            found = [
                message
                for message in sweep(
                    access, data, read, [], describe=describe, doing="reading the rows to share"
                )
                if message.arrays
            ]
            sent.append(access.send(frame.join(frame.pack(found[0].meta, found[0].arrays))))
            stack.callback(_if_alive, access, sent[-1].release)
    refs = tuple(published.ref for published in sent)
    broadcasts = [broadcast for published in sent for broadcast in published.broadcasts]
    return DriverRows(name, refs, data.plan.columns), broadcasts


def _if_alive(access: Access, release: Callable[[], None]) -> None:
    if access.is_alive():
        release()


def _delete(access: Access, name: str) -> None:
    with described(access, "sparkdl tune: delete the shared rows"):
        access.run_on_executors(partial(store.delete_store, name))


def _read_block(
    wanted: int, first: int, size: int, partition: int, frames: Iterator[bytes]
) -> Iterator[bytes | Parts]:
    """Read some rows of one partition, as one frame, and nothing of others."""
    (token,) = [Token.from_frame(frame.unpack(data)) for data in frames]
    if partition != wanted:
        return
    try:
        rows = in_order(token, first, size)
        columns = rows.read()
        arrays: dict[str, Array] = {"positions": rows.positions()}
    except store.PartitionMissingError:
        yield store.missing(partition)
        return
    for key, values in columns.items():
        if values.dtype == object:
            arrays[key], arrays[f"{key}{_LENGTHS}"] = ragged.joined(values)
        else:
            arrays[key] = values
    yield frame.pack({"kind": "rows", "partition": partition}, arrays)


class _TokenSource(StoreSource):
    """Rows that lie in files of this executor."""

    def __init__(self, token: Token) -> None:
        self._token = token

    def peek(self, plan: TablePlan, rows: int) -> dict[str, Array]:
        """See :class:`sparkdl.data.store.build.StoreSource`."""
        return in_order(self._token, size=rows).read()

    def tokens(self, access: Access, plan: TablePlan, name: str, partitions: Partitions) -> Frames:
        """See :class:`sparkdl.data.store.build.StoreSource`."""
        # One partition that has all rows in their order has them as if they were dealt to it.
        return LazyFrames(1, lambda _: [replace(self._token, dealt=1).to_frame()])

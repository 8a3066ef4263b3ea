"""Dataset: rows of a DataFrame, RDD or arrays, kept as tensors where the executors are."""

from __future__ import annotations

import copy
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import SparkSession

from sparkdl import html
from sparkdl.access import Access, access_to
from sparkdl.access.base import described
from sparkdl.data import sampler, schema
from sparkdl.data.collate import Collate, padding_of
from sparkdl.data.columns import (
    Column,
    ColumnLike,
    ColumnPlan,
    Columns,
    TablePlan,
    plan_columns,
)
from sparkdl.data.convert import check_unmasked
from sparkdl.data.elements import (
    ArraySource,
    RddSource,
    TorchSource,
    check_rdd,
    plan_element,
    plan_items,
)
from sparkdl.data.ragged import ANY, kind_of
from sparkdl.data.scan.delta import DeltaVersion
from sparkdl.data.scan.files import absolute
from sparkdl.data.scan.iceberg import IcebergSnapshot
from sparkdl.data.scan.listing import ParquetFolders
from sparkdl.data.scan.source import WINDOW, ScanSource
from sparkdl.data.scan.storage import checked_storage
from sparkdl.data.store.build import Partitions, PartitionStore, StoredShare, StoreSource, build_store, delete
from sparkdl.data.store.dataframe import DataFrameSource
from sparkdl.data.store.manifest import check_same_rows
from sparkdl.data.streams import RowShare
from sparkdl.exceptions import ConfigError, DataError, is_integer
from sparkdl.wire.frame import Array

if TYPE_CHECKING:
    from pyspark import RDD

__all__ = ["Column", "Dataset", "Partitions", "Transform"]

Transform = Callable[[Any], Any]
"""From the feature tensors of a batch, grouped as the module gets them, to the same grouping."""

_PEEK_ROWS = 2  # BatchNorm in training mode needs more than one


class Dataset:
    """Training or validation rows, as tensors in the executors' local directories or in files where they lie.

    Build one with :meth:`from_dataframe` or another of the methods that begin with ``from_``. Checks of the
    schema happen at once. Rows of :meth:`from_parquet`, :meth:`from_delta` and :meth:`from_iceberg` stay in
    their files; others are converted when they are first needed and kept until :meth:`release` (or the end
    of a ``with`` block, or of the application).

    Attributes:
        spark: the session whose executors hold the rows.
        plan: the columns and how they group.
        source: gives the rows.
        feature_columns: names of the columns that the features are made of.
        num_partitions: what the Dataset was made with.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: TablePlan,
        source: StoreSource,
        num_partitions: Partitions,
        transform: Transform | None,
        collate: Collate | None = None,
        *,
        access: Access | None = None,
    ) -> None:
        if num_partitions not in (None, "input") and not is_integer(num_partitions, 1):
            raise ConfigError(
                f"num_partitions={num_partitions!r}: expected a positive integer, 'input' to keep the "
                "source's partitions, or None for one per executor"
            )
        if num_partitions == "input" and isinstance(source, ScanSource):
            raise ConfigError(
                "num_partitions='input' needs a DataFrame or RDD: row groups are dealt to partitions anew in "
                "each epoch"
            )
        self.access: Access = access or access_to(spark)
        self.access.check_files()
        self.spark = spark
        self.source = source
        self.num_partitions = num_partitions
        self.plan = plan
        self._peeked: dict[str, Array] | None = None
        self._first: dict[str, Array] | None = None
        self._store: PartitionStore | None = None
        self.for_one_fit = False  # whether the job that ends the fit that reads it deletes its files
        self._lock = threading.RLock()
        if collate is not None and not callable(collate):
            raise ConfigError(f"collate={collate!r:.100}: expected a callable such as sparkdl.data.Pad()")
        self.transform = transform
        self.collate = padding_of(plan) if collate is None else collate
        self.feature_columns: Sequence[str] = plan.sources(plan.features)
        self.id = uuid.uuid4().hex

    # -- sources ------------------------------------------------------------------------------

    @classmethod
    def from_dataframe(
        cls,
        df: Any,
        *,
        features: Columns,
        label: Columns | None = None,
        weight: ColumnLike | None = None,
        num_partitions: Partitions = None,
        transform: Transform | None = None,
        collate: Collate | None = None,
    ) -> Dataset:
        """Use columns of a DataFrame.

        Args:
            df: any DataFrame of Spark, or one of pandas, whose rows are sent to the executors.
            features: one column for a module with one input, a list for positional inputs, a dict
                for keyword inputs. A column is a name or a :class:`Column` with shape and dtype.
            label: likewise for what the loss gets; ``None`` if the loss compares output and input.
            weight: column of non-negative sample weights, one number per row.
            num_partitions: one per executor by default; a number; or ``"input"`` to keep the
                DataFrame's own partitions without a shuffle.
            transform: applied in the tasks to the feature tensors of each batch, for example to
                scale uint8 images; random augmentation may use torch's generator.
            collate: makes a batch of a list of rows, as ``collate_fn`` of torch's ``DataLoader`` does. Rows
                are ``(features, label)``, or ``features`` without a label. With it, arrays without an
                explicit shape may differ in length; :class:`sparkdl.data.Pad` pads them.

        Raises:
            DataError: naming a column that is missing or cannot become a tensor.
        """
        if schema.is_pandas(df):
            plan, arrays = schema.plan_pandas(df, features, label, weight, ragged=collate is not None)
            _check_lengths(arrays)
            return cls(_session(None), plan, ArraySource(arrays), num_partitions, transform, collate)
        schema.check_dataframe(df, "Dataset.from_dataframe")
        schema.check_no_stream(df, "Dataset.from_dataframe")
        vectors = schema.vector_columns(df)
        plan, expressions = schema.plan_dataframe(df, features, label, weight, ragged=collate is not None)
        source = DataFrameSource(df, expressions, vectors)
        return cls(df.sparkSession, plan, source, num_partitions, transform, collate)

    @classmethod
    def from_rdd(
        cls,
        rdd: RDD[Any],
        *,
        has_label: bool = True,
        has_weight: bool = False,
        num_partitions: Partitions = None,
        transform: Transform | None = None,
        collate: Collate | None = None,
    ) -> Dataset:
        """Use an RDD of ``features``, ``(features, label)`` or ``(features, label, weight)``.

        Args:
            rdd: features and label are numbers, arrays, tuples of them or dicts of them; all
                elements alike.
            has_label: whether elements carry a label.
            has_weight: whether elements carry a weight, as the last item.
            num_partitions: as in :meth:`from_dataframe`.
            transform: as in :meth:`from_dataframe`.
            collate: as in :meth:`from_dataframe`.

        Raises:
            ConfigError: if it is no RDD; on Spark Connect there are none.
            DataError: if the RDD is empty or its first element is not as announced.
        """
        check_rdd(rdd)
        first = rdd.take(1)
        if not first:
            raise DataError("the RDD is empty: there is nothing to train on", code="data-empty")
        plan = plan_element(first[0], has_label, has_weight, collate is not None)
        return cls(_session(None), plan, RddSource(rdd), num_partitions, transform, collate)

    @classmethod
    def from_torch(
        cls,
        dataset: Any,
        *,
        spark: SparkSession | None = None,
        has_label: bool = True,
        num_partitions: int | None = None,
        transform: Transform | None = None,
        collate: Collate | None = None,
    ) -> Dataset:
        """Use a map-style dataset of torch: ``len(dataset)`` items ``dataset[i]``, which tasks read.

        The dataset travels to the executors by pickle: one that reads files must find them there. Items are
        read once, when the store is built; random augmentation belongs into ``transform``. Tensors keep
        their dtype.

        Args:
            dataset: items are ``(features, label)``, or ``features`` without a label: tensors, numbers,
                arrays, tuples of them or dicts of them; all items alike.
            spark: session; the active one by default.
            has_label: whether items carry a label.
            num_partitions: one per executor by default; at most 20,160. Items are dealt in turn.
            transform: as in :meth:`from_dataframe`.
            collate: as in :meth:`from_dataframe`; a ``collate_fn`` of torch's ``DataLoader``.

        Raises:
            ConfigError: if it is no map-style dataset, or cannot be pickled.
            DataError: if it is empty, or its first item is not as announced.
        """
        plan = plan_items(dataset, has_label, collate is not None)
        return cls(_session(spark), plan, TorchSource(dataset), num_partitions, transform, collate)

    @classmethod
    def from_parquet(
        cls,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        features: Columns,
        label: Columns | None = None,
        weight: ColumnLike | None = None,
        filter: Any = None,
        num_partitions: int | None = None,
        transform: Transform | None = None,
        collate: Collate | None = None,
        window: int = WINDOW,
        streams: int | None = None,
        cache_bytes: int = 0,
        storage_options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
    ) -> Dataset:
        """Use columns of Parquet files where they lie: tasks read them in each epoch, and nothing is copied.

        The files must stay as they are, where all executors see them. Shuffled, an epoch takes its row groups
        in random order, and mixes the rows of some of them at a time.

        Args:
            paths: a file or folder, or several: paths or URLs that pyarrow reads. Files of a folder come by
                name, without those that begin with ``_`` or ``.``. Names of folders in it, such as ``day=1``,
                are columns.
            features: as in :meth:`from_dataframe`. ML vectors must have been written as arrays.
            label: likewise.
            weight: likewise.
            filter: which rows are read: an expression of Arrow, such as ``pc.field("age") > 17`` with
                ``import pyarrow.compute as pc``, or tuples as of ``pandas.read_parquet``, which all must be
                true: ``[("age", ">", 17), ("state", "in", ["NY", "CA"])]``. Columns of folders count. Rows
                for which it is null are left out. It is worked out once, before the first step.
            num_partitions: one per executor by default; at most ``streams``.
            transform: as in :meth:`from_dataframe`.
            collate: likewise.
            window: bytes of rows that are mixed with each other at a time, of all executors together; a
                Python process keeps so many at most (256 MiB).
            streams: among how many sequences of row groups an epoch is dealt, at most 840. By default a
                fourth of the row groups or fewer, as many as fill the window. With more, large row groups are
                cut, and read several times.
            cache_bytes: of decoded row groups that each executor keeps on its disk, so that it reads and
                decodes them once; 0 for none.
            storage_options: of ``s3://`` URLs: ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``,
                ``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, and ``TIMEOUT`` of a request in
                seconds. By default what the executors have in their environment, which renews itself where
                such tokens expire. Executors keep them in files that their user alone can read, as long as
                the Dataset is in use; no checkpoint, log or page has them.
            spark: session; the active one by default.

        Raises:
            ConfigError: if an argument cannot work.
            DataError: naming the path that executors cannot see, or the column that is missing or cannot
                become a tensor.
        """
        found = absolute(paths)
        place = ParquetFolders(tuple(found), checked_storage(storage_options, found))
        spark = _session(spark)
        source = ScanSource(access_to(spark), place, window, streams, filter, cache_bytes)
        return cls._scanned(spark, source, (features, label, weight), num_partitions, transform, collate)

    @classmethod
    def from_delta(
        cls,
        path: str | os.PathLike[str],
        version: int | None = None,
        *,
        features: Columns,
        label: Columns | None = None,
        weight: ColumnLike | None = None,
        filter: Any = None,
        num_partitions: int | None = None,
        transform: Transform | None = None,
        collate: Collate | None = None,
        window: int = WINDOW,
        streams: int | None = None,
        cache_bytes: int = 0,
        storage_options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
    ) -> Dataset:
        """Use columns of one version of a Delta table where it lies, as :meth:`from_parquet` does with files.

        The version stays the same if the table goes on being written to. A task lists its files, by the
        package deltalake, which executors need: ``pip install 'sparkdl[delta]'``.

        Args:
            path: of the table: a path or URL.
            version: its number; the last one by default.
            features: as in :meth:`from_parquet`.
            label: likewise.
            weight: likewise.
            filter: likewise.
            num_partitions: likewise.
            transform: likewise.
            collate: likewise.
            window: likewise.
            streams: likewise.
            cache_bytes: likewise.
            storage_options: likewise.
            spark: session; the active one by default.

        Raises:
            ConfigError: if an argument cannot work, or deltalake is missing.
            DataError: as in :meth:`from_parquet`; or if the version maps names of columns or asks readers for
                something that is not known; or naming the file that is not there any more.
        """
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"path={path!r:.100}: expected a path or URL of a Delta table")
        if version is not None and not is_integer(version, 0):
            raise ConfigError(
                f"version={version!r:.100}: expected the number of a version, or None for the last"
            )
        found = absolute(path)
        place = DeltaVersion(found[0], version, checked_storage(storage_options, found))
        spark = _session(spark)
        source = ScanSource(access_to(spark), place, window, streams, filter, cache_bytes)
        return cls._scanned(spark, source, (features, label, weight), num_partitions, transform, collate)

    @classmethod
    def from_iceberg(
        cls,
        table: str | os.PathLike[str],
        snapshot: int | None = None,
        *,
        catalog: Mapping[str, str] | None = None,
        features: Columns,
        label: Columns | None = None,
        weight: ColumnLike | None = None,
        filter: Any = None,
        num_partitions: int | None = None,
        transform: Transform | None = None,
        collate: Collate | None = None,
        window: int = WINDOW,
        streams: int | None = None,
        cache_bytes: int = 0,
        storage_options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
    ) -> Dataset:
        """Use columns of one snapshot of an Iceberg table where it lies, as :meth:`from_parquet` does.

        The snapshot stays the same if the table goes on being written to. A task lists its files, by the
        package pyiceberg, which executors need: ``pip install 'sparkdl[iceberg]'``. Rows that positional
        deletes delete are not read.

        Args:
            table: name of the table in the catalog, such as ``"shop.sales"``; without a catalog the path or
                URL of the table's metadata, ``.../metadata/....metadata.json``.
            snapshot: its number; the current one by default.
            catalog: properties of the catalog, as ``pyiceberg.catalog.load_catalog`` takes them:
                ``{"type": "rest", "uri": "https://..."}``. Tasks open it; no checkpoint, log or page has
                them.
            features: as in :meth:`from_parquet`.
            label: likewise.
            weight: likewise.
            filter: likewise.
            num_partitions: likewise.
            transform: likewise.
            collate: likewise.
            window: likewise.
            streams: likewise.
            cache_bytes: likewise.
            storage_options: likewise.
            spark: session; the active one by default.

        Raises:
            ConfigError: if an argument cannot work, or pyiceberg is missing.
            DataError: as in :meth:`from_parquet`; or if the snapshot has equality deletes, deletion vectors
                or files that are not Parquet, or a column has been renamed; or naming the file that is not
                there any more.
        """
        if not isinstance(table, str | os.PathLike) or not os.fspath(table):
            raise ConfigError(f"table={table!r:.100}: expected a table's name, or the path of its metadata")
        if snapshot is not None and (isinstance(snapshot, bool) or not isinstance(snapshot, int)):
            raise ConfigError(f"snapshot={snapshot!r:.100}: expected a number, or None for the current one")
        if catalog is not None and not isinstance(catalog, Mapping):
            raise ConfigError(f"catalog: expected a dict of properties, got a {type(catalog).__name__}")
        found = absolute(table) if catalog is None else [str(table)]
        # Of a table in a catalog only the listing tells where its files are.
        storage = checked_storage(storage_options, found if catalog is None else ["s3://"])
        given = None if catalog is None else {str(name): str(value) for name, value in catalog.items()}
        place = IcebergSnapshot(found[0], snapshot, given, storage)
        spark = _session(spark)
        source = ScanSource(access_to(spark), place, window, streams, filter, cache_bytes)
        return cls._scanned(spark, source, (features, label, weight), num_partitions, transform, collate)

    @classmethod
    def _scanned(
        cls,
        spark: SparkSession,
        source: ScanSource,
        columns: tuple[Columns, Columns | None, ColumnLike | None],
        num_partitions: int | None,
        transform: Transform | None,
        collate: Collate | None,
    ) -> Dataset:
        """Return the Dataset of rows that stay in their files."""
        access = source.access
        with described(access, "sparkdl: list the files"):
            plan = source.planned(*columns, collate is not None)
        return cls(spark, plan, source, num_partitions, transform, collate, access=access)

    @classmethod
    def from_numpy(
        cls,
        features: Array | Sequence[Array] | Mapping[str, Array],
        label: Array | Sequence[Array] | Mapping[str, Array] | None = None,
        weight: Array | None = None,
        *,
        spark: SparkSession | None = None,
        num_partitions: int | None = None,
        transform: Transform | None = None,
    ) -> Dataset:
        """Use arrays of the driver; each array's first dimension counts rows.

        Args:
            features: an array, a list of arrays for positional inputs, a dict for keyword inputs.
            label: likewise, or ``None``.
            weight: non-negative sample weights, shape (rows,).
            spark: session; the active one by default.
            num_partitions: one per executor by default; at most 20,160.
            transform: as in :meth:`from_dataframe`.

        Raises:
            DataError: if the arrays differ in length, are empty, or have masked values.
        """
        if weight is not None and np.ndim(weight) != 1:
            raise DataError(
                f"weight has shape {np.shape(weight)}; expected one number per row, shape (rows,)",
                code="data-shape",
            )
        weight = np.asarray(weight) if isinstance(weight, list) else weight  # one column, not several
        arrays: dict[str, Array] = {}

        def plan_one(key: str, array: Any, _role: str) -> ColumnPlan:
            check_unmasked(array, f"column {key!r}")
            arrays[key] = np.asarray(array)
            return ColumnPlan(key, key)  # columns without names of their own have their keys

        plan = plan_columns(features, label, weight, plan_one, arrays=True)
        _check_lengths(arrays)
        return cls(_session(spark), plan, ArraySource(arrays), num_partitions, transform)

    # -- what it holds ------------------------------------------------------------------------

    def peek(self) -> dict[str, Array]:
        """Return the first rows (at most two) as arrays by column key, before any store is built.

        Raises:
            DataError: if there are no rows, or the first ones cannot be converted.
        """
        with self._lock:
            if self._peeked is None:
                self.access.check_alive()
                with described(self.access, "sparkdl: look at the first rows"):
                    rows = self.source.peek(self.plan, _PEEK_ROWS)
                if not rows or not len(next(iter(rows.values()))):
                    raise DataError("the Dataset is empty: there is nothing to train on", code="data-empty")
                columns = tuple(c.resolved(*kind_of(rows[c.key])) for c in self.plan.columns)
                self.plan = replace(self.plan, columns=columns)
                self._peeked = rows
            return self._peeked

    def first_rows(self, count: int) -> dict[str, Array]:
        """Return as many rows: the first ones, repeated side by side if there are fewer; for trials.

        Where one of them cannot be converted, which the build of the store tells, those of :meth:`peek` stand
        for all.
        """
        with self._lock:
            peeked = self.peek()
            if self._first is None or len(next(iter(self._first.values()))) != count:
                try:
                    with described(self.access, "sparkdl: look at the first rows"):
                        found = self.source.peek(self.plan, count)
                except DataError:
                    found = peeked
                self._first = {
                    key: np.take(values, np.sort(np.arange(count) % len(values)), axis=0)
                    for key, values in found.items()
                }
            return self._first

    def store(self) -> PartitionStore:
        """Build the partition store if it is not built yet, and return it.

        Raises:
            DataError: naming the column and row that cannot become a tensor.
        """
        with self._lock:
            self.access.check_alive()
            if self._store is None:
                self.peek()
                available = self.access.executors()
                alone = min(available.count, self.source.most_partitions(self.plan))
                count = alone if self.num_partitions is None else self.num_partitions
                self._store = build_store(self.access, self.source, self.plan, self.id, count, available)
            return self._store

    def stores_of_one_fit(self) -> list[PartitionStore]:
        """Return the store whose files the job that ends a fit deletes, if there is one."""
        store = self._store if self.for_one_fit else None
        return [] if store is None or not store.owns_files else [store]

    @contextmanager
    def repartitioned(self, num_partitions: int) -> Iterator[PartitionStore]:
        """Build a store with another number of partitions, to stay in use if the block succeeds.

        The rows keep their positions in the source. The store that was in use is deleted at the end; if the
        block fails, the new one is, and the old one is in use again. What the Dataset was made with stays:
        after :meth:`release` that counts again.

        Raises:
            DataError: if the rows cannot be read, or are others than before.
            TaskError: if a task keeps failing.
        """
        with self._lock:
            old = self.store()
            if len(old.partitions) == num_partitions:
                yield old
                return
            available = self.access.executors()
            new = build_store(
                self.access, self.source, self.plan, uuid.uuid4().hex, num_partitions, available
            )
            self._store = new
            try:
                check_same_rows(old.partitions, new.partitions)
                yield new
            except BaseException:
                self._store = old
                delete(self.access, new)
                raise
            delete(self.access, old)

    def part(self, share: RowShare) -> Dataset:
        """Return a Dataset of a share of the rows; DataError if it is empty.

        Of rows that stay in their files it is a scan of its own. Otherwise it takes its share of each
        partition, and has the store's files: it costs 8 bytes per row, its numbers in these files.
        """
        source, given = self.source.part(self.plan, share), self.num_partitions
        if source is not None:
            most = source.most_partitions(self.plan)
            return self._with(source, min(given, most) if isinstance(given, int) else given)
        stored = self.store().rows
        if not sum(map(share.count, stored)):
            raise DataError(
                f"no row is left for training or for validation: a share from {share.begin:g} to "
                f"{share.end:g} is taken of each partition, and the largest has {max(stored)} rows; choose "
                "another share",
                code="data-empty",
            )
        return self._with(StoredShare(self.peek, self.store, share), len(stored))

    def split(self, fraction: float, seed: int) -> list[Dataset]:
        """Divide a DataFrame's rows for training and validation; DataError if it gives others each time."""
        found = [self._with(part, None) for part in self.source.split(self.plan, fraction, seed)]
        for what, part in zip(("training", "validation"), found, strict=True):
            try:
                part.peek()
            except DataError as error:
                if error.code != "data-empty":
                    raise
                left = f"validation={fraction!r}: no row is left for {what}; choose another share, or give "
                raise DataError(f"{left}fit(df, validation=other_df)", code="data-empty") from None
        return found

    def sample(self, rows: int, num_partitions: int | None) -> Dataset:
        """Return a Dataset of the first rows, all if the source cannot be cut; no store need be built."""
        return self._with(self.source.first(rows), num_partitions)

    def _with(self, source: StoreSource, num_partitions: Partitions) -> Dataset:
        """Return a Dataset of other rows in the same columns."""
        other = copy.copy(self)
        other.source, other.num_partitions = source, num_partitions
        other._peeked = other._first = other._store = None
        other.for_one_fit = False
        other._lock, other.id = threading.RLock(), uuid.uuid4().hex
        return other

    def __len__(self) -> int:
        """Number of rows; builds the store."""
        return sum(self.store().rows)

    def iterations_per_epoch(self, batch_size: int) -> int:
        """Return the number of iterations of one pass over the rows."""
        return sampler.iterations_per_epoch(len(self), batch_size)

    def __repr__(self) -> str:
        columns = ", ".join(f"{c.source}: {_kind(c)}" for c in self.plan.columns)
        return f"Dataset({columns})"

    def _repr_html_(self) -> str:
        roles = dict.fromkeys(self.plan.features.keys, "features")
        roles |= dict.fromkeys(self.plan.label.keys, "label")
        rows = [(c.source, roles.get(c.key, "weight"), _kind(c)) for c in self.plan.columns]
        facts: dict[str, object] = {"partitions": self.num_partitions or "one per executor"}
        if self._store is not None:  # showing it starts no job
            parts = self._store.partitions
            facts = {
                "rows": f"{sum(self._store.rows):,}",
                "partitions": f"{len(parts)} of {', '.join(map(str, self._store.rows[:8]))}"
                f"{', ...' if len(parts) > 8 else ''} rows",
                "on the executors": html.amount(sum(token.nbytes for token in parts)),
                **self.source.shown(),
            }
        return html.block("Dataset", facts, html.table(["column", "role", "tensor"], rows))

    # -- release ------------------------------------------------------------------------------

    def release(self) -> None:
        """Delete the rows from the executors. The Dataset rebuilds them if it is used again."""
        with self._lock:
            store, self._store = self._store, None
            if not self.access.is_alive():
                return
            try:
                if store is not None:
                    delete(self.access, store)
            finally:
                self.source.release()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _session(spark: SparkSession | None) -> SparkSession:
    """Return a session: the active one by default."""
    return spark or SparkSession.builder.getOrCreate()


def _check_lengths(arrays: Mapping[str, Array]) -> None:
    lengths = {key: len(array) if array.ndim else 0 for key, array in arrays.items()}
    if len(set(lengths.values())) != 1 or not all(lengths.values()):
        raise DataError(f"arrays must have one length of at least 1, got {lengths}", code="data-shape")


def _kind(column: ColumnPlan) -> str:
    """Return dtype and shape of a row, as far as they are known."""
    shape = "" if column.shape is None else str(list(column.shape)).replace(str(ANY), "any")
    return f"{column.dtype or 'not read yet'}{shape}"

"""Dataset: rows of a DataFrame, RDD or arrays, kept as tensors where the executors are."""

from __future__ import annotations

import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sparkdl import frame, session
from sparkdl._spark import FrameJobs, JavaObject, frames_of, is_job_failure, task_error
from sparkdl.data import build, sampler
from sparkdl.data.columns import (
    ROW_ID,
    Column,
    ColumnLike,
    ColumnPlan,
    Columns,
    Structure,
    TablePlan,
    make_plan,
    plan_dataframe,
    structure_of,
)
from sparkdl.data.manifest import Manifest, check_same_rows
from sparkdl.data.store import Token, delete_store
from sparkdl.data.tables import check_dataframe, check_no_stream, is_pandas, plan_pandas
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.frame import Array
from sparkdl.pieces import cut

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Column", "Dataset", "Partitions", "Transform"]

Transform = Callable[[Any], Any]
"""From the feature tensors of a batch, grouped as the module gets them, to the same grouping."""

Partitions = int | Literal["input"] | None
_ARROW_BATCH_BYTES = 8 << 20
_TASK_BYTES = 512 << 10  # of arrays that a task brings from the driver; Spark warns of 1,000 KiB
_PEEK_ROWS = 2  # BatchNorm in training mode needs more than one


MAX_REBUILDS = 5
"""How often a job is run again because it found parts of the store missing."""


@dataclass(frozen=True, slots=True)
class Store:
    """A built partition store.

    Attributes:
        tokens: persisted RDD of token frames, one per partition.
        partitions: the tokens as they were when built, by partition.
        executors: what the cluster offered when it was built.
    """

    tokens: JavaObject
    partitions: tuple[Token, ...]
    executors: session.Executors

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each partition."""
        return tuple(token.rows for token in self.partitions)

    @property
    def manifest(self) -> Manifest:
        """What tasks expect to find."""
        return Manifest.of(self.partitions)


class Dataset:
    """Training or validation rows, kept as tensors in the executors' local directories.

    Build one with :meth:`from_dataframe`, :meth:`from_rdd` or :meth:`from_numpy`. Checks of the
    schema happen at once; the rows are converted when they are first needed and kept until
    :meth:`release` (or the end of a ``with`` block, or of the application).
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: TablePlan,
        source: _Source,
        num_partitions: Partitions,
        transform: Transform | None,
    ) -> None:
        if num_partitions not in (None, "input") and (
            not isinstance(num_partitions, int) or isinstance(num_partitions, bool) or num_partitions < 1
        ):
            raise ConfigError(
                f"num_partitions={num_partitions!r}: expected a positive integer, 'input' to keep the "
                "source's partitions, or None for one per executor"
            )
        session.check_encryption(spark)
        self._spark = spark
        self._source = source
        self._num_partitions = num_partitions
        self._plan = plan
        self._peeked: dict[str, Array] | None = None
        self._store: Store | None = None
        self._lock = threading.RLock()
        self.transform = transform
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
    ) -> Dataset:
        """Use columns of a DataFrame.

        Args:
            df: any DataFrame of classic Spark (not Spark Connect), or one of pandas, whose rows are
                sent to the executors.
            features: one column for a module with one input, a list for positional inputs, a dict
                for keyword inputs. A column is a name or a :class:`Column` with shape and dtype.
            label: likewise for what the loss gets; ``None`` if the loss compares output and input.
            weight: column of non-negative sample weights, one number per row.
            num_partitions: one per executor by default; a number; or ``"input"`` to keep the
                DataFrame's own partitions without a shuffle.
            transform: applied in the tasks to the feature tensors of each batch, for example to
                scale uint8 images; random augmentation may use torch's generator.

        Raises:
            DataError: naming a column that is missing or cannot become a tensor.
        """
        if is_pandas(df):
            from pyspark.sql import SparkSession

            plan, arrays = plan_pandas(df, features, label, weight)
            _check_lengths(arrays)
            spark = SparkSession.builder.getOrCreate()
            return cls(spark, plan, _ArraySource(arrays), num_partitions, transform)
        check_dataframe(df, "Dataset.from_dataframe")
        if not hasattr(df, "_jdf"):
            raise DataError(
                f"expected a classic Spark DataFrame, got {type(df).__module__}.{type(df).__name__}; "
                "Spark Connect has no RDDs, so training needs a classic session",
                code="data-connect",
            )
        check_no_stream(df, "Dataset.from_dataframe")
        plan, expressions = plan_dataframe(df, features, label, weight)
        return cls(df.sparkSession, plan, _DataFrameSource(df, expressions), num_partitions, transform)

    @classmethod
    def from_rdd(
        cls,
        rdd: RDD[Any],
        *,
        has_label: bool = True,
        has_weight: bool = False,
        num_partitions: Partitions = None,
        transform: Transform | None = None,
    ) -> Dataset:
        """Use an RDD of ``features``, ``(features, label)`` or ``(features, label, weight)``.

        Args:
            rdd: features and label are numbers, arrays, tuples of them or dicts of them; all
                elements alike.
            has_label: whether elements carry a label.
            has_weight: whether elements carry a weight, as the last item.
            num_partitions: as in :meth:`from_dataframe`.
            transform: as in :meth:`from_dataframe`.

        Raises:
            DataError: if the RDD is empty or its first element is not as announced.
        """
        from pyspark.sql import SparkSession

        first = rdd.take(1)
        if not first:
            raise DataError("the RDD is empty: there is nothing to train on", code="data-empty")
        parts = 1 + has_label + has_weight
        if parts > 1 and (not isinstance(first[0], tuple | list) or len(first[0]) != parts):
            raise DataError(
                f"expected elements that are tuples of {parts}, got {first[0]!r:.200}", code="data-shape"
            )
        values = list(first[0]) if parts > 1 else [first[0]]
        features = structure_of(values[0], "features")
        label = structure_of(values[1] if has_label else None, "label")
        plan = make_plan(features, label, _unnamed(features, label), has_weight)
        spark = SparkSession.builder.getOrCreate()
        return cls(spark, plan, _RddSource(rdd), num_partitions, transform)

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
            num_partitions: one per executor by default.
            transform: as in :meth:`from_dataframe`.

        Raises:
            DataError: if the arrays differ in length or are empty.
        """
        from pyspark.sql import SparkSession

        weight = None if weight is None else np.asarray(weight)
        if weight is not None and weight.ndim != 1:
            raise DataError(
                f"weight has shape {weight.shape}; expected one number per row, shape (rows,)",
                code="data-shape",
            )
        groups = {"features": features, "label": label, "weight": weight}
        structures = {role: structure_of(value, role) for role, value in groups.items()}
        arrays: dict[str, Array] = {}
        for role, value in groups.items():
            arrays |= {k: np.asarray(v) for k, v in structures[role].disassemble(value).items()}
        _check_lengths(arrays)
        sources = _unnamed(structures["features"], structures["label"])
        weighted = weight is not None
        plan = make_plan(structures["features"], structures["label"], sources, weighted, arrays=True)
        return cls(
            spark or SparkSession.builder.getOrCreate(), plan, _ArraySource(arrays), num_partitions, transform
        )

    # -- what it holds ------------------------------------------------------------------------

    @property
    def spark(self) -> SparkSession:
        """The session whose executors hold the rows."""
        return self._spark

    @property
    def plan(self) -> TablePlan:
        """The columns and how they group."""
        return self._plan

    def peek(self) -> dict[str, Array]:
        """Return the first rows (at most two) as arrays by column key, before any store is built.

        Raises:
            DataError: if there are no rows, or the first ones cannot be converted.
        """
        with self._lock:
            if self._peeked is None:
                session.check_alive(self._spark)
                with _described(self._spark, "look at the first rows"):
                    rows = self._source.peek(self._spark, self._plan, _PEEK_ROWS)
                if not rows or not len(next(iter(rows.values()))):
                    raise DataError("the Dataset is empty: there is nothing to train on", code="data-empty")
                columns = tuple(
                    c.resolved(str(rows[c.key].dtype), tuple(rows[c.key].shape[1:]))
                    for c in self._plan.columns
                )
                self._plan = replace(self._plan, columns=columns)
                self._peeked = rows
            return self._peeked

    def store(self) -> Store:
        """Build the partition store if it is not built yet, and return it.

        Raises:
            DataError: naming the column and row that cannot become a tensor.
        """
        with self._lock:
            session.check_alive(self._spark)
            if self._store is None:
                self.peek()
                available = session.executors(self._spark)
                count = available.count if self._num_partitions is None else self._num_partitions
                self._store = self._build(self.id, count, available)
            return self._store

    @property
    def num_partitions(self) -> Partitions:
        """What the Dataset was made with."""
        return self._num_partitions

    @contextmanager
    def repartitioned(self, num_partitions: int) -> Iterator[Store]:
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
            available = session.executors(self._spark)
            new = self._build(uuid.uuid4().hex, num_partitions, available)
            self._store = new
            try:
                check_same_rows(old.partitions, new.partitions)
                yield new
            except BaseException:
                self._store = old
                self._delete(new)
                raise
            self._delete(old)

    def _build(self, store: str, partitions: Partitions, available: session.Executors) -> Store:
        jobs = FrameJobs(self._spark.sparkContext)
        with _described(self._spark, "build the partition store"):
            tokens = self._source.tokens(self._spark, self._plan, store, partitions)
            jobs.persist(tokens)
            try:
                try:
                    found = tuple(Token.from_frame(frame.unpack(f)) for f in jobs.collect(tokens))
                except Exception as error:
                    if is_job_failure(error):
                        raise task_error(error, "building the partition store") from None
                    raise
                _verify(found)
            except BaseException:
                with suppress(Exception):  # the error that is on its way says more
                    jobs.run_on_executors(partial(delete_store, store))
                tokens.unpersist(False)
                raise
        _warn_if_uneven(found, available)
        return Store(tokens, found, available)

    def __len__(self) -> int:
        """Number of rows; builds the store."""
        return sum(self.store().rows)

    def iterations_per_epoch(self, batch_size: int) -> int:
        """Return the number of iterations of one pass over the rows."""
        return sampler.iterations_per_epoch(len(self), batch_size)

    # -- release ------------------------------------------------------------------------------

    def release(self) -> None:
        """Delete the rows from the executors. The Dataset rebuilds them if it is used again."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None and session.is_alive(self._spark.sparkContext):
            self._delete(store)

    def _delete(self, store: Store) -> None:
        jobs = FrameJobs(self._spark.sparkContext)
        try:
            with _described(self._spark, "release the partition store"):
                jobs.run_on_executors(partial(delete_store, store.partitions[0].store))
        finally:
            store.tokens.unpersist(True)

    def __enter__(self) -> Dataset:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


@contextmanager
def _described(spark: SparkSession, doing: str) -> Iterator[None]:
    """Name the jobs of a block in the Spark UI."""
    jobs = FrameJobs(spark.sparkContext)
    jobs.describe(f"sparkdl: {doing}")
    try:
        yield
    finally:
        jobs.describe(None)


def _check_lengths(arrays: Mapping[str, Array]) -> None:
    lengths = {key: len(array) if array.ndim else 0 for key, array in arrays.items()}
    if len(set(lengths.values())) != 1 or not all(lengths.values()):
        raise DataError(f"arrays must have one length of at least 1, got {lengths}", code="data-shape")


def _unnamed(features: Structure, label: Structure) -> dict[str, ColumnPlan]:
    """Plans for sources whose columns have no names of their own: the keys name them."""
    return {key: ColumnPlan(key, key) for key in (*features.keys, *label.keys, "weight")}


def _verify(tokens: Sequence[Token]) -> None:
    """Check that all partitions were written and agree on dtypes and shapes."""
    for token in tokens:
        if token.error:
            raise DataError(token.error)
    filled = [token for token in tokens if token.rows]
    if not filled:
        raise DataError("the Dataset is empty: there is nothing to train on", code="data-empty")
    for token in filled[1:]:
        if token.columns != filled[0].columns:
            raise DataError(
                f"partition {token.partition} has columns {token.columns}, partition "
                f"{filled[0].partition} has {filled[0].columns}; all rows must have one shape",
                code="data-shape",
            )


def _warn_if_uneven(tokens: Sequence[Token], available: session.Executors) -> None:
    """Say when partitions lie on fewer executors than they could."""
    used = len({token.executor for token in tokens})
    if used < min(len(tokens), available.count):
        warnings.warn(
            f"{len(tokens)} partitions lie on {used} of {available.count} executors, so iterations take "
            "longer than they need to; release() and rebuild when all executors are idle",
            UserWarning,
            stacklevel=4,
        )


# -- sources ------------------------------------------------------------------------------------


class _Source:
    """Where rows come from."""

    def peek(self, spark: SparkSession, plan: TablePlan, rows: int) -> dict[str, Array]:
        """Return the first rows as arrays by column key; empty if there are none."""
        raise NotImplementedError

    def tokens(self, spark: SparkSession, plan: TablePlan, store: str, partitions: Partitions) -> JavaObject:
        """Return the lazy RDD whose tasks write the store and yield tokens."""
        raise NotImplementedError


class _DataFrameSource(_Source):
    def __init__(self, df: DataFrame, expressions: list[Any]) -> None:
        self._df = df
        self._expressions = expressions
        self._planned: DataFrame | None = None

    def _numbered(self, spark: SparkSession) -> DataFrame:
        """Return the selected columns, planned once.

        A plan made later may cut the files into other partitions, for more executors have come, and
        number the rows otherwise.
        """
        if self._planned is None:
            from pyspark.sql import DataFrame

            selected = self._selected(self._df)
            rows = selected._jdf.queryExecution().toRdd()
            schema = selected._jdf.schema()
            planned = spark._jsparkSession.internalCreateDataFrame(rows, schema, False)
            self._planned = DataFrame(planned, spark)
        return self._planned

    def _selected(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return df.select(F.monotonically_increasing_id().alias(ROW_ID), *self._expressions)

    def peek(self, spark: SparkSession, plan: TablePlan, rows: int) -> dict[str, Array]:
        first = self._selected(self._df).limit(rows).collect()
        return build.convert_rows(plan, first) if first else {}

    def tokens(self, spark: SparkSession, plan: TablePlan, store: str, partitions: Partitions) -> JavaObject:
        df = self._numbered(spark)
        if isinstance(partitions, int):
            # Rows arrive from a shuffle in any order; sorting by their id makes every build the same.
            df = df.repartition(partitions).sortWithinPartitions(ROW_ID)
        written = df.mapInArrow(build.arrow_writer(store, plan.columns), "token binary")
        rows_per_batch = max(1, min(10_000, _ARROW_BATCH_BYTES // max(plan.row_bytes, 1)))
        with _SqlConf(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", str(rows_per_batch)):
            tokens = written.rdd.mapPartitions(_unwrap_token)
            return frames_of(tokens)


def _unwrap_token(rows: Iterable[Any]) -> Iterator[bytes]:
    for row in rows:
        yield bytes(row[0])


class _SqlConf:
    """Set a SQL conf while a plan is made; one thread at a time, for the session's confs are shared."""

    _lock = threading.Lock()

    def __init__(self, spark: SparkSession, name: str, value: str) -> None:
        self._spark, self._name, self._value = spark, name, value

    def __enter__(self) -> None:
        self._lock.acquire()
        self._before = self._spark.conf.get(self._name, None)
        self._spark.conf.set(self._name, self._value)

    def __exit__(self, *_: object) -> None:
        try:
            if self._before is None:
                self._spark.conf.unset(self._name)
            else:
                self._spark.conf.set(self._name, self._before)
        finally:
            self._lock.release()


class _RddSource(_Source):
    def __init__(self, rdd: RDD[Any]) -> None:
        self._rdd = rdd

    def peek(self, spark: SparkSession, plan: TablePlan, rows: int) -> dict[str, Array]:
        first = self._rdd.take(rows)
        return build.stack_rows(plan, first, [(0, i) for i in range(len(first))]) if first else {}

    def tokens(self, spark: SparkSession, plan: TablePlan, store: str, partitions: Partitions) -> JavaObject:
        positioned = self._rdd.mapPartitionsWithIndex(_with_position)
        if isinstance(partitions, int):
            positioned = positioned.repartitionAndSortWithinPartitions(
                partitions, partial(_spread, partitions=partitions)
            )
        return frames_of(positioned.mapPartitionsWithIndex(build.rows_writer(store, plan)))


def _with_position(partition: int, elements: Iterable[Any]) -> Iterator[tuple[tuple[int, int], Any]]:
    for row, element in enumerate(elements):
        yield (partition, row), element


def _spread(position: tuple[int, int], partitions: int) -> int:
    """Deal rows out in turn, starting at another partition for each input partition."""
    return sum(position) % partitions


class _ArraySource(_Source):
    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays

    def peek(self, spark: SparkSession, plan: TablePlan, rows: int) -> dict[str, Array]:
        return build.convert_numpy(plan, {key: array[:rows] for key, array in self._arrays.items()})

    def tokens(self, spark: SparkSession, plan: TablePlan, store: str, partitions: Partitions) -> JavaObject:
        if not isinstance(partitions, int):
            raise ConfigError("num_partitions='input' needs a DataFrame or RDD: arrays have no partitions")
        rows = len(next(iter(self._arrays.values())))
        bounds = [p * rows // partitions for p in range(partitions + 1)]
        chunks = (
            (p, build.pickled(lo, {key: array[lo:hi] for key, array in self._arrays.items()}))
            for p, (lo, hi) in enumerate(pairwise(bounds))
        )
        # Through a shuffle: what the driver holds travels with every task that descends from it, which
        # here would be each task of each iteration. In pieces: Spark warns of larger tasks.
        jobs = FrameJobs(spark.sparkContext)
        pieces = ((p, piece) for p, chunk in chunks for piece in cut(p, [chunk], _TASK_BYTES))
        shuffled = jobs.shuffle(jobs.scattered(pieces), partitions)
        return jobs.stage(jobs.values(shuffled), build.arrays_writer(store, plan))

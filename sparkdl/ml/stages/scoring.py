"""A batch job that survives: rows are scored and written in pieces, and a job that died goes on where it was.

The folder's mark says what the job is: digests of the model's parts, columns, files and number of rows of the
DataFrame. A later call compares them with its own, and the pieces that are there with the rows that they came
from, before it writes anything. Tasks write the pieces by themselves, see :mod:`sparkdl.ml.stages.pieces`:
neither the driver nor Spark commits anything.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl._spark.errors import explained
from sparkdl.access import models_in
from sparkdl.access.models import digest_of
from sparkdl.data.columns import quoted
from sparkdl.data.schema import check_dataframe
from sparkdl.data.sparse import passed
from sparkdl.exceptions import ConfigError, DataError, SparkdlWarning
from sparkdl.ml.persistence.stored import literal
from sparkdl.ml.stages.inference import Inference, Prepared, inference_of, prepare
from sparkdl.ml.stages.pieces import REPORT, Pieces, PieceTask
from sparkdl.saved.digest import stable_digest
from sparkdl.saved.integrity import of_json
from sparkdl.train.hooks.progress import open_bar

logger = logging.getLogger("sparkdl")

_FORMAT = 2
_PIECES, _LEAST, _MOST = 1000, 100, 100_000  # rows of a piece: a thousandth, for so much is lost with a task
_LOOK_S = 1.0
_SPLITS = "spark.sql.files.minPartitionNum"
"""How Spark cuts files follows from the number of cores if this is not set."""
_CONFS = (_SPLITS, "spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
_ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"
_UNKNOWN = (
    "the module holds a lambda or a function within a function, by which no other process knows it again"
)
_UNWRITABLE = (
    "CalendarIntervalType",
    "DayTimeIntervalType",
    "TimeType",
    "VariantType",
    "YearMonthIntervalType",
)


def score(model: Any, df: DataFrame, path: str, *, resume: bool, progress: bool) -> DataFrame:
    """Score the rows of a DataFrame into a folder; see :meth:`TorchModel.score`."""
    check_dataframe(df, f"{type(model).__name__}.score")
    if df.isStreaming:
        raise ConfigError("score() takes a table, and this is a stream: use transform(df).writeStream")
    spark, path = df.sparkSession, path if "://" in path else os.path.abspath(path)
    inference = inference_of(model, df)
    _check_columns(df, inference)
    prepared = prepare(df, inference, direct=True)
    with explained("scoring"):
        found = _on_cluster(spark, lambda: Pieces(path).mark())
    if found and not resume:
        raise ConfigError(
            f"path={path!r} holds a job of score() already: resume=True goes on with it; or choose another "
            "folder",
            code="config-resume",
        )
    before = _read(found, path) if found else None
    with _same_splits(spark, None if before is None else before["confs"]) as confs:
        with explained("scoring"):
            rows = prepared.df.count()
        size = max(_LEAST, min(_MOST, rows // _PIECES))
        job = {"format": _FORMAT, "confs": confs, "size": size, **_described(df, inference, rows)}
        mark = found or json.dumps({**job, "seal": of_json(job)}, indent=1).encode()
        if before is not None:
            _check_same(before, job, path)
            job = before
        elif job["model"]["module"] is None:
            warnings.warn(
                SparkdlWarning(
                    f"{_UNKNOWN}, so a job that dies cannot go on. Define it at the top of a file",
                    code="config-resume",
                ),
                stacklevel=3,
            )
        given, task = _job(df, prepared, path, mark, job["size"])

        def run(task: PieceTask) -> list[Any]:
            return given.mapInArrow(lambda batches: task(batches), REPORT).collect()

        with _bar(path, rows, enabled=progress), explained("scoring"), models_in(spark).cancelled():
            if before is None:
                _on_cluster(spark, lambda: Pieces(path).begin(mark))
            else:
                _check_partitions(len(run(replace(task, writes=False))), spark, path)
            reports = run(task)
            counts = {row.partition: row.rows for row in reports}
            _on_cluster(spark, lambda: task.finish(counts, rows))
    written = spark.read.parquet(literal(path if "://" in path else f"file://{path}"))
    if inference.errors:
        with explained("scoring"):  # of all pieces, those that were there before, too
            failed = written.where(quoted(inference.errors).isNotNull()).count()
        if failed:
            logger.warning(
                "%d of %d rows could not be scored; column %r says why", failed, rows, inference.errors
            )
    return written


# -- what the job is -------------------------------------------------------------------------------


def _check_columns(df: DataFrame, inference: Inference) -> None:
    """Check that rows can be written."""
    if not inference.outputs:
        raise ConfigError("all names of output columns are empty: there is nothing to write")
    seen: set[str] = set()
    exact = df.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
    for field in df.schema.fields:
        if field.name.lower() in seen:
            raise DataError(
                f"column {field.name!r} is in the DataFrame twice; rename one of them", code="data-column"
            )
        seen.add(field.name.lower())
        types = list(_types(field.dataType))
        for struct in (each for each in types if isinstance(each, T.StructType)):
            names = [name if exact else name.lower() for name in struct.names]
            if len(set(names)) < len(names):
                sensitive = "" if exact else "; spark.sql.caseSensitive=false"
                raise DataError(
                    f"column {field.name!r} has a struct with two fields of one name "
                    f"({', '.join(struct.names)}{sensitive}), which files cannot have; rename one",
                    code="data-column",
                )
        for name in _UNWRITABLE:
            kind = getattr(T, name, None)
            if kind is not None and any(isinstance(each, kind) for each in types):
                raise DataError(
                    f"column {field.name!r} has type {field.dataType.simpleString()}, which score() does not "
                    "write; cast it, to a string for example",
                    code="data-type",
                )


def _types(data_type: T.DataType) -> Iterator[T.DataType]:
    """Yield a type, and all in it."""
    yield data_type
    if isinstance(data_type, T.StructType):
        for field in data_type.fields:
            yield from _types(field.dataType)
    if isinstance(data_type, T.ArrayType):
        yield from _types(data_type.elementType)
    if isinstance(data_type, T.MapType):
        yield from _types(data_type.keyType)
        yield from _types(data_type.valueType)


def _described(df: DataFrame, inference: Inference, rows: int) -> dict[str, Any]:
    """Return what a job must have in common with the one that it goes on with."""
    files = sorted(df.inputFiles())
    return {
        "model": {
            "module": stable_digest(inference.module),
            "inputs": stable_digest(inference.inputs),
            "outputs": stable_digest(inference.outputs),
            "encoding": stable_digest(inference.encoding),
            "handleInvalid": inference.handle_invalid,
            "errorCol": inference.errors,
        },
        "columns": {field.name: field.dataType.simpleString() for field in df.schema.fields},
        "files": {"number": len(files), "digest": of_json(files)},
        "rows": rows,
    }


def _read(mark: bytes, path: str) -> dict[str, Any]:
    try:
        found = json.loads(mark)
        seal = found.pop("seal")
        fits = seal == of_json(found) and found["format"] == _FORMAT
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise ConfigError(
            f"path={path!r}: its mark is damaged, or of another sparkdl; choose another folder",
            code="config-resume",
        )
    return dict(found)


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any], path: str) -> None:
    """Check that a job is the one that a folder holds."""
    if now["model"]["module"] is None:
        raise ConfigError(
            f"path={path!r} holds rows already: {_UNKNOWN}. Define it at the top of a file, and begin in "
            "another folder",
            code="config-resume",
        )
    begun = f"path={path!r} holds the rows of another job"
    for name, value in now["model"].items():
        if before["model"].get(name) != value:
            raise ConfigError(
                f"{begun}: its model has another value of {name}. Go on with that model, or choose another "
                "folder",
                code="config-resume",
            )
    had, has = before["columns"], now["columns"]
    if list(had.items()) != list(has.items()):
        other = [name for name in {**had, **has} if had.get(name) != has.get(name)]
        found = [f"{name} is {has.get(name, 'missing')}, was {had.get(name, 'missing')}" for name in other]
        raise DataError(
            f"{begun}: its DataFrame has other columns: {', '.join(found) or 'their order'}",
            code="data-changed",
        )
    if before["files"] != now["files"]:
        raise DataError(
            f"{begun}: its DataFrame reads other files ({before['files']['number']}, now "
            f"{now['files']['number']})",
            code="data-changed",
        )
    if before["rows"] != now["rows"]:
        raise DataError(
            f"{begun}: its DataFrame has {before['rows']} rows, this one {now['rows']}", code="data-changed"
        )


@contextmanager
def _same_splits(spark: SparkSession, confs: Mapping[str, str] | None) -> Iterator[dict[str, str]]:
    """Let Spark cut files as it did before, on however many cores; yields the confs that say how."""
    own: dict[str, str | None] = {name: spark.conf.get(name, None) for name in _CONFS}
    chosen = dict(confs or {name: value for name, value in own.items() if value is not None})
    if _SPLITS not in chosen:
        ids = spark.range(1 << 16).select(F.spark_partition_id().alias("id"))
        chosen[_SPLITS] = str(1 + (ids.agg({"id": "max"}).collect()[0][0] or 0))
    try:
        for name, value in chosen.items():
            with suppress(Exception):  # where a session does not allow it, rows are compared all the same
                spark.conf.set(name, value)
        yield chosen
    finally:
        for name in chosen:
            with suppress(Exception):
                old = own.get(name)
                spark.conf.unset(name) if old is None else spark.conf.set(name, old)


# -- what runs in the tasks ------------------------------------------------------------------------


def _job(df: DataFrame, prepared: Prepared, path: str, mark: bytes, size: int) -> tuple[DataFrame, PieceTask]:
    """Return the rows with all that a task needs of them, and the task."""
    source, columns = prepared.df, df.columns
    arguments: list[SqlColumn] = []
    places = []
    direct = prepared.encoding is None
    chosen = passed(prepared.plan.columns)[0] if direct else range(len(prepared.arguments))
    for n, argument in zip(chosen, prepared.arguments, strict=True):
        if direct:
            places.append(columns.index(prepared.plan.columns[n].source))
            continue
        places.append(len(columns) + len(arguments))
        arguments.append(argument.alias(f"sparkdl_{len(arguments)}"))
    hashes = [_hash(quoted(field.name), field.dataType) for field in df.schema.fields]
    hashed = F.xxhash64(*hashes).alias("sparkdl_hash")
    written = T.StructType([*df.schema.fields, *prepared.columns])
    task = PieceTask(
        path=path,
        mark=digest_of(mark),
        size=size,
        scorer=prepared.scorer,
        arguments=tuple(places),
        names=tuple(field.name for field in prepared.columns),
        width=len(columns),
        metadata={_ROW_METADATA: written.json()},
        empty=_empty(written),
    )
    return source.select("*", *arguments, hashed), task


def _hash(column: SqlColumn, kind: T.DataType) -> SqlColumn:
    """Return a hash of each value; Spark's own passes over null, and over where an array ends."""
    if isinstance(kind, T.MapType):
        fields = [T.StructField("key", kind.keyType), T.StructField("value", kind.valueType)]
        return _hash(F.map_entries(column), T.ArrayType(T.StructType(fields)))
    if isinstance(kind, T.StructType):
        parts = [_hash(column.getField(field.name), field.dataType) for field in kind.fields]
        return F.xxhash64(column.isNull(), *parts)
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        flat = isinstance(element, T.NumericType) and not kind.containsNull
        return F.xxhash64(
            F.size(column), column if flat else F.transform(column, lambda value: _hash(value, element))
        )
    # Strings that a collation takes for equal have one hash.
    return F.xxhash64(column.cast("binary") if isinstance(kind, T.StringType) else column)


def _empty(schema: T.StructType) -> bytes:
    """Return the columns of a file without rows."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zoned = "timezone" in signature(to_arrow_schema).parameters
    needed: dict[str, Any] = {"timezone": "UTC"} if zoned else {}
    return bytes(to_arrow_schema(schema, **needed).serialize())


def _check_partitions(partitions: int, spark: SparkSession, path: str) -> None:
    """Check that there is a partition for each piece."""

    def find_last() -> bytes:
        return str(max((piece.partition for piece in Pieces(path).present()), default=-1)).encode()

    last = int(_on_cluster(spark, find_last))
    if last >= partitions:
        raise DataError(
            f"path={path!r} holds rows of partition {last}, but the DataFrame has {partitions} partitions "
            "now: give it in as many, or with the number of cores that it had",
            code="data-changed",
        )


def _on_cluster(spark: SparkSession, function: Callable[[], bytes | None]) -> bytes:
    """Call a function in a task: the folder is where tasks are, and need not be where the driver is."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_arrays([pa.array([function() or b""], pa.binary())], ["data"])

    return bytes(spark.range(0, 1, 1, 1).mapInArrow(run, "data binary").collect()[0][0])


# -- the bar ---------------------------------------------------------------------------------------


@contextmanager
def _bar(path: str, rows: int, *, enabled: bool) -> Iterator[None]:
    """Show rows, rows per second and the time left; it moves where the driver sees the folder, too."""
    if not enabled:
        yield
        return
    ended = threading.Event()

    def done() -> int:
        with suppress(Exception):  # it is not there, or not seen from here
            return sum(piece.rows for piece in Pieces(path).present())
        return 0

    def look() -> None:
        bar = open_bar("score", " rows", total=rows, initial=done(), unit_scale=True)
        try:
            while not ended.wait(_LOOK_S):
                bar.update(done() - bar.n)
            bar.update(done() - bar.n)
        finally:
            bar.close()

    thread = threading.Thread(target=look, name="sparkdl-score", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

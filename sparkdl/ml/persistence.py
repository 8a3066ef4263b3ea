"""Saving estimators and models where Spark can write, and reading them back.

A save writes a draft beside its place, ``.name.saving-...``, and renames it when complete. What an
overwrite replaces is renamed to ``.name.previous`` just before that, and deleted afterwards. Readers look
there if there is nothing under the name itself: at every moment one of the two can be read.
"""

from __future__ import annotations

import json
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self, TypeVar, cast

from pyspark.errors import AnalysisException
from pyspark.ml import Model
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.ml.attributes import ATTRIBUTES
from sparkdl.nn import saved, weights
from sparkdl.nn.saved import CODE, KEY, METADATA, WEIGHTS, Content

R = TypeVar("R", bound=MLReadable[Any])
JavaObject = Any

_GROUP_BYTES = 32 << 20  # of one file; a JVM of 1 GiB must have room for several copies of it
_CHUNK_BYTES = 960 << 10  # of a task; Spark warns of 1,000 KiB
_COLUMNS = "offset long, data binary"
_pickle_allowed: ContextVar[bool] = ContextVar("sparkdl pickle allowed", default=False)


@contextmanager
def allow_pickle() -> Iterator[None]:
    """Allow pickled code in all saves and loads inside of ``with``, in this thread.

    For pipelines and tuned models, which do not hand options on to their stages::

        with sparkdl.ml.allow_pickle():
            model = PipelineModel.load(path)

    Reading a pickle can run any code: only load what comes from someone you trust.
    """
    token = _pickle_allowed.set(True)
    try:
        yield
    finally:
        _pickle_allowed.reset(token)


class TorchWritable(MLWritable):
    """Mixin for estimators and models that :class:`TorchWriter` saves."""

    def write(self) -> TorchWriter:
        """Return a writer; options: ``pickle`` (``"true"`` to allow pickled code)."""
        return TorchWriter(self)


class TorchReadable(MLReadable[Any]):
    """Mixin for estimators and models that :class:`TorchReader` loads."""

    @classmethod
    def read(cls) -> TorchReader[Self]:
        """Return a reader; options: ``pickle`` (``"true"`` to allow pickled code)."""
        return TorchReader(cls)


class TorchWriter(MLWriter):
    """Saves an estimator or a model.

    Args:
        instance: what to save.
    """

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self.instance = instance

    def save(self, path: str) -> None:
        """Save to a path of any file system that Spark writes to.

        Args:
            path: folder that does not exist, unless :meth:`overwrite` was called.

        Raises:
            ConfigError: if there is something already, or a value needs a pickle that was not allowed.
            SerializationError: if a value cannot be pickled.
        """
        spark, path = self.sparkSession, str(path)
        if hasattr(spark, "_jsparkSession"):
            with replacing(spark, path, self.shouldOverwrite) as draft:
                self.saveImpl(draft)
            return
        if self.shouldOverwrite:
            raise ConfigError(
                "overwrite() needs a classic Spark session, for Spark Connect cannot rename folders: save "
                f"under a new name, {path!r} was not touched"
            )
        if _metadata(spark, path) is not None:
            raise _exists(path)
        self.saveImpl(path)

    def saveImpl(self, path: str) -> None:
        """Write to a folder that does not exist; its metadata last, as a mark that all is there."""
        content = content_of(self.instance)
        info, code = saved.describe(content, _allowed(self.optionMap))
        info["hyper"] = [param.name for param in self.instance.params if "." in param.name]
        if content.module is not None:
            _write(
                self.sparkSession, posixpath.join(path, WEIGHTS), weights.write(content.module, _CHUNK_BYTES)
            )
        if code is not None:
            _write(self.sparkSession, posixpath.join(path, CODE), _cut(code))
        spark = self.sparkSession
        text = DefaultParamsWriter._get_metadata_to_save(self.instance, spark, extraMetadata={KEY: info})
        spark.createDataFrame([(text,)], "value string").coalesce(1).write.text(
            posixpath.join(path, METADATA)
        )


class TorchReader(MLReader[R]):
    """Loads an estimator or a model.

    Args:
        cls: class of what is loaded.
    """

    def __init__(self, cls: type[R]) -> None:
        super().__init__()
        self.cls = cls
        self._options: dict[str, str] = {}

    def option(self, key: str, value: Any) -> Self:
        """Set an option: ``option("pickle", "true")`` allows to read pickled code."""
        self._options[key.lower()] = str(value)
        return self

    def load(self, path: str) -> R:
        """Load from a path of any file system that Spark reads, in Spark Connect too.

        Raises:
            ConfigError: if there is nothing that this version can read, if it is of another class, or holds
                a pickle that was not allowed.
            ModelError: if the module cannot be built, or the weights do not fit it.
        """
        spark, path = self.sparkSession, str(path)
        place = path
        metadata = _metadata(spark, path)
        if metadata is None:  # a save was cut off between two renames
            place = sibling(path, "previous")
            metadata = _metadata(spark, place)
        if metadata is None:
            raise ConfigError(f"path={path!r}: nothing complete was saved there", code="config-saved")
        info = saved.check(metadata, path)
        name = f"{self.cls.__module__}.{self.cls.__qualname__}"
        if metadata["class"] != name:
            found = metadata["class"].rpartition(".")[2]
            raise ConfigError(
                f"path={path!r} holds a {found}, expected a {self.cls.__name__}: {found}.load(...)",
                code="config-saved",
            )
        remedy = (
            f"{self.cls.__name__}.read().option('pickle', 'true').load(path), inside of a pipeline with "
            "sparkdl.ml.allow_pickle(): ..."
        )
        saved.check_pickle(info, path, _allowed(self._options), remedy)
        code = None
        if info["pickled"]:
            code = b"".join(piece.data for piece in _read(spark, posixpath.join(place, CODE)))
        content = saved.build(info, path, _read(spark, posixpath.join(place, WEIGHTS)), code)
        instance: Any = instance_of(self.cls, content)
        instance._resetUid(metadata["uid"])
        for name in info["hyper"]:  # tuned models look for these Params, set or not
            instance.getParam(name)
        DefaultParamsReader.getAndSetParams(instance, metadata)
        return cast(R, instance)


def content_of(instance: Any) -> Content:
    """Return what an estimator or a model holds besides Params."""
    if isinstance(instance, Model):
        model: Any = instance
        return Content(model.module, model.source, model.signature)
    values = {name: getattr(instance, name) for name in ATTRIBUTES}
    module = values["module"] if isinstance(values["module"], nn.Module) else None
    if module is not None:
        del values["module"]
    return Content(module, attributes=values)


def instance_of(cls: type[R], content: Content) -> R:
    """Make an estimator or a model that holds a content; the reverse of :func:`content_of`."""
    kind: Any = cls
    if issubclass(kind, Model):
        instance = kind(content.module, source=content.source, signature=content.signature)
    else:
        instance = kind()
        for name, value in content.attributes.items():
            setattr(instance, name, value)
        if content.module is not None:
            instance.module = content.module
    return cast(R, instance)


def save(instance: MLWritable, path: str, *, overwrite: bool = False) -> None:
    """Save any Spark ML instance so that what it overwrites stays readable until the new one is complete.

    Estimators and models of sparkdl do so by themselves. Spark's own, such as pipelines, delete first and
    write then; this writes them beside their place and renames.

    Args:
        instance: a pipeline or any other estimator, transformer or model.
        path: where to.
        overwrite: whether it may replace what is there.

    Raises:
        ConfigError: if there is something already and ``overwrite`` is not set.
    """
    spark = SparkSession.active()
    with replacing(spark, path, overwrite) as draft:
        instance.write().save(draft)


@contextmanager
def replacing(spark: SparkSession, path: str, overwrite: bool) -> Iterator[str]:
    """Give a path to write to; it becomes ``path`` at the end of ``with``, and is deleted on an error.

    Raises:
        ConfigError: if there is something already and ``overwrite`` is not set.
    """
    folders = _Folders(spark, path)
    target, previous = folders.path(path), folders.path(sibling(path, "previous"))
    fs = folders.fs
    if not overwrite and (fs.exists(target) or fs.exists(previous)):
        raise _exists(path)
    folders.delete_drafts()
    name = sibling(path, f"saving-{uuid.uuid4().hex}")
    draft = folders.path(name)
    try:
        yield name
        if fs.exists(target):
            fs.delete(previous, True)  # of an earlier save, which was cut off before it deleted it
            folders.rename(target, previous)
        folders.rename(draft, target)
    except BaseException:
        fs.delete(draft, True)
        if not fs.exists(target) and fs.exists(previous):
            folders.rename(previous, target)
        raise
    fs.delete(previous, True)


def sibling(path: str, ending: str) -> str:
    """Return the path of a hidden folder beside another."""
    folder, name = posixpath.split(path.rstrip("/"))
    return posixpath.join(folder, f".{name}.{ending}")


class _Folders:
    """Hadoop's file system of a path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: JavaObject = spark._jvm
        self.path = jvm.org.apache.hadoop.fs.Path
        self._pattern = self.path(sibling(path, "saving-*"))
        session: JavaObject = spark._jsparkSession
        self.fs = self._pattern.getFileSystem(session.sessionState().newHadoopConf())

    def rename(self, source: JavaObject, target: JavaObject) -> None:
        if not self.fs.rename(source, target):
            raise OSError(f"cannot rename {source.toString()} to {target.toString()}")

    def delete_drafts(self) -> None:
        """Delete what crashes have left half-written."""
        for status in self.fs.globStatus(self._pattern) or ():
            self.fs.delete(status.getPath(), True)


def _exists(path: str) -> ConfigError:
    return ConfigError(
        f"path={path!r} exists: choose another, or replace it with write().overwrite().save(path)"
    )


def _allowed(options: Mapping[str, str]) -> bool:
    value = options.get("pickle", "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f"option pickle={value!r}: expected 'true' or 'false'")
    return value == "true" or _pickle_allowed.get()


def _metadata(spark: SparkSession, path: str) -> dict[str, Any] | None:
    """Read the metadata; ``None`` if there is none."""
    try:
        row = spark.read.text(posixpath.join(path, METADATA)).first()
        value = None if row is None else json.loads(row[0])
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return None
        raise
    except ValueError as error:
        raise ConfigError(f"path={path!r}: its metadata is not JSON: {error}", code="config-saved") from error
    if not isinstance(value, dict):
        raise ConfigError(f"path={path!r} holds no metadata of Spark ML", code="config-saved")
    return value


def _cut(data: bytes) -> Iterator[weights.Chunk]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield weights.Chunk(start, data[start : start + _CHUNK_BYTES])


def _write(spark: SparkSession, path: str, pieces: Iterable[weights.Chunk]) -> None:
    """Write pieces, some at a time: neither driver nor task ever holds all of them."""
    mode = "error"
    rows: list[tuple[int, bytes]] = []

    def flush() -> None:
        nonlocal mode
        df = _in_small_tasks(spark, rows).repartition(1)
        df.write.mode(mode).option("compression", "none").parquet(path)
        mode = "append"
        rows.clear()

    for piece in pieces:
        if rows and sum(len(data) for _, data in rows) + len(piece.data) > _GROUP_BYTES:
            flush()
        rows.append((piece.offset, piece.data))
    if rows:
        flush()


def _in_small_tasks(spark: SparkSession, rows: list[tuple[int, bytes]]) -> DataFrame:
    """Return rows as a DataFrame, each in a task of its own, for tasks carry what the driver holds."""
    if not hasattr(spark, "_jsparkSession"):  # Connect has its own way
        return spark.createDataFrame(rows, _COLUMNS)
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, len(rows)), _COLUMNS)


def _read(spark: SparkSession, path: str) -> Iterator[weights.Chunk]:
    """Read pieces in order, some at a time: neither driver nor task ever holds all of them."""
    df = spark.read.schema(_COLUMNS).parquet(path)
    row = df.agg({"offset": "max"}).first()
    last = -1 if row is None or row[0] is None else row[0]
    for start in range(0, last + 1, _GROUP_BYTES):
        # whole files are passed over by the range of offsets in their footers
        rows = df.filter(f"offset >= {start} and offset < {start + _GROUP_BYTES}").collect()
        for offset, data in sorted(rows):
            yield weights.Chunk(offset, bytes(data))

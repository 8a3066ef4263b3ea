"""Saving estimators and models where Spark can write, and reading them back."""

from __future__ import annotations

import itertools
import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self, TypeVar, cast

from pyspark.ml import Model
from pyspark.ml.util import DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import SparkSession
from torch import nn

from sparkdl.access import models_in
from sparkdl.exceptions import ConfigError
from sparkdl.ml.params.attributes import ATTRIBUTES
from sparkdl.ml.persistence.replacing import cannot_replace, exists_already, replacing, sibling
from sparkdl.ml.persistence.stored import (
    check_class,
    explained,
    literal,
    read_metadata,
    set_params,
    write_metadata,
)
from sparkdl.ml.persistence.trusting import trusted
from sparkdl.saved import content as saved
from sparkdl.saved import integrity, weights
from sparkdl.saved.content import Content
from sparkdl.saved.metadata import CODE, KEY, METADATA, WEIGHTS, check, seal
from sparkdl.saved.moved import OPTIONS
from sparkdl.saved.trust import LISTED_ONLY, Entry, Trust
from sparkdl.table.encoding import read_table, table_of

R = TypeVar("R", bound=MLReadable[Any])

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
        """Return a reader; options: ``pickle`` (``"true"`` to allow pickled code) and ``trust``."""
        return TorchReader(cls)

    @classmethod
    def load(cls, path: str, *, trust: Entry | Iterable[Entry] = ()) -> Self:
        """Load from a path of any file system that Spark reads; short for ``read().load(path)``.

        Args:
            path: where it was saved.
            trust: packages, modules or classes that it may name besides those of torch, torchmetrics and
                sparkdl: ``["mypackage.nets"]``, or ``[Net]``. Nothing else is imported.

        Raises:
            ConfigError: if there is nothing that this version can read, or it names code that is not trusted.
            ModelError: if the module cannot be built, or the weights do not fit it.
        """
        return cls.read().trust(trust).load(path)


class TorchWriter(MLWriter):
    """Saves an estimator or a model."""

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
        folders = models_in(spark).folders(path)
        if folders is not None:
            with replacing(folders, path, self.shouldOverwrite) as draft:
                self.saveImpl(draft)
            return
        self._save_without_renames(spark, path)

    def _save_without_renames(self, spark: SparkSession, path: str) -> None:
        """Save so that at every moment the old one or the new one can be read; see :mod:`.replacing`."""
        previous = sibling(path, "previous")
        places = {place: read_metadata(spark, place) for place in (path, previous)}
        if all(metadata is None for metadata in places.values()):
            self.saveImpl(path)
            return
        if not self.shouldOverwrite:
            raise exists_already(path)
        for metadata in places.values():
            if metadata is not None and KEY not in metadata:
                raise cannot_replace(path, metadata)
        if places[path] is not None:  # else the one beside it stays until this one is complete
            _empty(spark, previous)
            self._write_to(previous, "overwrite")
            _empty(spark, path)
        self._write_to(path, "overwrite")
        _empty(spark, previous)

    def saveImpl(self, path: str) -> None:
        """Write to a folder that does not exist; its metadata last, as a mark that all is there."""
        self._write_to(path, "error")

    def _write_to(self, path: str, mode: str) -> None:
        spark = self.sparkSession
        info, pieces = described(self.instance, _allowed(self.optionMap))
        digests = {}
        for name, stream in pieces.items():
            hashed = integrity.Hashed(stream)
            _write(spark, posixpath.join(path, name), hashed, mode)
            digests[name] = hashed.sha256
        metadata = DefaultParamsWriter._get_metadata_to_save(self.instance, spark, extraMetadata={KEY: info})
        write_metadata(spark, path, seal(json.loads(metadata), digests), mode)


class TorchReader(MLReader[R]):
    """Loads an estimator or a model."""

    def __init__(self, cls: type[R]) -> None:
        super().__init__()
        self.cls = cls
        self._options: dict[str, str] = {}
        self._trust = LISTED_ONLY

    def option(self, key: str, value: Any) -> Self:
        """Set an option.

        ``option("pickle", "true")`` allows to read pickled code, ``option("trust", "mypackage,other.nets")``
        to import these packages and modules.
        """
        if key.lower() == "trust":
            return self.trust(value)
        self._options[key.lower()] = str(value)
        return self

    def trust(self, entries: Entry | Iterable[Entry]) -> Self:
        """Trust packages, modules or classes that what is loaded may name, as :meth:`TorchReadable.load`."""
        self._trust |= Trust.of(entries)
        return self

    def load(self, path: str) -> R:
        """Load from a path of any file system that Spark reads, in Spark Connect too.

        Raises:
            ConfigError: if there is nothing that this version can read, if it is of another class, or holds
                a pickle that was not allowed, or names code that is not trusted.
            ModelError: if the module cannot be built, or the weights do not fit it.
        """
        spark, path = self.sparkSession, str(path)
        place = path
        metadata = read_metadata(spark, path)
        if metadata is None:  # a save was cut off between two renames
            place = sibling(path, "previous")
            metadata = read_metadata(spark, place)
        if metadata is None:
            raise ConfigError(f"path={path!r}: nothing complete was saved there", code="config-saved")
        info = check(metadata, path)
        check_class(metadata, path, self.cls)
        remedy = (
            f"{self.cls.__name__}.read().option('pickle', 'true').load(path), inside of a pipeline with "
            "sparkdl.ml.allow_pickle(): ..."
        )
        saved.check_pickle(info, path, _allowed(self._options), remedy)
        content = saved.build(
            info,
            path,
            _read(spark, path, posixpath.join(place, WEIGHTS)),
            _read(spark, path, posixpath.join(place, CODE)),
            self._trust | trusted() | Trust(everything=_allowed(self._options)),
        )
        with explained(path):
            instance: Any = instance_of(self.cls, content)
            for name in info["hyper"]:  # tuned models look for these Params, set or not
                instance.getParam(name)
        set_params(instance, metadata, path)
        return cast(R, instance)


def described(
    instance: Any, allow_pickle: bool = False
) -> tuple[dict[str, Any], dict[str, Iterable[integrity.Chunk]]]:
    """Return our entry in the metadata of an estimator or model, and its other files as pieces, by name.

    Raises ConfigError if a pickle is needed and not allowed, SerializationError if it cannot be made.
    """
    content = content_of(instance)
    info, code = saved.describe(content, allow_pickle)
    info["hyper"] = [param.name for param in instance.params if "." in param.name]
    pieces: dict[str, Iterable[integrity.Chunk]] = {}
    if content.module is not None:
        pieces[WEIGHTS] = weights.write(content.module, _CHUNK_BYTES)
    if code is not None:
        pieces[CODE] = _cut(code)
    return info, pieces


def content_of(instance: Any) -> Content:
    """Return what an estimator or a model holds besides Params."""
    if isinstance(instance, Model):
        model: Any = instance
        return Content(
            model.module, model.source, model.signature, table=table_of(model.encoding, model.labels)
        )
    values = {name: getattr(instance, name) for name in ATTRIBUTES}
    module = values["module"] if isinstance(values["module"], nn.Module) else None
    if module is not None:
        del values["module"]
    return Content(module, attributes=values)


def instance_of(cls: type[R], content: Content) -> R:
    """Make an estimator or a model that holds a content; the reverse of :func:`content_of`."""
    kind: Any = cls
    if issubclass(kind, Model):
        encoding, labels = read_table(content.table)
        instance = kind(
            content.module,
            source=content.source,
            signature=content.signature,
            encoding=encoding,
            labels=labels,
        )
    else:
        instance = kind()
        for name, value in content.attributes.items():
            setattr(instance, name, _today(value) if name == "options" else value)
        if content.module is not None:
            instance.module = content.module
    return cast(R, instance)


def _today(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a Trainer by their names of today."""
    return {OPTIONS.get(name, name): value for name, value in options.items()}


def save(instance: MLWritable, path: str, *, overwrite: bool = False) -> None:
    """Save any Spark ML instance; an instance that it replaces stays readable until the new one is complete.

    Estimators and models of sparkdl do so by themselves. Spark's own, such as pipelines, delete first and
    write then; this writes them beside their place and renames. Spark Connect cannot rename: there they are
    written to their place, and pipelines cannot replace anything.

    Args:
        instance: a pipeline or any other estimator, transformer or model.
        path: where to.
        overwrite: whether it may replace an existing one.

    Raises:
        ConfigError: if there is something already and ``overwrite`` is not set; or, on Spark Connect, if
            there is anything but an estimator or a model of sparkdl.
    """
    spark = SparkSession.active()
    folders = models_in(spark).folders(path)
    if folders is None:
        if overwrite and isinstance(instance, TorchWritable):
            instance.write().overwrite().save(path)
            return
        if (metadata := read_metadata(spark, path)) is not None:
            raise cannot_replace(path, metadata) if overwrite else exists_already(path)
        instance.write().save(path)
        return
    with replacing(folders, path, overwrite) as draft:
        instance.write().save(draft)


def _allowed(options: Mapping[str, str]) -> bool:
    value = options.get("pickle", "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f"option pickle={value!r}: expected 'true' or 'false'")
    return value == "true" or _pickle_allowed.get()


def _cut(data: bytes) -> Iterator[integrity.Chunk]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield integrity.Chunk(start, data[start : start + _CHUNK_BYTES])


def _empty(spark: SparkSession, path: str) -> None:
    """Empty the files of a saved model: the metadata first, without which it is none."""
    if read_metadata(spark, path) is None:
        return
    spark.createDataFrame([], "value string").write.mode("overwrite").text(posixpath.join(path, METADATA))
    for name in (WEIGHTS, CODE):
        rows = spark.createDataFrame([], _COLUMNS)
        rows.write.mode("overwrite").parquet(posixpath.join(path, name))


def _write(spark: SparkSession, path: str, pieces: Iterable[integrity.Chunk], mode: str = "error") -> None:
    """Write pieces, some at a time: neither driver nor task ever holds all of them."""
    rows: list[tuple[int, bytes]] = []

    def flush() -> None:
        nonlocal mode
        if sum(len(data) for _, data in rows) <= _CHUNK_BYTES:  # one task takes them, and no Python process
            df = spark.createDataFrame(rows, _COLUMNS).coalesce(1)
        else:
            df = models_in(spark).in_small_tasks(rows, _COLUMNS).repartition(1)
        df.write.mode(mode).option("compression", "none").parquet(path)
        mode = "append"
        rows.clear()

    for piece in pieces:
        if rows and sum(len(data) for _, data in rows) + len(piece.data) > _GROUP_BYTES:
            flush()
        rows.append((piece.offset, piece.data))
    if rows:
        flush()


def _read(spark: SparkSession, path: str, folder: str) -> Iterator[integrity.Chunk]:
    """Read pieces in order, some at a time: neither driver nor task ever holds all of them."""
    with explained(path):
        df = spark.read.schema(_COLUMNS).parquet(literal(folder))
        end = 0
        for start in itertools.count(0, _GROUP_BYTES):
            # whole files are passed over by the range of offsets in their footers
            rows = df.filter(f"offset >= {start} and offset < {start + _GROUP_BYTES}").collect()
            for offset, data in sorted(rows):
                yield integrity.Chunk(offset, bytes(data))
                end = offset + len(data)
            if end < start + _GROUP_BYTES:  # each piece begins where the one before it ends
                return

"""The metadata that Spark stores for an estimator or a model, checked before any use."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar, cast

from pyspark.errors import AnalysisException
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable
from pyspark.sql import SparkSession

from sparkdl.access import models_in
from sparkdl.exceptions import ConfigError, SparkdlError
from sparkdl.saved.metadata import KEY, METADATA, check_inside, check_seal, parse, seal
from sparkdl.saved.moved import current_class

R = TypeVar("R", bound=MLReadable[Any])

_FORMAT = 1
_PATTERN = re.compile(r"[\\{}\[\]*?]")


class ParamsWriter(DefaultParamsWriter):
    """Saves a stage that has Params and little else, with a checksum."""

    def __init__(self, instance: Any, extra: Mapping[str, Any]) -> None:
        super().__init__(instance)
        self._extra = dict(extra)

    def saveImpl(self, path: str) -> None:
        """Write to a folder that does not exist."""
        spark = self.sparkSession
        text = DefaultParamsWriter._get_metadata_to_save(self.instance, spark, self._extra)
        write_metadata(spark, path, seal(json.loads(text), {}))


class ParamsReader(MLReader[R]):
    """Loads a stage that has Params and little else.

    Spark's own reader would import and call any class in the metadata.
    """

    def __init__(self, cls: type[R]) -> None:
        super().__init__()
        self.cls = cls

    def load(self, path: str) -> R:
        """Load from a path of any file system that Spark reads."""
        path = str(path)
        metadata = read_metadata(self.sparkSession, path)
        if metadata is None:
            raise ConfigError(f"path={path!r}: nothing complete was saved there", code="config-saved")
        check_class(metadata, path, self.cls)
        if KEY in metadata:  # what the first release saved had no checksum
            check_seal(metadata, path)
        version = metadata.get("formatVersion", _FORMAT)
        if type(version) is not int or version > _FORMAT:
            raise ConfigError(
                f"{path} has format version {version!r:.50}, this sparkdl reads up to {_FORMAT}: "
                "read it with the sparkdl that wrote it, or a later one"
            )
        instance: Any = self.cls()
        set_params(instance, metadata, path)
        instance._restore(metadata, path)
        return cast(R, instance)


class StoredStage(MLWritable, MLReadable[Any]):
    """Mixin for stages with Params and little else; Spark's own would import any class in the metadata."""

    def _stored(self) -> dict[str, Any]:
        """Return what lies beside the Params, in the same JSON."""
        return {}

    def _restore(self, metadata: Mapping[str, Any], path: str) -> None:
        """Take what lies beside the Params."""

    def write(self) -> ParamsWriter:
        """Return a writer."""
        return ParamsWriter(self, self._stored())

    @classmethod
    def read(cls) -> ParamsReader[Self]:
        """Return a reader."""
        return ParamsReader(cls)


def literal(path: str) -> str:
    """Return a path as Spark's readers take it: they expand ``[`` and ``{``, as its writers do not."""
    return _PATTERN.sub(r"\\\g<0>", path)


def write_metadata(spark: SparkSession, path: str, text: str, mode: str = "error") -> None:
    """Write metadata as Spark does."""
    row = spark.createDataFrame([(text,)], "value string").coalesce(1)
    row.write.mode(mode).text(posixpath.join(path, METADATA))


def read_metadata(spark: SparkSession, path: str) -> dict[str, Any] | None:
    """Read metadata; ``None`` if there is none."""
    with explained(path):
        folders = models_in(spark).folders(path)
        place = None if folders is None else folders.on_this_machine(path)
        if place is not None:  # as far as the driver can tell
            check_inside(place, path)
        if folders is not None and not folders.exists(posixpath.join(path, METADATA)):
            return None  # Spark's readers would log the trace of a Java exception
        try:
            row = spark.read.text(literal(posixpath.join(path, METADATA))).first()
        except AnalysisException as error:
            if "PATH_NOT_FOUND" in str(error):
                return None
            raise
    return None if row is None else parse(row[0], path)


def check_class(metadata: Mapping[str, Any], path: str, cls: type) -> None:
    """Check that metadata is of a class, before anything is imported."""
    if current_class(str(metadata.get("class"))) != f"{cls.__module__}.{cls.__qualname__}":
        found = str(metadata.get("class")).rpartition(".")[2]
        raise ConfigError(
            f"path={path!r} holds a {found:.100}, expected a {cls.__name__}: {found:.100}.load(...)",
            code="config-saved",
        )


def set_params(instance: Any, metadata: Mapping[str, Any], path: str) -> None:
    """Give an instance the uid and Params of its metadata; ConfigError if they are not those of its class."""
    with explained(path):
        instance._resetUid(metadata["uid"])
        values = metadata["paramMap"]
        unset = {name: None for name, value in values.items() if value is None and instance.hasParam(name)}
        others = {name: value for name, value in values.items() if name not in unset}
        DefaultParamsReader.getAndSetParams(instance, {**metadata, "paramMap": others})
        instance._set(**unset)  # as a caller may set them, which Spark's reader would convert


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn what Spark and damaged metadata raise into an error that says which model cannot be read."""
    try:
        yield
    except SparkdlError:
        raise
    except Exception as error:
        cause = str(getattr(error, "java_exception", None) or error).strip() or repr(error)
        raise ConfigError(
            f"path={path!r} cannot be read, a file is damaged, missing or out of reach: "
            f"{type(error).__name__}: {cause.splitlines()[0]:.300}",
            code="config-saved",
        ) from error

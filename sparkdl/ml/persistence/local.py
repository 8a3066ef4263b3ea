"""Saves a model in a folder of this machine, in the format that Spark writes, by this process alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.ml.util import DefaultParamsWriter

from sparkdl.exceptions import ConfigError
from sparkdl.ml.persistence.saving import described
from sparkdl.saved import integrity
from sparkdl.saved.metadata import KEY, METADATA, seal

_SCHEMA = pa.schema({"offset": pa.int64(), "data": pa.binary()})


def save_local(instance: Any, path: str | os.PathLike[str]) -> None:
    """Save a fitted model, or an estimator; ``load`` and ``Predictor.load`` read it.

    ``instance.save(path)`` lets the executors write, which a cluster's do on their own disks.
    """
    folder = Path(path)
    info, pieces = described(instance)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"path={str(path)!r} exists: choose another") from None
    digests = {}
    for name, stream in pieces.items():
        hashed = integrity.Hashed(stream)
        (folder / name).mkdir()
        with pq.ParquetWriter(folder / name / "part-00000.parquet", _SCHEMA, compression="none") as writer:
            for piece in hashed:
                writer.write_table(pa.table([[piece.offset], [piece.data]], schema=_SCHEMA))
        digests[name] = hashed.sha256
    version: Any = SimpleNamespace(version=pyspark.__version__)  # all that is asked of a session
    metadata = DefaultParamsWriter._get_metadata_to_save(instance, version, extraMetadata={KEY: info})
    (folder / METADATA).mkdir()
    text = seal(json.loads(metadata), digests)
    (folder / METADATA / "part-00000").write_text(text + "\n", encoding="utf-8")

"""Loads anything that Spark ML saved, after a check of the classes that it names."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable
from typing import Any

import pyspark
from pyspark.ml.util import DefaultParamsReader
from pyspark.sql import SparkSession

from sparkdl.access import models_in
from sparkdl.exceptions import ConfigError
from sparkdl.ml.persistence import trusting
from sparkdl.ml.persistence.stored import literal
from sparkdl.saved.integrity import unique_names
from sparkdl.saved.moved import current_class
from sparkdl.saved.trust import Entry, Trust

_METADATA = "metadata"  # Spark's folder in that of each stage
_SPARKS = re.compile(r"(org\.apache\.spark|pyspark)\.ml(\.[a-z_]+)*\.[A-Z]\w*")
_ANY_SQL = ".SQLTransformer"  # its statement comes from the file, and SQL can call Java's methods
_OWN = frozenset(
    {
        "sparkdl.ml.estimators.estimator.TorchClassifier",
        "sparkdl.ml.estimators.estimator.TorchEstimator",
        "sparkdl.ml.estimators.estimator.TorchRegressor",
        "sparkdl.ml.estimators.embedding.EmbeddingModel",
        "sparkdl.ml.stages.hf.HFDecoder",
        "sparkdl.ml.stages.hf.HFTokenizer",
        "sparkdl.ml.stages.images.ImageToTensor",
        "sparkdl.ml.estimators.model.TorchClassificationModel",
        "sparkdl.ml.estimators.model.TorchModel",
        "sparkdl.ml.estimators.model.TorchRegressionModel",
        "sparkdl.ml.series.stage.TimeSeriesEstimator",
        "sparkdl.ml.series.stage.TimeSeriesModel",
        "sparkdl.ml.stages.tabular.TabularEncoder",
        "sparkdl.ml.stages.tabular.TabularEncoderModel",
        "sparkdl.ml.stages.text.TextIndexer",
        "sparkdl.ml.stages.text.TextIndexerModel",
        "sparkdl.tune.estimator.TorchTuner",
        "sparkdl.tune.estimator.TorchTunerModel",
    }
)


def load(path: str, *, trust: Entry | Iterable[Entry] = ()) -> Any:
    """Load a pipeline, or any other estimator, transformer or model, from a path that is not trusted.

    ``PipelineModel.load`` imports the classes of its stages by the names in their files, whatever they are.
    This looks at all of these names first.

    Args:
        path: what ``save`` wrote, of any file system that Spark reads.
        trust: packages, modules or classes that it may name besides those of Spark ML, torch, torchmetrics
            and sparkdl: ``["mypackage"]``.

    Raises:
        ConfigError: if there is nothing, the path is a pattern, a class is not trusted, or the session is
            one of Spark Connect, which cannot list files.
    """
    path = str(path)
    if literal(path) != path:  # what is looked at must be what Spark loads
        raise ConfigError(
            f"path={path!r}: Spark reads pipelines from all that this is a pattern of; rename the folder, or "
            "load a single model with its own class",
            code="config-saved",
        )
    spark = SparkSession.active()
    files = models_in(spark).folders(path)
    if files is None:
        raise ConfigError(
            "load() needs a classic Spark session, for Spark Connect cannot list files: load single models "
            "with their own class",
            code="config-connect",
        )
    names = Trust.of(trust) | trusting.trusted()
    folders = list(files.holding(path, _METADATA))
    if not folders:
        raise ConfigError(f"path={path!r}: nothing complete was saved there", code="config-saved")
    for folder in folders:
        for row in spark.read.text(posixpath.join(folder, _METADATA)).collect():
            _check(row[0], folder, names)
    with trusting.trust(*names.prefixes):
        own = spark if int(pyspark.__version__.split(".")[0]) >= 4 else spark.sparkContext
        return DefaultParamsReader.loadParamsInstance(path, own)


def _check(text: str, folder: str, trust: Trust) -> None:
    """Check the classes that a line of metadata names, and that stages lie below their pipeline."""
    try:
        # Of a name that is there twice the first value would be read in the JVM, and the second one here.
        metadata = json.loads(text, object_pairs_hook=unique_names)
        name, stages = metadata["class"], metadata.get("paramMap", {}).get("stageUids", [])
        if not isinstance(name, str) or not all(re.fullmatch(r"[\w-]+", stage) for stage in stages):
            raise ValueError(f"class {name!r:.100} with stages {stages!r:.100}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{folder} holds no metadata of Spark ML: {error!r}", code="config-saved"
        ) from error
    if current_class(name) not in _OWN and (not _SPARKS.fullmatch(name) or name.endswith(_ANY_SQL)):
        module, _, cls = name.rpartition(".")
        trust.check(f"{module}:{cls}")

"""Estimators, models and transformers for Spark ML pipelines.

The names load what they need when they are first used: the executors import single modules of this
package, and need no estimators.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.ml.estimators.embedding import EmbeddingModel as EmbeddingModel
    from sparkdl.ml.estimators.estimator import TorchClassifier as TorchClassifier
    from sparkdl.ml.estimators.estimator import TorchEstimator as TorchEstimator
    from sparkdl.ml.estimators.estimator import TorchRegressor as TorchRegressor
    from sparkdl.ml.estimators.model import TorchClassificationModel as TorchClassificationModel
    from sparkdl.ml.estimators.model import TorchModel as TorchModel
    from sparkdl.ml.estimators.model import TorchRegressionModel as TorchRegressionModel
    from sparkdl.ml.estimators.summary import TrainingSummary as TrainingSummary
    from sparkdl.ml.persistence.loading import load as load
    from sparkdl.ml.persistence.saving import allow_pickle as allow_pickle
    from sparkdl.ml.persistence.saving import save as save
    from sparkdl.ml.persistence.trusting import trust as trust
    from sparkdl.ml.series.stage import TimeSeriesEstimator as TimeSeriesEstimator
    from sparkdl.ml.series.stage import TimeSeriesModel as TimeSeriesModel
    from sparkdl.ml.stages.hf import HFDecoder as HFDecoder
    from sparkdl.ml.stages.hf import HFTokenizer as HFTokenizer
    from sparkdl.ml.stages.images import ImageToTensor as ImageToTensor
    from sparkdl.ml.stages.tabular import TabularEncoder as TabularEncoder
    from sparkdl.ml.stages.tabular import TabularEncoderModel as TabularEncoderModel
    from sparkdl.ml.stages.text import TextIndexer as TextIndexer
    from sparkdl.ml.stages.text import TextIndexerModel as TextIndexerModel

_HOME = {
    "EmbeddingModel": "sparkdl.ml.estimators.embedding",
    "HFDecoder": "sparkdl.ml.stages.hf",
    "HFTokenizer": "sparkdl.ml.stages.hf",
    "ImageToTensor": "sparkdl.ml.stages.images",
    "TabularEncoder": "sparkdl.ml.stages.tabular",
    "TabularEncoderModel": "sparkdl.ml.stages.tabular",
    "TextIndexer": "sparkdl.ml.stages.text",
    "TextIndexerModel": "sparkdl.ml.stages.text",
    "TimeSeriesEstimator": "sparkdl.ml.series.stage",
    "TimeSeriesModel": "sparkdl.ml.series.stage",
    "TorchClassificationModel": "sparkdl.ml.estimators.model",
    "TorchClassifier": "sparkdl.ml.estimators.estimator",
    "TorchEstimator": "sparkdl.ml.estimators.estimator",
    "TorchModel": "sparkdl.ml.estimators.model",
    "TorchRegressionModel": "sparkdl.ml.estimators.model",
    "TorchRegressor": "sparkdl.ml.estimators.estimator",
    "TrainingSummary": "sparkdl.ml.estimators.summary",
    "allow_pickle": "sparkdl.ml.persistence.saving",
    "load": "sparkdl.ml.persistence.loading",
    "save": "sparkdl.ml.persistence.saving",
    "trust": "sparkdl.ml.persistence.trusting",
}

__all__ = [
    "EmbeddingModel",
    "HFDecoder",
    "HFTokenizer",
    "ImageToTensor",
    "TabularEncoder",
    "TabularEncoderModel",
    "TextIndexer",
    "TextIndexerModel",
    "TimeSeriesEstimator",
    "TimeSeriesModel",
    "TorchClassificationModel",
    "TorchClassifier",
    "TorchEstimator",
    "TorchModel",
    "TorchRegressionModel",
    "TorchRegressor",
    "TrainingSummary",
    "allow_pickle",
    "load",
    "save",
    "trust",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sparkdl.ml' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

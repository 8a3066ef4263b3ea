"""Estimators, models and transformers for Spark ML pipelines.

The names load what they need when they are first used: the executors import single modules of this
package, and need no estimators.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.ml.embedding import EmbeddingModel as EmbeddingModel
    from sparkdl.ml.estimator import TorchClassifier as TorchClassifier
    from sparkdl.ml.estimator import TorchEstimator as TorchEstimator
    from sparkdl.ml.estimator import TorchRegressor as TorchRegressor
    from sparkdl.ml.hf import HFDecoder as HFDecoder
    from sparkdl.ml.hf import HFTokenizer as HFTokenizer
    from sparkdl.ml.images import ImageToTensor as ImageToTensor
    from sparkdl.ml.loading import load as load
    from sparkdl.ml.model import TorchClassificationModel as TorchClassificationModel
    from sparkdl.ml.model import TorchModel as TorchModel
    from sparkdl.ml.model import TorchRegressionModel as TorchRegressionModel
    from sparkdl.ml.persistence import allow_pickle as allow_pickle
    from sparkdl.ml.persistence import save as save
    from sparkdl.ml.series import TimeSeriesEstimator as TimeSeriesEstimator
    from sparkdl.ml.series import TimeSeriesModel as TimeSeriesModel
    from sparkdl.ml.summary import TrainingSummary as TrainingSummary
    from sparkdl.ml.tabular import TabularEncoder as TabularEncoder
    from sparkdl.ml.tabular import TabularEncoderModel as TabularEncoderModel
    from sparkdl.ml.text import TextIndexer as TextIndexer
    from sparkdl.ml.text import TextIndexerModel as TextIndexerModel
    from sparkdl.ml.trusting import trust as trust

_HOME = {
    "EmbeddingModel": "sparkdl.ml.embedding",
    "HFDecoder": "sparkdl.ml.hf",
    "HFTokenizer": "sparkdl.ml.hf",
    "ImageToTensor": "sparkdl.ml.images",
    "TabularEncoder": "sparkdl.ml.tabular",
    "TabularEncoderModel": "sparkdl.ml.tabular",
    "TextIndexer": "sparkdl.ml.text",
    "TextIndexerModel": "sparkdl.ml.text",
    "TimeSeriesEstimator": "sparkdl.ml.series",
    "TimeSeriesModel": "sparkdl.ml.series",
    "TorchClassificationModel": "sparkdl.ml.model",
    "TorchClassifier": "sparkdl.ml.estimator",
    "TorchEstimator": "sparkdl.ml.estimator",
    "TorchModel": "sparkdl.ml.model",
    "TorchRegressionModel": "sparkdl.ml.model",
    "TorchRegressor": "sparkdl.ml.estimator",
    "TrainingSummary": "sparkdl.ml.summary",
    "allow_pickle": "sparkdl.ml.persistence",
    "load": "sparkdl.ml.loading",
    "save": "sparkdl.ml.persistence",
    "trust": "sparkdl.ml.trusting",
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

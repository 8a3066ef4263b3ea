"""Estimators, models and transformers for Spark ML pipelines.

The names load what they need when they are first used: the executors import single modules of this
package, and need no estimators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl.lazy import lazy

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

_HOMES = {
    "sparkdl.ml.estimators.embedding": "EmbeddingModel",
    "sparkdl.ml.estimators.estimator": "TorchClassifier TorchEstimator TorchRegressor",
    "sparkdl.ml.estimators.model": "TorchClassificationModel TorchModel TorchRegressionModel",
    "sparkdl.ml.estimators.summary": "TrainingSummary",
    "sparkdl.ml.persistence.loading": "load",
    "sparkdl.ml.persistence.saving": "allow_pickle save",
    "sparkdl.ml.persistence.trusting": "trust",
    "sparkdl.ml.series.stage": "TimeSeriesEstimator TimeSeriesModel",
    "sparkdl.ml.stages.hf": "HFDecoder HFTokenizer",
    "sparkdl.ml.stages.images": "ImageToTensor",
    "sparkdl.ml.stages.tabular": "TabularEncoder TabularEncoderModel",
    "sparkdl.ml.stages.text": "TextIndexer TextIndexerModel",
}

__all__, __getattr__, __dir__ = lazy(__name__, _HOMES)

"""Deep learning on plain Apache Spark: training as a series of short Spark jobs.

Importing this package loads neither torch nor pyspark; the public names load what they need when
they are first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkdl._version import __version__
from sparkdl.saved.moved import allow_old_imports

if TYPE_CHECKING:
    from sparkdl import session as session
    from sparkdl.data.dataset import Column as Column
    from sparkdl.data.dataset import Dataset as Dataset
    from sparkdl.ml.estimators.estimator import TorchClassifier as TorchClassifier
    from sparkdl.ml.estimators.estimator import TorchEstimator as TorchEstimator
    from sparkdl.ml.estimators.estimator import TorchRegressor as TorchRegressor
    from sparkdl.ml.estimators.model import TorchClassificationModel as TorchClassificationModel
    from sparkdl.ml.estimators.model import TorchModel as TorchModel
    from sparkdl.ml.estimators.model import TorchRegressionModel as TorchRegressionModel
    from sparkdl.serve.predictor import Predictor as Predictor
    from sparkdl.train.trainer import Trainer as Trainer

_HOME = {
    "Column": "sparkdl.data",
    "Dataset": "sparkdl.data",
    "Predictor": "sparkdl.serve.predictor",
    "TorchClassificationModel": "sparkdl.ml",
    "TorchClassifier": "sparkdl.ml",
    "TorchEstimator": "sparkdl.ml",
    "TorchModel": "sparkdl.ml",
    "TorchRegressionModel": "sparkdl.ml",
    "TorchRegressor": "sparkdl.ml",
    "Trainer": "sparkdl.train",
}

__all__ = [
    "Column",
    "Dataset",
    "Predictor",
    "TorchClassificationModel",
    "TorchClassifier",
    "TorchEstimator",
    "TorchModel",
    "TorchRegressionModel",
    "TorchRegressor",
    "Trainer",
    "__version__",
    "session",
]


def __getattr__(name: str) -> Any:
    if name == "session":
        return import_module("sparkdl.session")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sparkdl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


allow_old_imports()
if os.environ.get("SPARKDL_ATTEMPTS"):  # this is a driver of `sparkdl submit --retries`
    import_module("sparkdl.attempts").watch()

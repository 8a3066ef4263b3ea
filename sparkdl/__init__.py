"""Deep learning on plain Apache Spark: training as a series of short Spark jobs.

Importing this package loads neither torch nor pyspark; the public names load what they need when
they are first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkdl._version import __version__
from sparkdl.lazy import lazy
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

_HOMES = {
    "sparkdl.data": "Column Dataset",
    "sparkdl.ml": "TorchClassificationModel TorchClassifier TorchEstimator TorchModel TorchRegressionModel "
    "TorchRegressor",
    "sparkdl.serve.predictor": "Predictor",
    "sparkdl.train": "Trainer",
}

_names, _load, _ = lazy(__name__, _HOMES)
__all__ = [*_names, "__version__", "session"]


def __getattr__(name: str) -> Any:
    return import_module("sparkdl.session") if name == "session" else _load(name)


def __dir__() -> list[str]:
    return __all__


allow_old_imports()
if os.environ.get("SPARKDL_ATTEMPTS"):  # this is a driver of `sparkdl submit --retries`
    import_module("sparkdl.attempts").watch()

"""Searching hyper-parameters: many trials, each a resumable training, on iterated short Spark jobs.

Needs Optuna: ``pip install sparkdl[tune]``.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("optuna") is None:
    raise ImportError("sparkdl.tune searches with the optuna package: pip install optuna, or sparkdl[tune]")

from sparkdl.tune.estimator import TorchTuner, TorchTunerModel
from sparkdl.tune.loggers import MLflowTrials, TensorBoardHParams, TrialLogger
from sparkdl.tune.result import BestTrial, SearchResult
from sparkdl.tune.schedulers.halving import ASHA, Hyperband, SuccessiveHalving
from sparkdl.tune.schedulers.moves import Go, Outline, Scheduler
from sparkdl.tune.schedulers.pbt import PBT
from sparkdl.tune.schedulers.stopping import FIFO, MedianStopping, Pruned
from sparkdl.tune.space import choice, lograndint, loguniform, quniform, randint, uniform
from sparkdl.tune.trial import Trial
from sparkdl.tune.tuner import Tuner

__all__ = [
    "ASHA",
    "FIFO",
    "PBT",
    "BestTrial",
    "Go",
    "Hyperband",
    "MLflowTrials",
    "MedianStopping",
    "Outline",
    "Pruned",
    "Scheduler",
    "SearchResult",
    "SuccessiveHalving",
    "TensorBoardHParams",
    "TorchTuner",
    "TorchTunerModel",
    "Trial",
    "TrialLogger",
    "Tuner",
    "choice",
    "lograndint",
    "loguniform",
    "quniform",
    "randint",
    "uniform",
]

"""Training: the loop, its state, and what ends it."""

from sparkdl.train.config import TrainConfig
from sparkdl.train.history import History
from sparkdl.train.result import FitResult
from sparkdl.train.state import TrainState
from sparkdl.train.trainer import Trainer
from sparkdl.train.triggers import MaxEpoch, MaxIteration, MinLoss, Trigger

__all__ = [
    "FitResult",
    "History",
    "MaxEpoch",
    "MaxIteration",
    "MinLoss",
    "TrainConfig",
    "TrainState",
    "Trainer",
    "Trigger",
]

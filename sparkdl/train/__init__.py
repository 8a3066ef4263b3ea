"""Training: the loop, its state, triggers that end it and hooks that it calls."""

from sparkdl.allreduce.shard_states import Snapshot
from sparkdl.train.checkpoint import latest, load_weights
from sparkdl.train.history import History
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.callbacks import EarlyStopping, Freeze, GradientNorms, Unfreeze
from sparkdl.train.hooks.checkpoint import Checkpoint
from sparkdl.train.hooks.live import LivePlot
from sparkdl.train.options.averaging import EMA, SWA
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.options.elastic import Elastic
from sparkdl.train.options.local_steps import LocalSteps
from sparkdl.train.options.schedule import (
    PerEpoch,
    PerIteration,
    linear_scaling,
    one_cycle,
    polynomial,
    sequence,
    warmup,
)
from sparkdl.train.options.stragglers import DropStragglers
from sparkdl.train.options.triggers import (
    EveryEpoch,
    EveryIterations,
    EverySeconds,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MaxSeconds,
    MinLoss,
    MinScore,
    Plateaued,
    Trigger,
)
from sparkdl.train.planning.cluster_plan import ClusterPlan, Estimate
from sparkdl.train.planning.plan import plan
from sparkdl.train.result import FitResult
from sparkdl.train.run import Run
from sparkdl.train.state import TrainState
from sparkdl.train.trainer import Trainer
from sparkdl.wire.codec import Int8, TopK

__all__ = [
    "EMA",
    "SWA",
    "Checkpoint",
    "ClusterPlan",
    "DropStragglers",
    "EarlyStopping",
    "Elastic",
    "Estimate",
    "EveryEpoch",
    "EveryIterations",
    "EverySeconds",
    "FitResult",
    "Freeze",
    "GradientNorms",
    "History",
    "Hook",
    "Int8",
    "LivePlot",
    "LocalSteps",
    "MaxEpoch",
    "MaxIteration",
    "MaxScore",
    "MaxSeconds",
    "MinLoss",
    "MinScore",
    "PerEpoch",
    "PerIteration",
    "Plateaued",
    "Run",
    "Snapshot",
    "TopK",
    "TrainConfig",
    "TrainState",
    "Trainer",
    "Trigger",
    "Unfreeze",
    "latest",
    "linear_scaling",
    "load_weights",
    "one_cycle",
    "plan",
    "polynomial",
    "sequence",
    "warmup",
]

"""Optimizers, on shards of the flat weights, and what goes with them: groups, penalties, clipping."""

from sparkdl.optim.adagrad_decay import AdagradDecay
from sparkdl.optim.clip import ClipByNorm, ClipByValue
from sparkdl.optim.ftrl import Ftrl
from sparkdl.optim.groups import ParamGroup, bias_and_norm
from sparkdl.optim.lamb import LAMB
from sparkdl.optim.lars import LARS
from sparkdl.optim.lbfgs import LBFGS
from sparkdl.optim.shard.optimizer import ShardOptimizer
from sparkdl.optim.shard.shardable import check_shardable
from sparkdl.optim.spec import OptimizerSpec, optimizer_spec
from sparkdl.optim.staleness import Staleness

__all__ = [  # noqa: RUF022 (plainly sorted, as everywhere)
    "AdagradDecay",
    "ClipByNorm",
    "ClipByValue",
    "Ftrl",
    "LAMB",
    "LARS",
    "LBFGS",
    "OptimizerSpec",
    "ParamGroup",
    "ShardOptimizer",
    "Staleness",
    "bias_and_norm",
    "check_shardable",
    "optimizer_spec",
]

"""Optimizers on slices of the flat weights."""

from sparkdl.optim.slice import SliceOptimizer
from sparkdl.optim.sliceable import check_sliceable
from sparkdl.optim.spec import OptimizerSpec, optimizer_spec

__all__ = ["OptimizerSpec", "SliceOptimizer", "check_sliceable", "optimizer_spec"]

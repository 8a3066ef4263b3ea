"""The fixed part of a fit: what every task of every iteration needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from sparkdl.compute.local_steps import InnerRule
from sparkdl.data.collate import Collate
from sparkdl.data.columns import Structure, TablePlan
from sparkdl.nn.numerics import Numerics
from sparkdl.nn.objective import Objective
from sparkdl.optim.shard.optimizer import UpdateRule
from sparkdl.wire.codec import Cast, Codec, has_error_feedback
from sparkdl.wire.layout import ParamLayout

Combine = Literal["mean", "adasum"]
"""How the gradients of the partitions become one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSpec:
    """The fixed part of a fit: what every task of every iteration needs."""

    module: nn.Module  # with its initial weights
    objective: Objective  # the loss
    rule: UpdateRule  # regularisers, clipping and optimizer
    combine: Combine  # how the partitions' gradients become one
    averaging: bool  # whether an average of the weights is kept
    layout: ParamLayout  # of the flat vectors
    features: Structure  # how stored columns become the module's inputs
    label: Structure  # how stored columns become the loss's label
    weighted: bool  # whether rows have weights
    transform: Callable[[Any], Any] | None  # applied to the inputs of each batch
    seed: int  # of the run
    shuffle: bool  # whether each epoch has a fresh permutation
    micro_batch_size: int | None  # rows per forward pass, ``None`` for all at once
    threads: int  # torch threads per task
    numerics: Numerics  # precision and the like
    gradient_codec: Codec = "fp32"  # how gradients travel
    weights_codec: Cast = "fp32"  # how weights travel from the owners of shards
    inner: InnerRule | None = None  # how partitions step by themselves; ``None`` if they send gradients
    # parameters with row-sparse gradients whose optimizer leaves other rows as they are
    tables: tuple[int, ...] = ()
    scanned: tuple[int, ...] = ()  # tables with dense gradients, of which rows of zeros are not sent
    columns: TablePlan | None = None  # names of columns and rows, for errors
    collate: Collate | None = None  # makes inputs and label of a list of rows; ``None`` to stack columns
    # bytes of memory for rows of embedding variables in a process; ``None`` for no bound
    row_memory: int | None = None

    @property
    def error_feedback(self) -> bool:
        """Whether a partition adds its codec's residual to its next gradient."""
        return has_error_feedback(self.gradient_codec)

    @property
    def partition_state(self) -> bool:
        """Whether partitions have their own state between iterations."""
        return self.error_feedback or (self.inner is not None and self.inner.stateful)

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
    """The fixed part of a fit: what every task of every iteration needs.

    Attributes:
        module: the module with its initial weights.
        objective: the loss.
        rule: regularisers, clipping and optimizer.
        combine: how the partitions' gradients become one.
        averaging: whether an average of the weights is kept.
        layout: layout of the flat vectors.
        features: how stored columns become the module's inputs.
        label: how stored columns become the loss's label.
        weighted: whether rows have weights.
        transform: applied to the inputs of each batch.
        collate: makes inputs and label of a list of rows; ``None`` to stack columns.
        seed: seed of the run.
        shuffle: whether each epoch has a fresh permutation.
        micro_batch_size: rows per forward pass, ``None`` for all at once.
        threads: torch threads per task.
        numerics: precision and the like.
        gradient_codec: how gradients travel.
        weights_codec: how weights travel from the owners of shards.
        inner: how partitions step by themselves; ``None`` if they send gradients.
        tables: parameters with row-sparse gradients whose optimizer leaves other rows as they are.
        scanned: tables with dense gradients, of which rows of zeros are not sent.
        columns: names of columns and rows, for errors.
        row_memory: bytes of memory for rows of embedding variables in a process; ``None`` for no bound.
    """

    module: nn.Module
    objective: Objective
    rule: UpdateRule
    combine: Combine
    averaging: bool
    layout: ParamLayout
    features: Structure
    label: Structure
    weighted: bool
    transform: Callable[[Any], Any] | None
    seed: int
    shuffle: bool
    micro_batch_size: int | None
    threads: int
    numerics: Numerics
    gradient_codec: Codec = "fp32"
    weights_codec: Cast = "fp32"
    inner: InnerRule | None = None
    tables: tuple[int, ...] = ()
    scanned: tuple[int, ...] = ()
    columns: TablePlan | None = None
    collate: Collate | None = None
    row_memory: int | None = None

    @property
    def error_feedback(self) -> bool:
        """Whether a partition adds its codec's residual to its next gradient."""
        return has_error_feedback(self.gradient_codec)

    @property
    def partition_state(self) -> bool:
        """Whether partitions have their own state between iterations."""
        return self.error_feedback or (self.inner is not None and self.inner.stateful)

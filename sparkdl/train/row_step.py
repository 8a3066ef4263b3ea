"""Iterations in groups where gradients are row-sparse: rows that were touched go to everybody.

Stage t of a group's chain is iteration t's forward-backward, preceded by the update of iteration t - 1::

    tokens ─► forward 1 ══ rows to all ══► update 1, forward 2 ══► ... ══► update k

What each task receives grows with the rows of the global batch, whatever the number of partitions, and not
with the size of the tables. Whole tables are written at the end of a group only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkdl.exceptions import ConfigError
from sparkdl.layout import ParamLayout
from sparkdl.train.config import TrainConfig
from sparkdl.train.gather_step import GatherStepper
from sparkdl.train.live import changes_to_keep
from sparkdl.train.pieces import ChainTask
from sparkdl.train.replica import Start
from sparkdl.train.replica_step import ReplicaStepper
from sparkdl.train.row_update import UpdateRows
from sparkdl.train.step import Iteration, ModelState

_TABLES_BYTES = 16 << 20
"""From tables of this size on rows are the automatic choice."""

_REST = 4
"""And if everything else is at most one part in so many of the weights: it goes from all to all, too."""

_ROWS_BYTES = 8 << 20
"""About what the rows of a large batch take, of all partitions; nobody knows beforehand."""


def suits_rows(config: TrainConfig, layout: ParamLayout, tables: Sequence[int]) -> bool:
    """Return whether rows should be exchanged if nobody says otherwise."""
    sparse = sum(layout.params[index].numel for index in tables)
    large = sparse * layout.itemsize >= _TABLES_BYTES and (layout.numel - sparse) * _REST <= layout.numel
    return large and not any(_hindrances(config).values())


def check_rows(config: TrainConfig, tables: Sequence[int]) -> None:
    """Check that rows can be exchanged.

    Raises:
        ConfigError: if not.
    """
    for name, hinders in _hindrances(config).items():
        if hinders:
            value = getattr(config, name)
            raise ConfigError(f"exchange='rows' cannot be combined with {name}; found {name}={value!r:.100}")
    if not tables:
        raise ConfigError(
            "exchange='rows': no table of the module has row-sparse gradients and an optimizer that leaves "
            "the other rows as they are; make embeddings with sparse=True, and give them SparseAdam, or "
            "Adagrad or SGD without momentum and weight decay: "
            "optimizer={'embed*': partial(torch.optim.SparseAdam, lr=...), '*': ...}"
        )


def _hindrances(config: TrainConfig) -> dict[str, bool]:
    """Return options that change all weights in each iteration, or what partitions send."""
    return {
        "combine": config.combine != "mean",
        "averaging": config.averaging is not None,
        "local_steps": config.local_steps is not None,
    }


class RowStepper(GatherStepper):
    """Runs groups of iterations as chains of :mod:`sparkdl.train.row_update`.

    Args:
        arguments: those of :class:`ReplicaStepper`.
    """

    group_seconds = 8.0  # whole tables are written and persisted at the end of each

    def _seed(self, model: ModelState) -> list[Any]:
        return ReplicaStepper._seed(self, model)

    def _frame_bytes(self) -> int:
        return min(self._layout.nbytes, _ROWS_BYTES // self.slices)

    def _tasks(self, start: Start, iterations: Sequence[Iteration], local: bool) -> list[ChainTask]:
        changes = changes_to_keep(self.store.executors.cores)
        return [
            UpdateRows(self._fit, self.slices, start, done, turn, forward, changes)
            for done, turn, forward in self._stages(start, iterations, local)
        ]

"""A rank's side of embedding variables: which rows its batch needs, and their gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.compute.forward_backward import ForwardBackward
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.compute.worker import Worker
from sparkdl.data.store.partition import Token
from sparkdl.keyed.mix import Ids
from sparkdl.nn.embedding import EmbeddingVariable, GivenRows, Noted, embedding_variables
from sparkdl.nn.gradient import try_forward
from sparkdl.wire.frame import Array


@dataclass(frozen=True, slots=True)
class Asked:
    """Ids that a batch asks a table for."""

    ids: Ids
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of ids."""

    ids: Ids
    admitted: NDArray[np.bool_]
    rows: Array


@dataclass(frozen=True, slots=True)
class RowGradient:
    """The gradient of rows."""

    ids: Ids  # ascending
    values: Array  # shape (ids, width)


def ask(forward: ForwardBackward, worker: Worker, token: Token, clock: Stopwatch) -> Mapping[str, Asked]:
    """Return the ids that an iteration's forward pass asks for, by table.

    A forward pass with rows of zeros tells: the module may compute ids from its inputs in any way. Raises
    ProblemError if the partition's files are missing.
    """
    spec, replica = worker.spec, worker.replica
    _, _, batches = forward.batches(worker, token)
    clock.lap("data")
    tables = embedding_variables(replica.module)
    noted: dict[str, list[Ids]] = {name: [] for name in tables}
    buffers, counters = replica.buffers(), replica.counters()
    with ExitStack() as reading:
        for name, table in tables.items():
            reading.enter_context(table.reading(Noted(noted[name])))
        for batch in batches:
            try_forward(replica, batch, spec.objective, spec.micro_batch_size)
    replica.load_buffers(buffers, counters)
    asked = {name: _counted(ids) for name, ids in noted.items()}
    clock.lap("compute")
    return asked


def _counted(parts: Sequence[Ids]) -> Asked:
    ids = np.concatenate([np.empty(0, np.int64), *parts])
    return Asked(*np.unique(ids, return_counts=True))


Lent = Mapping[str, tuple[Ids, torch.Tensor]]
"""By table, the ids that have a row, and the rows, which are in a module for one iteration."""


def gradients_of(lent: Lent) -> Mapping[str, RowGradient]:
    """Return the gradients of tables that have one."""
    # Added to zero, as those of parameters are: a negative zero becomes a zero.
    return {
        name: RowGradient(ids, (leaf.grad + 0.0).cpu().numpy())
        for name, (ids, leaf) in lent.items()
        if leaf.grad is not None
    }


@contextmanager
def lending(worker: Worker, found: Mapping[str, Sequence[Found]]) -> Iterator[Lent]:
    """Let the module replica of this process take the rows of an iteration for its own, for a while."""
    lent: dict[str, tuple[Ids, torch.Tensor]] = {}
    with ExitStack() as reading:
        for name, table in embedding_variables(worker.replica.module).items():
            given, ids = _given(table, found.get(name, ()))
            lent[name] = ids, given.rows
            reading.enter_context(table.reading(given))
        yield lent


def _given(table: EmbeddingVariable, found: Sequence[Found]) -> tuple[GivenRows, Ids]:
    """Return the rows of all owners in the order of their ids, and the ids that have one."""
    width, dtype = table.store.rule.width, table.store.rule.dtype
    ids = np.concatenate([np.empty(0, np.int64), *(part.ids for part in found)])
    admitted = np.concatenate([np.empty(0, np.bool_), *(part.admitted for part in found)])
    rows = np.concatenate([np.empty((0, width), dtype), *(part.rows for part in found)])
    places = np.cumsum(admitted) - 1
    order = np.argsort(ids)
    ids, admitted = ids[order], admitted[order]
    leaf = torch.from_numpy(rows[places[order][admitted]]).to(table.weight.device).requires_grad_()
    return GivenRows(ids, np.where(admitted, np.cumsum(admitted) - 1, -1), leaf), ids[admitted]

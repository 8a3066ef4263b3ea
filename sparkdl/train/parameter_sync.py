"""Job 2's task: shard n of all gradients in, slice n of the weights out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkdl._spark import key
from sparkdl.allreduce import slices, update
from sparkdl.allreduce.weights import WeightsRef
from sparkdl.frame import Buffer, Parts
from sparkdl.train.worker import FitRef


@dataclass(frozen=True, slots=True)
class ParameterSync:
    """Job 2's task of one iteration, the same for all slices.

    Attributes:
        fit: the fixed part.
        weights: current weights.
        slices: number of slices.
        turn: what the driver says in this iteration.
        keyed: whether what goes to the driver and what stays share the output, under their keys;
            otherwise nothing stays.
    """

    fit: FitRef
    weights: WeightsRef
    slices: int
    turn: update.Turn
    keyed: bool

    def __call__(self, index: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield the updated slice, its state and, from slice 0, the reports."""
        worker = self.fit.worker()
        spec = worker.spec
        start, stop = slices.bounds(spec.layout.numel, self.slices)[index]
        task = update.Update(
            spec.layout, start, stop, spec.rule, self.weights, spec.combine, spec.averaging, self.turn
        )
        for kind, parts in update.update_slice(task, frames):
            if self.keyed:
                yield key(kind)
                yield parts
            elif kind == update.RESULT:
                yield parts
        worker.end_task()


def keep(_: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Let frames that arrive in pieces stay with their slice, in these."""
    for piece in pieces:
        yield key(update.STATE)
        yield piece

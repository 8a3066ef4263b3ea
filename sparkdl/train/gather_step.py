"""Iterations in groups where slices have owners: the weights go from executor to executor.

Two stages per iteration, one more for each sum over all slices that an update needs::

    tokens ─► forward 1 ══ shards ══► sync 1 ══ slices ══► gather, forward 2 ══ shards ══► ... ══► gather k

The driver gets reports. The weights stay with the slices, persisted with what else they keep, and are fetched
when somebody looks at them: a hook, a validation, a checkpoint, the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import eq
from typing import Any

import numpy as np

from sparkdl import frame
from sparkdl._spark import JavaObject
from sparkdl.allreduce.weights import RemoteWeights, WeightsRef
from sparkdl.frame import Array
from sparkdl.train.chain import Chained
from sparkdl.train.executor_files import encode
from sparkdl.train.gather import Gather, SyncSlice
from sparkdl.train.kept import MASTER
from sparkdl.train.outcome import Outcome
from sparkdl.train.pieces import ChainTask
from sparkdl.train.replica import Delivery, Start
from sparkdl.train.replica_step import ReplicaStepper, model_after, outcomes_of
from sparkdl.train.step import Iteration, ModelState


class GatherStepper(ReplicaStepper):
    """Runs groups of iterations as chains of :mod:`sparkdl.train.gather`.

    Args:
        arguments: those of :class:`ReplicaStepper`.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**(arguments | {"keeps": True}))  # the weights, if nothing else
        # What stays is persisted at the end of each group, for some 10 ms per MB of weights.
        self.group_seconds = 4.0 + self._layout.nbytes / 20e6

    def _where(self, model: ModelState, replicated: bool) -> WeightsRef | None:
        there = replicated and isinstance(model.weights, RemoteWeights)
        return None if there else model.weights.ref

    def _seed(self, model: ModelState) -> list[Any]:
        """Broadcast what stays with each slice, for executors that do not have it."""
        return [self._jobs.sc.broadcast(bytearray().join(encode(frames))) for frames in self.fetch(model)]

    def _tasks(self, start: Start, iterations: Sequence[Iteration], local: bool) -> list[ChainTask]:
        phases = 1 + (self._reductions if self.slices > 1 else 0)
        tasks: list[ChainTask] = []
        for done, iteration in enumerate(iterations):
            delivery = Delivery(start.version.after(done), whole=False, local=local)
            forward = self._forward(iteration, start, delivery)
            tasks.append(Gather(self._fit, self.slices, start, done, forward))
            tasks += [
                SyncSlice(
                    self._fit, self.slices, start, done, iteration.turn, phase, phase == phases - 1, local
                )
                for phase in range(phases)
            ]
        return [*tasks, Gather(self._fit, self.slices, start, len(iterations), None)]

    def _frame_bytes(self) -> int:
        return self._slice_bytes()

    def _after(
        self, sent: Chained, iterations: Sequence[Iteration], model: ModelState, seed: Sequence[Any]
    ) -> tuple[ModelState, list[Outcome]]:
        """Leave the weights where they are, and tell what each iteration reports."""
        (message,) = [m for m in sent.messages if m.meta["kind"] == "trail"]
        kept, size = sent.kept, self._layout.nbytes
        new = RemoteWeights(
            model.weights.version + len(iterations),
            np.array(message.arrays["buffers"]),
            np.array(message.arrays["counters"]),
            size,
            lambda: self._master(kept),
            self.publish,
        )
        told = [[*one["slices"], one["reports"]] for one in message.meta["trail"]]
        gradient = message.arrays.get("gradient")
        outcomes = outcomes_of(iterations, told, sent, gradient, weights=size, slices=0)
        return model_after(model, new, sent, iterations, seed), outcomes

    def _master(self, kept: JavaObject | None) -> Array:
        """Fetch the weights from the slices."""
        slices = self._collect_kept(kept, partial(eq, MASTER), "fetch the weights")
        return np.concatenate([frame.unpack(data).arrays["params"] for _, data in slices])

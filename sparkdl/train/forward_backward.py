"""Job 1's task: this iteration's rows of one partition in, a gradient in N shards out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparkdl import frame, seeding
from sparkdl._spark import key
from sparkdl.allreduce import slices, update
from sparkdl.allreduce.weights import WeightsRef
from sparkdl.data import store
from sparkdl.data.columns import Structure
from sparkdl.exceptions import ModelError
from sparkdl.frame import Array, Parts
from sparkdl.nn.batch import Batch
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import BatchLoss, forward_backward
from sparkdl.train.cursor import Place
from sparkdl.train.drop import Allowance
from sparkdl.train.worker import FitRef, Worker


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """The task of one iteration, the same for all partitions.

    Attributes:
        fit: the fixed part.
        weights: current weights.
        slices: number of shards to cut the gradient into.
        place: the iteration's place in its epoch.
        iteration: completed iterations.
        frozen: parameters of the layout that are not trained now.
        allowance: what tasks may leave out; ``None`` for nothing.
    """

    fit: FitRef
    weights: WeightsRef
    slices: int
    place: Place
    iteration: int
    frozen: tuple[int, ...] = ()
    allowance: Allowance | None = None

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
        """Yield keyed frames: a shard for each slice, and a report for slice 0."""
        clock = Stopwatch()
        (token,) = [store.Token.from_frame(frame.unpack(data)) for data in frames]
        worker = self.fit.worker()
        yield from self._compute(partition, token, worker, clock)
        worker.end_task()

    def _compute(
        self, partition: int, token: store.Token, worker: Worker, clock: Stopwatch
    ) -> Iterator[bytes | Parts]:
        spec = worker.spec
        try:
            rows = self.place.rows(token, spec)
            columns = store.read_rows(token, rows) if len(rows) else {}
        except store.PartitionMissingError:
            yield from self._problem(partition, {"kind": "missing", "partition": partition})
            return
        if not len(rows):
            yield from self._report(partition, BatchLoss(0.0, 0.0, 0, {}), {}, clock)
            return
        seeding.seed_task(spec.seed, self.place.epoch, self.iteration, partition)
        batch = make_batch(columns, spec.features, spec.label, spec.weighted, spec.transform)
        clock.lap("data")
        current = self.weights.load().arrays
        replica = worker.replica
        replica.load(current["params"], current["buffers"], current["counters"])
        replica.set_frozen(self.frozen)
        clock.lap("weights_in")
        try:
            result = self._gradient(replica, batch, worker, clock, partition)
        except ModelError as error:
            where = f"iteration {self.iteration + 1}, partition {partition}, rows {_some(rows)}"
            raise ModelError(f"{where}: {error}") from error.__cause__
        clock.lap("compute")
        if not math.isfinite(result.loss):
            yield from self._problem(partition, {"kind": "loss", "partition": partition, "loss": result.loss})
            return
        if result.weight > 0:
            gradient, used, touched = replica.grad_numpy(), replica.used, replica.touched
            for n, (start, stop) in enumerate(slices.bounds(len(gradient), self.slices)):
                yield key(n)
                rows_here = {
                    index: mask
                    for index, mask in touched.items()
                    if spec.layout.params[index].offset < stop and spec.layout.params[index].end > start
                }
                yield update.shard_frame(
                    partition, result.weight, gradient[start:stop], used, rows_here, spec.gradient_codec
                )
        clock.lap("gradient_out")
        yield from self._report(partition, result, changed_buffers(replica, current), clock)

    def _gradient(
        self, replica: FlatModule, batch: Batch, worker: Worker, clock: Stopwatch, partition: int
    ) -> BatchLoss:
        spec, allowed = worker.spec, self.allowance
        if allowed is None:
            return forward_backward(replica, batch, spec.objective, spec.micro_batch_size)
        size = min(spec.micro_batch_size or batch.rows, allowed.size(batch.rows))
        return forward_backward(
            replica, batch, spec.objective, size, lambda done: allowed.ends(partition, done, clock.total())
        )

    def _report(
        self, partition: int, result: BatchLoss, arrays: dict[str, Array], clock: Stopwatch
    ) -> Iterator[bytes | Parts]:
        meta = {
            "kind": "report",
            "source": partition,
            "rows": result.rows,
            "dropped": result.dropped,
            "weight": result.weight,
            "loss": result.loss,
            "extras": result.extras,
            "task": {
                **update.place(),
                "start": clock.started,
                "seconds": clock.total(),
                "phases": clock.laps,
            },
        }
        yield key(0)
        yield frame.pack(meta, arrays)

    def _problem(self, partition: int, problem: dict[str, Any]) -> Iterator[bytes | Parts]:
        for n in range(self.slices):
            yield key(n)
            yield update.problem_frame(partition, problem)


class Stopwatch:
    """Times the phases of a task."""

    def __init__(self) -> None:
        self.started = time.time()
        self._begin = self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """Charge the time since the last lap to a phase."""
        now = time.perf_counter()
        self.laps[phase] = now - self._last
        self._last = now

    def total(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._begin


def make_batch(
    columns: dict[str, Array],
    features: Structure,
    label: Structure,
    weighted: bool,
    transform: Callable[[Any], Any] | None,
) -> Batch:
    """Turn stored columns into the tensors that module and loss are called with."""
    tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
    rows = len(next(iter(columns.values())))
    inputs = features.assemble(tensors)
    if transform is not None:
        inputs = transform(inputs)
    return Batch(inputs, label.assemble(tensors), tensors["weight"] if weighted else None, rows)


def changed_buffers(replica: FlatModule, before: Any) -> dict[str, Array]:
    """Return the buffers that the forward pass changed, by kind; most modules have none."""
    after = {"buffers": replica.buffers(), "counters": replica.counters()}
    return {name: a for name, a in after.items() if not np.array_equal(a, before[name])}


def _some(rows: Array) -> str:
    shown = ", ".join(str(row) for row in rows[:3])
    return shown + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")

"""Job 1's task: this iteration's rows of one partition in, a gradient in N shards out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl import frame, seeding
from sparkdl._spark import key
from sparkdl.allreduce import slices, update
from sparkdl.allreduce.weights import WeightsRef
from sparkdl.data import store
from sparkdl.data.columns import Structure
from sparkdl.data.manifest import Manifest
from sparkdl.exceptions import ModelError
from sparkdl.frame import Array, Buffer, Frame, Parts
from sparkdl.layout import ParamLayout
from sparkdl.nn.batch import Batch
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import BatchLoss, forward_backward
from sparkdl.rows import Indices, Rows, nonzero_rows
from sparkdl.train import stage
from sparkdl.train.culprit import find_culprit
from sparkdl.train.cursor import Place
from sparkdl.train.drop import Allowance
from sparkdl.train.executor_files import keep_lent
from sparkdl.train.inner import InnerSteps, take_steps
from sparkdl.train.partition_state import PartitionState
from sparkdl.train.replica import GRADIENT, Delivery
from sparkdl.train.worker import FitRef, FitSpec, Worker

_SCANNED_BYTES = 64 << 10
"""Tables of this size and more are looked through for rows of zeros."""

_WORTHWHILE = 1.5
"""Rows go alone if the table has so many times more."""


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """The task of one iteration, the same for all partitions.

    Attributes:
        fit: the fixed part.
        weights: current weights.
        slices: number of shards to cut the gradient into, or of copies to make of it.
        place: the iteration's place in its epoch.
        iteration: completed iterations.
        manifest: what the partitions had when they were built.
        frozen: parameters of the layout that are not trained now.
        allowance: what tasks may leave out; ``None`` for nothing.
        inner: the steps that a partition takes by itself; ``None`` if it sends its gradient.
        state: where a partition's own state is; ``None`` if it keeps none.
        delivery: how gradients are handed to the next stage of a chain, in two frames for each partition;
            ``None`` if the stage is a job of its own.
    """

    fit: FitRef
    weights: WeightsRef
    slices: int
    place: Place
    iteration: int
    manifest: Manifest
    frozen: tuple[int, ...] = ()
    allowance: Allowance | None = None
    inner: InnerSteps | None = None
    state: PartitionState | None = None
    delivery: Delivery | None = None

    def __call__(self, partition: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield keyed frames: a shard for each slice, and a report for slice 0."""
        clock = Stopwatch()
        (token,) = [store.Token.from_frame(frame.unpack(data)) for data in frames]
        worker = self.fit.worker()
        yield from self.compute(partition, token, worker, clock, lambda: self.weights.load().arrays)
        worker.end_task()

    def compute(
        self,
        partition: int,
        token: store.Token,
        worker: Worker,
        clock: Stopwatch,
        weights: Callable[[], Mapping[str, Array]],
    ) -> Iterator[bytes | Parts]:
        """Yield the keyed frames of a partition.

        Args:
            partition: the partition.
            token: where its rows are.
            worker: this process's state of the fit.
            clock: started with the task.
            weights: returns params, buffers and counters.
        """
        spec = worker.spec
        changed = self.manifest.problem(token)
        if changed is not None:
            yield from self._problem(partition, changed)
            return
        try:
            rows = self.place.rows(token, spec)
            columns = store.read_rows(token, rows) if len(rows) else {}
        except store.PartitionMissingError:
            yield from self._problem(partition, {"kind": "missing", "partition": partition})
            return
        if not len(rows):
            yield from self._nothing(partition)
            yield from self._report(token, BatchLoss(0.0, 0.0, 0, {}), {}, clock)
            return
        seeding.seed_task(spec.seed, self.place.epoch, self.iteration, partition)
        batches = [
            make_batch(part, spec.features, spec.label, spec.weighted, spec.transform)
            for part in self._parts(columns, len(rows))
        ]
        clock.lap("data")
        current = weights()
        replica = worker.replica
        replica.load(current["params"], current["buffers"], current["counters"])
        replica.set_frozen(self.frozen)
        before = self.state.read(partition) if self.state is not None else None
        lost = self.state is not None and before is None and self.iteration > 0
        clock.lap("weights_in")
        keep_lent()  # a gradient of another partition, or of an earlier attempt, in the replica's memory
        try:
            result, gradient = self._gradient(replica, batches, before or {}, worker, clock, partition)
        except ModelError as error:
            where = f"iteration {self.iteration + 1}, partition {partition}, rows {_some(rows)}"
            raise ModelError(f"{where}: {error}") from error.__cause__
        clock.lap("compute")
        if not math.isfinite(result.loss):
            found = find_culprit(spec.plan, token, rows, columns, batches) if spec.plan is not None else ""
            problem = {"kind": "loss", "partition": partition, "loss": result.loss, "found": found}
            yield from self._problem(partition, problem)
            return
        if result.weight > 0:
            yield from self._shards(partition, result.weight, gradient, before or {}, spec)
        else:
            yield from self._nothing(partition)
        clock.lap("gradient_out")
        yield from self._report(token, result, changed_buffers(replica, current), clock, lost)

    def _parts(self, columns: Mapping[str, Array], rows: int) -> Iterator[Mapping[str, Array]]:
        """Cut the rows of the iteration into those of the partition's own steps, if it takes any."""
        if self.inner is None:
            yield columns
            return
        for share in self.inner.shares(rows):
            yield {name: values[share] for name, values in columns.items()}

    def _gradient(
        self,
        replica: FlatModule,
        batches: Sequence[Batch],
        before: Mapping[str, Frame],
        worker: Worker,
        clock: Stopwatch,
        partition: int,
    ) -> tuple[BatchLoss, _Gradient]:
        """Return the partition's gradient, or how far its own steps went."""
        spec, allowed = worker.spec, self.allowance
        if self.inner is not None and spec.inner is not None:
            went = take_steps(
                replica,
                batches,
                spec.inner,
                self.inner,
                before.get("state"),
                lambda batch: forward_backward(replica, batch, spec.objective, spec.micro_batch_size),
            )
            kept = [went.state] if spec.inner.stateful else []
            return went.loss, _Gradient(went.way, went.used, {}, kept)
        (batch,) = batches
        if allowed is None:
            result = forward_backward(replica, batch, spec.objective, spec.micro_batch_size)
        else:
            size = min(spec.micro_batch_size or batch.rows, allowed.size(batch.rows))
            result = forward_backward(
                replica,
                batch,
                spec.objective,
                size,
                lambda done: allowed.ends(partition, done, clock.total()),
            )
        return result, _Gradient(replica.grad_numpy(), replica.used, replica.touched, [])

    def _shards(
        self,
        partition: int,
        weight: float,
        gradient: _Gradient,
        before: Mapping[str, Frame],
        spec: FitSpec,
    ) -> Iterator[bytes | Parts]:
        """Yield the gradient, cut or copied, after what was left out of it before was added."""
        values, touched, left_out = gradient.values, gradient.touched, None
        if spec.error_feedback:
            residual = before.get("residual")
            if residual is not None:
                values = values + residual.arrays["left_out"]
                touched = _touched_with(values, touched, spec.layout)
            left_out = np.empty_like(values)
        rows = _rows(values, touched, spec)
        used, kept = gradient.used, list(gradient.kept)
        if self.delivery is not None and self.delivery.whole:
            parts = update.shard_frame(
                partition, weight, values, used, rows, 0, spec.gradient_codec, left_out
            )
            own = self._own(partition, parts)
            for n in range(self.slices):
                yield key(n)
                yield own if n == partition else parts
        else:
            for n, (start, stop) in enumerate(slices.bounds(len(values), self.slices)):
                rest = left_out[start:stop] if left_out is not None else None
                parts = update.shard_frame(
                    partition, weight, values[start:stop], used, rows, start, spec.gradient_codec, rest
                )
                yield key(n)
                yield self._own(partition, parts) if n == partition else parts
        if left_out is not None:
            kept.append(frame.pack({"kind": "residual"}, {"left_out": left_out}))
        if self.state is not None:
            self.state.write(partition, kept)

    def _own(self, partition: int, parts: Parts) -> Parts:
        """Return what a partition sends to itself."""
        if self.delivery is None or not self.delivery.local:
            return parts
        return stage.own([parts], self.delivery.version, f"{GRADIENT}{partition}", local=True, lent=True)

    def _nothing(self, partition: int) -> Iterator[bytes]:
        """Send no gradient."""
        if self.state is not None:
            self.state.pass_on(partition)
        yield from self._no_gradient()

    def _no_gradient(self) -> Iterator[bytes]:
        if self.delivery is not None:
            for n in range(self.slices):
                yield key(n)
                yield b""

    def _report(
        self,
        token: store.Token,
        result: BatchLoss,
        arrays: dict[str, Array],
        clock: Stopwatch,
        lost: bool = False,
    ) -> Iterator[bytes | Parts]:
        meta = {
            "kind": "report",
            "source": token.partition,
            "rows": result.rows,
            "other": self.manifest.has_other_values(token),
            "dropped": result.dropped,
            "lost": int(lost),
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
        parts = frame.pack(meta, arrays)
        for n in range(self.slices if self.delivery is not None else 1):
            yield key(n)
            yield parts if n == 0 or (self.delivery is not None and self.delivery.whole) else b""

    def _problem(self, partition: int, problem: dict[str, Any]) -> Iterator[bytes | Parts]:
        yield from self._no_gradient()
        for n in range(self.slices):
            yield key(n)
            yield update.problem_frame(partition, {**problem, "iteration": self.iteration})


@dataclass(frozen=True, slots=True)
class _Gradient:
    """What a partition has to send.

    Attributes:
        values: gradient, shape (n,).
        used: per parameter of the layout, whether it has one.
        touched: rows that have one, by parameter, where the gradient is row-sparse.
        kept: frames for the partition's next iteration.
    """

    values: Array
    used: NDArray[np.bool_]
    touched: Mapping[int, NDArray[np.bool_]]
    kept: Sequence[Parts]


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
    columns: Mapping[str, Array],
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


def _rows(values: Array, touched: Mapping[int, NDArray[np.bool_]], spec: FitSpec) -> Rows | None:
    """Return the rows of tables that are to be sent; ``None`` if everything is."""
    tables: dict[int, Indices] = {index: np.flatnonzero(mask) for index, mask in touched.items()}
    for index in spec.scanned:
        table = spec.layout.params[index]
        if table.numel * values.itemsize < _SCANNED_BYTES:
            continue
        rows = nonzero_rows(values[table.offset : table.end].reshape(table.shape[0], -1))
        if len(rows) * _WORTHWHILE <= table.shape[0]:
            tables[index] = rows
    return Rows(spec.layout, tables) if tables else None


def _touched_with(
    values: Array, touched: Mapping[int, NDArray[np.bool_]], layout: ParamLayout
) -> Mapping[int, NDArray[np.bool_]]:
    """Return the rows that have a gradient now that more was added to it."""
    found = {}
    for index, rows in touched.items():
        spec = layout.params[index]
        found[index] = rows | values[spec.offset : spec.end].reshape(len(rows), -1).any(1)
    return found


def _some(rows: Array) -> str:
    shown = ", ".join(str(row) for row in rows[:3])
    return shown + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")

"""The contribution of one partition to a step: the gradient of its rows, or a pseudo-gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from sparkdl import seeding
from sparkdl.compute.culprit import find_culprit
from sparkdl.compute.local_steps import InnerSteps, take_steps
from sparkdl.compute.partition_state import PartitionState
from sparkdl.compute.problems import (
    BadRows,
    ChangedPartition,
    FailedModel,
    LocalState,
    MissingPartition,
    NonFiniteLoss,
    ProblemError,
)
from sparkdl.compute.stopwatch import Stopwatch
from sparkdl.compute.worker import Worker
from sparkdl.data.collate import Collate, collated
from sparkdl.data.columns import Structure
from sparkdl.data.sampler import EpochPlace, Rows
from sparkdl.data.store import partition as store
from sparkdl.data.store.manifest import Manifest
from sparkdl.exceptions import DataError, ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.flat import FlatModule, FlatWeights
from sparkdl.nn.gradient import BatchLoss, Gradient, forward_backward
from sparkdl.wire.frame import Array, Frame, Parts
from sparkdl.wire.held import Held


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of a partition to a step."""

    loss: BatchLoss  # loss, weight and rows of its share of the global batch
    gradient: Gradient | None = None  # ``None`` without rows, if all have weight zero, or if no label counts
    buffers: Mapping[str, Array] | None = None  # the buffers that the forward pass has changed, by kind
    before: Mapping[str, Held[Frame]] | None = None  # the partition's own state before the step, by kind
    own_state: Sequence[Parts] = ()  # the partition's own state after the step, without the residual
    lost: bool = False  # whether its own state was lost, so that it began with a fresh one
    other: bool = False  # whether its rows have other values than in the first build


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rows that tasks of one iteration may leave out."""

    chunks: int  # pieces in which a task goes through its rows
    # seconds after a task's start; later it begins no further piece. ``None`` for no deadline.
    deadline: float | None = None
    # for a replay, the rows that each partition took before, for partitions that left some out
    taken: Mapping[int, int] = field(default_factory=dict)
    most: float = 1.0  # largest share of all rows that may be missing

    def size(self, rows: int) -> int:
        """Return the rows of a piece."""
        return max(1, -(-rows // self.chunks))

    def ends(self, partition: int, done: int, seconds: float) -> bool:
        """Return whether a task that has done some of its rows must leave out the others."""
        if partition in self.taken:
            return done >= self.taken[partition]
        return self.deadline is not None and seconds > self.deadline


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """Forward and backward pass over a partition's rows of one iteration."""

    place: EpochPlace  # the iteration's place in its epoch
    iteration: int  # completed iterations
    manifest: Manifest  # checksums of the partitions' first build
    frozen: tuple[int, ...] = ()  # parameters of the layout that are not trained now
    allowance: Allowance | None = None  # what tasks may leave out; ``None`` for nothing
    # the steps that a partition takes by itself; ``None`` if it contributes its gradient
    inner: InnerSteps | None = None
    since: int = 0  # iteration from which on this one may have to run again
    # whether an error of the module is sent as a problem; otherwise it is raised, and Spark tries the task
    # again
    tells: bool = False

    def __call__(
        self,
        worker: Worker,
        token: store.Token,
        weights: Callable[[], Mapping[str, FlatWeights]],
        clock: Stopwatch,
    ) -> Contribution:
        """Compute a partition's contribution; ModelError if the module or the loss fails.

        Raises ProblemError if its files are missing, its rows have changed, or its loss is not finite.
        """
        spec, partition = worker.spec, token.partition
        self._check(token)
        rows, columns, batches = self.batches(worker, token)
        clock.file_bytes += rows.file_bytes()
        if not len(rows):
            return Contribution(BatchLoss(0.0, 0.0, 0, {}), other=self.manifest.has_other_values(token))
        clock.lap("data")
        current = weights()
        replica = worker.replica
        replica.load(current["params"], current["buffers"], current["counters"])  # type: ignore[arg-type]
        replica.set_frozen(self.frozen)
        state = self.state_of(worker, partition)
        before = state.take() if state is not None else None
        lost = state is not None and before is None and self.iteration > 0
        clock.lap("weights_in")
        worker.files.keep_lent()  # a gradient of another partition, or of an earlier attempt, in the replica
        try:
            result, gradient, own_state = self._gradient(
                replica, batches, before or {}, worker, clock, partition
            )
        except ModelError as error:
            where = f"iteration {self.iteration + 1}, partition {partition}, rows {_some(rows.numbers)}"
            message = f"{where}: {error}"
            if self.tells:
                raise ProblemError(FailedModel(self.iteration, partition, message)) from error
            raise ModelError(message) from error.__cause__
        try:
            worker.look(replica, batches[0], self.frozen)
        except ModelError as error:
            raise ProblemError(LocalState(self.iteration, partition, str(error))) from error
        clock.lap("compute")
        if not math.isfinite(result.loss):
            found = find_culprit(spec.columns, rows, columns, batches) if spec.columns is not None else ""
            raise ProblemError(NonFiniteLoss(self.iteration, partition, result.loss, found))
        changed = changed_buffers(replica, current)
        other = self.manifest.has_other_values(token)
        own = gradient if gradient.weight != 0 else None
        return Contribution(result, own, changed, before, own_state, lost, other)

    def batches(
        self, worker: Worker, token: store.Token
    ) -> tuple[Rows, Mapping[str, Array], Sequence[Batch]]:
        """Return the iteration's rows, their columns, and their batches, one for each step.

        Random numbers begin anew, for those of the transform.
        """
        spec, partition = worker.spec, token.partition
        try:
            rows = self.place.rows(token, spec.seed, spec.shuffle)
            columns = rows.read() if len(rows) else {}
        except store.PartitionMissingError:
            raise ProblemError(MissingPartition(self.iteration, partition)) from None
        except DataError as error:  # of a scan, whose rows nobody has looked at before
            raise ProblemError(BadRows(self.iteration, partition, error.args[0], error.code)) from error
        if not len(rows):
            return rows, columns, []
        _ = worker.replica  # which brings CUDA up, so that its generator is seeded in the first task as well
        seeding.seed_task(spec.seed, self.place.epoch, self.iteration, partition)
        made = (
            make_batch(part, spec.features, spec.label, spec.weighted, spec.transform, spec.collate)
            for part in self._parts(columns, len(rows))
        )
        batches = [replace(b, epoch=self.place.epoch, iteration=self.iteration) for b in made]
        return rows, columns, batches

    def _check(self, token: store.Token) -> None:
        changed = self.manifest.problem(token)
        if changed is not None:
            rows, expected, reason = (changed[name] for name in ("rows", "expected", "error"))
            raise ProblemError(ChangedPartition(self.iteration, token.partition, rows, expected, reason))

    def state_of(self, worker: Worker, partition: int) -> PartitionState | None:
        """Return the reader and writer of a partition's own state; ``None`` if it has none."""
        if not worker.spec.partition_state:
            return None
        return PartitionState(worker.partition_files, partition, self.iteration, self.since)

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
        before: Mapping[str, Held[Frame]],
        worker: Worker,
        clock: Stopwatch,
        partition: int,
    ) -> tuple[BatchLoss, Gradient, Sequence[Parts]]:
        """Return the loss, the gradient or pseudo-gradient, and the partition's new state."""
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
            state = [went.state] if spec.inner.stateful else []
            return went.loss, Gradient(went.way, went.used, {}, went.loss.weight), state
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
        return result, Gradient(replica.grad, replica.used, replica.touched, result.divisor), []


def make_batch(
    columns: Mapping[str, Array],
    features: Structure,
    label: Structure,
    weighted: bool,
    transform: Callable[[Any], Any] | None,
    collate: Collate | None = None,
) -> Batch:
    """Turn stored columns into the tensors that module and loss are called with."""
    rows = len(next(iter(columns.values())))
    weight = torch.from_numpy(columns["weight"]) if weighted else None
    if collate is None:
        tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
        inputs, target = features.assemble(tensors), label.assemble(tensors)
    else:
        inputs, target = collated(columns, features, label, collate)
    if transform is not None:
        inputs = transform(inputs)
    return Batch(inputs, target, weight, rows)


def changed_buffers(replica: FlatModule, before: Any) -> dict[str, Array]:
    """Return the buffers that the forward pass changed, by kind; most modules have none."""
    after = {"buffers": replica.buffers(), "counters": replica.counters()}
    return {name: a for name, a in after.items() if not np.array_equal(a, before[name])}


def _some(rows: Array) -> str:
    shown = ", ".join(str(row) for row in rows[:3])
    return shown + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")

"""A chain's task: every iteration of a group as one stage of one Spark job.

The task of stage t receives all gradients of iteration t - 1, makes the weights of iteration t from them
and goes on with that iteration's forward-backward. All executors do the same sums in the same order, so
that they come to the same weights; nothing has to be sent to them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sparkdl import frame
from sparkdl._spark import key
from sparkdl.allreduce import slices, update
from sparkdl.allreduce import weights as published
from sparkdl.allreduce.weights import WeightsRef
from sparkdl.frame import Buffer, Frame, Parts
from sparkdl.train import replica, stage
from sparkdl.train.forward_backward import ForwardBackward, Stopwatch
from sparkdl.train.kept import cut_kept
from sparkdl.train.live import LiveModel
from sparkdl.train.replica import Replica, Start
from sparkdl.train.stage import ProblemError
from sparkdl.train.worker import FitRef, FitSpec, Worker

Model = TypeVar("Model", Replica, LiveModel)


@dataclass(frozen=True, slots=True)
class UpdateStage(ABC, Generic[Model]):
    """The task of one stage where every executor makes the weights, the same for all partitions.

    Attributes:
        fit: the fixed part.
        partitions: number of partitions.
        start: what the group starts from.
        done: iterations of the group that are completed before this stage.
        turn: what the driver says in the iteration to complete; ``None`` in the first stage.
        forward: the iteration to begin; ``None`` in the last stage.
    """

    fit: FitRef
    partitions: int
    start: Start
    done: int
    turn: update.Turn | None
    forward: ForwardBackward | None

    def __call__(self, partition: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
        """Yield two frames for each partition, or what goes to the driver and what stays."""
        clock = Stopwatch()
        token, arrived = stage.receive(frames)
        worker = self.fit.worker()
        try:
            model = self._model(worker, partition, arrived)
        except ProblemError as error:
            onward = self.partitions if self.forward is not None else None
            yield from stage.pass_on(partition, error.problems, onward)
        else:
            if self.forward is not None:
                clock.lap("update")
                yield from self.forward.compute(partition, token, worker, clock, lambda: model.arrays)
            else:
                yield from self._finish(partition, model, worker.spec)
        worker.end_task()

    @abstractmethod
    def _model(self, worker: Worker, partition: int, arrived: list[Frame]) -> Model:
        """Return the model after the iterations so far."""

    @abstractmethod
    def _finish(self, partition: int, model: Model, spec: FitSpec) -> Iterator[bytes | Parts]:
        """Yield, keyed, what goes to the driver and what stays."""


@dataclass(frozen=True, slots=True)
class Advance(UpdateStage[Replica]):
    """The task of a stage that updates all weights.

    Attributes:
        keeps: whether anything stays with the weights after the last stage.
    """

    keeps: bool

    def _model(self, worker: Worker, partition: int, arrived: list[Frame]) -> Replica:
        """Return the model after the iterations so far."""
        if self.turn is None:
            found = self.start.load_weights()
            if found is None:
                raise stage.lacking(self.start.version.iteration, partition)
            return found
        stage.check(arrived)
        version = self.start.version.after(self.done + 1)
        made = replica.read(version)  # by another task on this executor, or an earlier attempt of this one
        if made is not None and len(made.trail) == self.done + 1:
            return made
        before = self.start.load() if not self.done else replica.read(version.after(-1))
        if before is None:
            raise stage.lacking(version.iteration - 1, partition)
        return self._update(worker, before, stage.resolve(arrived, version.after(-1)))

    def _update(self, worker: Worker, before: Replica, arrived: list[Frame]) -> Replica:
        """Make the next version of the model of all gradients."""
        spec, turn = worker.spec, self.turn
        assert turn is not None
        version = self.start.version.after(self.done + 1)
        task = update.Update(
            spec.layout,
            0,
            spec.layout.numel,
            spec.rule,
            WeightsRef(version.iteration - 1, before.weights),
            spec.combine,
            spec.averaging,
            turn,
        )
        kept: list[Parts] = []
        arrays = before.copy_buffers()
        report: dict[str, Any] = {}
        for kind, parts in update.update_slice(task, iter([*before.kept, *arrived])):
            if kind == update.STATE:
                kept.append(parts)
                continue
            message = frame.unpack(parts)
            stage.check_update(message.meta, version.iteration - 1)
            report[message.meta["kind"]] = message.meta
            arrays |= message.arrays
        weights = published.pack(version.iteration, **arrays)  # with the slice, which is all of them
        replica.write(version, weights, kept if self.keeps else [], [*before.trail, replica.report(report)])
        made = replica.read(version)
        if made is None:
            raise RuntimeError(f"{version.path} is gone as soon as it was written")
        return made

    def _finish(self, partition: int, model: Replica, spec: FitSpec) -> Iterator[bytes | Parts]:
        """Yield, keyed, the partition's part of what stays; the first one tells the driver the rest."""
        if partition == 0:
            yield key(update.RESULT)
            yield frame.parts(model.weights)
            yield key(update.RESULT)
            yield frame.pack({"kind": "trail", "trail": replica.read_trail(model.trail)})
        kept = [frame.unpack(data) for data in model.kept]
        bounds = slices.bounds(spec.layout.numel, self.partitions)[partition]
        for parts in cut_kept(kept, [bounds])[0]:
            yield key(update.STATE)
            yield parts

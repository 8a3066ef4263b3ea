"""Iterations in groups, each group one Spark job; every executor makes all weights itself.

Stage t of a group's chain is iteration t's forward-backward, preceded by the update of iteration t - 1::

    tokens ─► forward 1 ══ all to all ══► update 1, forward 2 ══► ... ══► update k ─► driver
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sparkdl import frame
from sparkdl._spark import broadcast_id
from sparkdl.allreduce import slices
from sparkdl.allreduce.update import Turn
from sparkdl.allreduce.weights import RemoteWeights, Weights, WeightsRef
from sparkdl.data.dataset import MAX_REBUILDS
from sparkdl.exceptions import ConfigError, ModelError, TaskError
from sparkdl.frame import Array, Frame
from sparkdl.layout import ParamLayout
from sparkdl.train.advance import Advance
from sparkdl.train.chain import Chain, Chained
from sparkdl.train.config import Exchange, TrainConfig
from sparkdl.train.executor_files import encode
from sparkdl.train.forward_backward import ForwardBackward
from sparkdl.train.kept import cut_kept
from sparkdl.train.outcome import Outcome, outcome_of
from sparkdl.train.pieces import ChainTask
from sparkdl.train.replica import Delivery, Start, Version
from sparkdl.train.run import Kept, Snapshot
from sparkdl.train.step import (
    Iteration,
    ModelState,
    Stepper,
    average_buffers,
    job_errors,
    missing_partitions,
    problems_among,
    still_missing,
)

LONGEST_GROUP = 50
"""Iterations of one job: a job of more stages saves nothing more, and takes longer to undo."""

_REPLICAS_BYTES = 32 << 20
"""Up to so many bytes of gradients per task and iteration replicas are the automatic choice."""

_MOST_GATHERED_BYTES = 256 << 20
"""Slices of up to this size may be gathered."""

_FAILING = re.compile(r"iteration (\d+), partition ")
"""How the message of a module that fails in a task begins."""

_LOCALITY = "spark.shuffle.reduceLocality.enabled"


def choose_exchange(
    config: TrainConfig, layout: ParamLayout, sc: Any, partitions: int, rows: bool = False
) -> Exchange:
    """Return the exchange that is wanted, or the one that suits the size.

    Args:
        config: the options.
        layout: layout of the flat vectors.
        sc: the SparkContext.
        partitions: number of partitions.
        rows: whether rows of tables should be exchanged if nobody says otherwise.

    Raises:
        ConfigError: if chains are wanted in a session that would run their tasks away from their rows.
    """
    wanted = config.exchange if config.weights_codec == "fp32" else "gather"
    moves = sc.getConf().get(_LOCALITY, "true") == "true" and not sc.master.startswith("local[")
    if wanted in ("replicas", "gather", "rows") and moves:
        raise ConfigError(
            f"exchange={wanted!r} needs a session with {_LOCALITY}=false, which is read when Spark starts: "
            "make it with sparkdl.session.builder(...), or set it in your confs",
            code="config-cluster",
        )
    weights = layout.nbytes
    if wanted == "gather" and weights > partitions * _MOST_GATHERED_BYTES:
        raise ConfigError(
            f"exchange='gather': {weights >> 20} MiB of weights over {partitions} partitions are slices of "
            f"more than {_MOST_GATHERED_BYTES >> 20} MiB; give the Dataset a larger num_partitions, or "
            "take exchange='slices'"
        )
    if wanted != "auto":
        return wanted
    if moves or config.num_slices is not None or config.drop_stragglers is not None:
        return "slices"
    if rows:
        return "rows"
    if partitions * weights <= _REPLICAS_BYTES:
        return "replicas"
    return "gather" if weights <= partitions * _MOST_GATHERED_BYTES else "slices"


class ReplicaStepper(Stepper):
    """Runs groups of iterations as chains (:mod:`sparkdl.train.chain`).

    What stays with the weights lies on the executors twice: whole, in files, from which the next group
    starts, and cut into one slice per partition, persisted, from which files are made again where they are
    lost, commits and checkpoints written.

    Args:
        averages: whether weights are averaged.
        arguments: those of :class:`Stepper`.
    """

    def __init__(self, *, averages: bool, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._averages = averages
        self._chain = Chain(self._jobs, self._keeps, self._profile)
        self._generation = 0

    @property
    def longest_group(self) -> int:
        """How many iterations :meth:`run` takes at once, at most.

        Averaged buffers are kept by the driver, which sees those of a group's last iteration only.
        """
        return 1 if self._averages and self._layout.buffers else LONGEST_GROUP

    def _choose_slices(self) -> int:
        return len(self.store.partitions)

    def replace(self, model: ModelState, snapshot: Snapshot) -> ModelState:
        """Go on with other weights; what stays with them stays."""
        self._generation += 1
        return super().replace(model, snapshot)

    def restore(self, snapshot: Snapshot, kept: Kept, average_buffers: Array | None) -> ModelState:
        """Go on from a copy on the driver."""
        self._generation += 1
        return super().restore(snapshot, kept, average_buffers)

    def run(self, iterations: Sequence[Iteration], model: ModelState) -> tuple[ModelState, list[Outcome]]:
        """Run a group of iterations; see :meth:`Stepper.run`."""
        seed: list[Any] = []
        try:
            return self._run(iterations, model, seed)
        except BaseException:
            for broadcast in seed:
                broadcast.destroy()
            raise

    def _run(
        self, iterations: Sequence[Iteration], model: ModelState, seed: list[Any]
    ) -> tuple[ModelState, list[Outcome]]:
        first = iterations[0]
        version = Version(self._fit.fit_id, self._generation, first.state.iteration)
        replicated, local = model.replicated, True
        for _ in range(MAX_REBUILDS):
            if not seed and model.kept is not None and not replicated:
                seed += self._seed(model)
            ref = self._where(model, replicated)
            start = Start(version, ref, model.kept is not None, tuple(map(broadcast_id, seed)))
            try:
                with job_errors(first):
                    sent = self._run_job(start, iterations, model, seed, local)
            except (TaskError, ModelError) as error:
                if len(iterations) == 1 or (isinstance(error, TaskError) and not error.remote_traceback):
                    raise
                # The user's code fails in one of them: those before it are completed.
                iterations = iterations[: _sound(error, first, len(iterations))]
                continue
            problems = problems_among(sent.messages)
            if not problems:
                break
            if sent.kept is not None:
                self._jobs.unpersist(sent.kept)
            if any(problem["kind"] == "replica" for problem in problems):
                # Executors have come, or tasks went elsewhere. One iteration that relies on no file makes
                # files for the next group.
                replicated, local, iterations = False, False, iterations[:1]
            fatal = [problem for problem in problems if problem["kind"] not in ("replica", "missing")]
            sound = min((problem["iteration"] for problem in fatal), default=0) - first.state.iteration
            if sound > 0:  # those before it are completed; the next group will begin with it
                iterations, fatal = iterations[:sound], []
            missing = [problem for problem in problems if problem["kind"] == "missing"]
            for partition in missing_partitions(first, fatal + missing):
                self._chain.forget(self.store, partition)
        else:
            raise still_missing(first)
        return self._after(sent, iterations, model, seed)

    def _where(self, model: ModelState, replicated: bool) -> WeightsRef | None:
        """Return where executors find the weights; ``None`` if they have them as files."""
        return model.weights.ref

    def close(self) -> None:
        """Delete what is on the executors besides models."""
        super().close()
        self._chain.release()

    def _seed(self, model: ModelState) -> list[Any]:
        """Broadcast what stays with the weights, for executors that do not have it."""
        messages = [frame.unpack(data) for frames in self.fetch(model) for data in frames]
        (whole,) = cut_kept(messages, slices.bounds(self._layout.numel, 1))
        return [self._jobs.sc.broadcast(frame.join(encode(whole)))]

    def _run_job(
        self,
        start: Start,
        iterations: Sequence[Iteration],
        model: ModelState,
        seed: Sequence[Any],
        local: bool,
    ) -> Chained:
        self._leaves_files = True
        cursor = iterations[0].cursor
        broadcasts = [
            self._fit_broadcast,
            *model.weights.broadcasts,
            *(cursor.broadcasts if cursor is not None else ()),
            *seed,
        ]
        last = iterations[-1].state.iteration + 1
        name = "forward-backward and sync" if len(iterations) == 1 else f"up to iteration {last}"
        describe = self._describe(iterations[0].state, name)
        tasks = self._tasks(start, iterations, local)
        return self._chain.run(self.store, tasks, broadcasts, describe, self._frame_bytes())

    def _frame_bytes(self) -> int:
        """Return how long a frame is that a task sends to another, about."""
        return self._layout.nbytes

    def _tasks(self, start: Start, iterations: Sequence[Iteration], local: bool) -> list[ChainTask]:
        """Return the task of each stage."""
        return [
            Advance(self._fit, self.slices, start, done, turn, forward, self._keeps)
            for done, turn, forward in self._stages(start, iterations, local)
        ]

    def _stages(
        self, start: Start, iterations: Sequence[Iteration], local: bool
    ) -> Iterator[tuple[int, Turn | None, ForwardBackward | None]]:
        """Yield, for each stage, what is completed before it, the update and the iteration to begin."""
        turn: Turn | None = None
        for done, iteration in enumerate([*iterations, None], start=-1):
            forward = None
            if iteration is not None:
                delivery = Delivery(start.version.after(done + 1), whole=True, local=local)
                forward = self._forward(iteration, start, delivery)
            yield done, turn, forward
            turn = iteration.turn if iteration is not None else None

    def _forward(self, iteration: Iteration, start: Start, delivery: Delivery) -> ForwardBackward:
        nowhere = WeightsRef(0, None)  # they are on the executor
        since = start.version.iteration
        return self._forward_backward(iteration, nowhere, since, delivery=delivery)

    def _after(
        self, sent: Chained, iterations: Sequence[Iteration], model: ModelState, seed: Sequence[Any]
    ) -> tuple[ModelState, list[Outcome]]:
        """Publish the weights that came back, and tell what each iteration reports."""
        begin = time.perf_counter()
        (message,) = [m for m in sent.messages if m.meta["kind"] == "weights"]
        (trail,) = [m.meta["trail"] for m in sent.messages if m.meta["kind"] == "trail"]
        arrays = {name: np.array(message.arrays[name]) for name in ("params", "buffers", "counters")}
        new = self.publish(model.weights.version + len(iterations), **arrays)
        told = [[one["slice"], one["reports"]] for one in trail]
        outcomes = outcomes_of(
            iterations,
            told,
            sent,
            message.arrays.get("gradient"),
            weights=new.nbytes // len(iterations),
            slices=new.params.nbytes // len(iterations),
            publish_seconds=time.perf_counter() - begin,
        )
        return model_after(model, new, sent, iterations, seed), outcomes


def _sound(error: Exception, first: Iteration, count: int) -> int:
    """Return how many iterations of a group to try again, after one that fails: at least one."""
    told = _FAILING.match(str(error))
    before = int(told[1]) - 1 - first.state.iteration if told is not None else 1
    return max(1, min(before, count - 1))


def outcomes_of(
    iterations: Sequence[Iteration],
    told: Sequence[Sequence[Mapping[str, Any]]],
    sent: Chained,
    gradient: Array | None,
    *,
    weights: int,
    slices: int,
    publish_seconds: float = 0.0,
) -> list[Outcome]:
    """Return what each iteration of a group reports.

    Args:
        iterations: the group.
        told: of each, the headers of what its slices have sent.
        sent: what its job has sent.
        gradient: combined gradient of an iteration that wants it, which is alone in its group.
        weights: bytes of weights that each executor received per iteration.
        slices: bytes of slices that the driver received per iteration.
        publish_seconds: how long the driver took to publish the weights.
    """
    share = {
        "job": sent.seconds / len(iterations),
        "broadcast": publish_seconds / len(iterations),
    }
    return [
        outcome_of(
            [Frame(meta) for meta in metas],
            started=sent.started + index * share["job"],
            seconds=share,
            weights=weights,
            slices=slices,
            gradient=gradient if iteration.turn.gradient else None,
        )
        for index, (iteration, metas) in enumerate(zip(iterations, told, strict=True))
    ]


def model_after(
    before: ModelState,
    weights: Weights | RemoteWeights,
    sent: Chained,
    iterations: Sequence[Iteration],
    seed: Sequence[Any],
) -> ModelState:
    """Return the model after a group."""
    outdated = before.weights if sent.kept is not None else None
    weight = max(iteration.turn.average for iteration in iterations)
    buffers = average_buffers(before.average_buffers, weights.buffers, weight)
    return ModelState(weights, sent.kept, outdated, buffers, replicated=True, seed=seed)

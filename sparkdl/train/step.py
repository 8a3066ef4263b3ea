"""One iteration: forward-backward, parameter sync, new weights.

This is the only module that joins ``data``, ``nn``, ``allreduce`` and ``optim``. Everything that
survives an iteration is in :class:`ModelState`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from operator import eq, itemgetter
from typing import Any

import numpy as np

from sparkdl import frame
from sparkdl._spark import FrameJobs, JavaObject, is_job_failure, task_error
from sparkdl.allreduce import slices, update
from sparkdl.allreduce.update import Turn
from sparkdl.allreduce.weights import RemoteWeights, Weights, WeightsRef, publish
from sparkdl.data.dataset import MAX_REBUILDS, Store
from sparkdl.data.manifest import changed_error
from sparkdl.exceptions import DataError, ModelError, NonFiniteError
from sparkdl.frame import Array, Buffer, Frame
from sparkdl.layout import ParamLayout
from sparkdl.optim.reduction import add_up
from sparkdl.pieces import PIECE_BYTES, cut, joined, joined_by_source
from sparkdl.train.cursor import Cursor, Place
from sparkdl.train.drop import Allowance
from sparkdl.train.forward_backward import ForwardBackward
from sparkdl.train.inner import InnerSteps
from sparkdl.train.kept import is_not_master
from sparkdl.train.outcome import Outcome, outcome_of
from sparkdl.train.parameter_sync import ParameterSync, keep
from sparkdl.train.partition_state import PartitionState
from sparkdl.train.pieces import MORE, InPieces, InRounds
from sparkdl.train.run import Kept, Snapshot
from sparkdl.train.slice_files import WriteSlice
from sparkdl.train.state import TrainState
from sparkdl.train.worker import FitRef, forget_fit

_log = logging.getLogger("sparkdl")

_COLLECTED_BYTES = 256 << 20
"""So much of what stays with the slices one job sends to the driver, about."""

_RESULT_BYTES = 64 << 20
"""So much of it one task sends: the executor's heap holds what a task returns up to three times."""

_ONE_SLICE_BYTES = 4 << 20
"""Up to this size an update that needs reductions runs as one slice: nothing is left to reduce, and
each reduction would be a job of its own."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """What one iteration leaves for the next.

    Attributes:
        weights: published weights and buffers.
        kept: persisted RDD of keyed frames with what stays with each slice: the optimizer's state
            and the averaged weights; ``None`` before the first iteration, and always if there is
            neither.
        outdated: the weights before these, as long as the task that made ``kept`` names
            their broadcast: Spark ships that task's description with every job that reads its RDD.
        average_buffers: averaged floating-point buffers, if weights are averaged.
        replicated: whether the executors that made it have it as a file (``train/replica.py``).
        seed: broadcasts of what stayed with the weights before these, named like ``outdated``.
    """

    weights: Weights | RemoteWeights
    kept: JavaObject | None = None
    outdated: Weights | RemoteWeights | None = None
    average_buffers: Array | None = None
    replicated: bool = False
    seed: Sequence[Any] = ()

    def release(self, jobs: FrameJobs) -> None:
        """Delete weights and optimizer state from the executors."""
        self.weights.release()
        self.release_outdated(jobs)

    def release_outdated(self, jobs: FrameJobs) -> None:
        """Delete what a completed next iteration no longer needs."""
        if self.kept is not None:
            jobs.unpersist(self.kept)
        if self.outdated is not None:
            self.outdated.release()
        for broadcast in self.seed:
            broadcast.destroy()


@dataclass(frozen=True, slots=True)
class Iteration:
    """What makes an iteration what it is, so that it can run again.

    Attributes:
        state: position before it.
        steps: iterations of its epoch.
        turn: what its update is told.
        frozen: parameters of the layout that are not trained.
        cursor: what is left of the epoch, if its rows have moved to other partitions.
        allowance: what slow tasks may leave out; ``None`` for nothing.
        inner: the steps that each partition takes by itself; ``None`` if it sends its gradient.
    """

    state: TrainState
    steps: int
    turn: Turn = field(default_factory=Turn)
    frozen: tuple[int, ...] = ()
    cursor: Cursor | None = None
    allowance: Allowance | None = None
    inner: InnerSteps | None = None

    @property
    def place(self) -> Place:
        """Where it is in its epoch."""
        ref = self.cursor.ref if self.cursor is not None else None
        return Place(self.state.epoch, self.state.step, self.steps, ref)

    def same_as(self, other: Iteration) -> bool:
        """Return whether both do the same, whatever the state knew of loss and time."""
        return (
            self.place == other.place
            and self.state.iteration == other.state.iteration
            and self.turn == other.turn
            and self.frozen == other.frozen
            and self.allowance is other.allowance
            and self.inner == other.inner
        )

    def __str__(self) -> str:
        return f"iteration {self.state.iteration + 1}, epoch {self.state.epoch + 1}"


@dataclass(slots=True)
class _Sent:
    """What an iteration's jobs sent to the driver and left on the executors."""

    messages: list[Frame]
    kept: JavaObject | None
    torn: bool
    started: float
    seconds: dict[str, float]


class Stepper:
    """Runs iterations as Spark jobs.

    Args:
        jobs: Spark access.
        store: the partition store.
        fit: the fixed part of the fit, broadcast.
        fit_broadcast: the broadcast itself.
        layout: layout of the flat vectors.
        num_slices: number of parameter-sync tasks; ``None`` to choose it.
        reductions: reductions of an update of several slices.
        keeps: whether anything stays with the slices between iterations.
        profile: resource profile of forward-backward tasks.
        partition_state: whether partitions keep a state of their own (``train/partition_state.py``).
        describe: names a job from the iteration's state and the job's kind.

    Attributes:
        store: as given, until :meth:`resize`.
        slices: number of parameter-sync tasks.
    """

    def __init__(
        self,
        *,
        jobs: FrameJobs,
        store: Store,
        fit: FitRef,
        fit_broadcast: Any,
        layout: ParamLayout,
        num_slices: int | None,
        reductions: int,
        keeps: bool,
        profile: JavaObject | None,
        partition_state: bool,
        describe: Callable[[TrainState, str], str],
    ) -> None:
        self._jobs = jobs
        self.store = store
        self._fit = replace(fit, in_memory=self._one_process())
        self._fit_broadcast = fit_broadcast
        self._layout = layout
        self._num_slices = num_slices
        self._reductions = reductions
        self._keeps = keeps
        self._profile = profile
        self._partition_state = partition_state
        self._leaves_files = False
        self._describe = describe
        self.slices = self._choose_slices()

    def resize(self, store: Store) -> None:
        """Use another store from now on.

        There may be another number of slices then, for which :meth:`restore` is to be given what stayed
        with those before, cut anew.
        """
        self.store = store
        self._fit = replace(self._fit, in_memory=self._one_process())
        self.slices = self._choose_slices()

    def _one_process(self) -> bool:
        """Return whether the same Python process runs all tasks of an executor."""
        get = self._jobs.sc.getConf().get
        reused = get("spark.python.worker.reuse", "true") == "true"
        # Of two attempts of a task at a time one is killed, and its process with it.
        return self.store.executors.cores == 1 and reused and get("spark.speculation", "false") == "false"

    def _choose_slices(self) -> int:
        if self._num_slices is not None:
            return self._num_slices
        if self._reductions and self._layout.nbytes <= _ONE_SLICE_BYTES:
            return 1
        return slices.count(self._layout, len(self.store.partitions))

    def publish(self, version: int, params: Array, buffers: Array, counters: Array) -> Weights:
        """Make weights available to the tasks."""
        return publish(self._jobs.sc, version, params, buffers, counters)

    def replace(self, model: ModelState, snapshot: Snapshot) -> ModelState:
        """Go on with other weights; what stays with the slices stays."""
        old = model.weights
        new = self.publish(old.version, snapshot.params, snapshot.buffers, snapshot.counters)
        old.release()
        return replace(model, weights=new, replicated=False)

    @contextmanager
    def published(self, snapshot: Snapshot | None, model: ModelState) -> Iterator[Weights | RemoteWeights]:
        """Publish weights for a while; the model's own, which are published, if there are no others."""
        if snapshot is None:
            yield model.weights
            return
        weights = self.publish(model.weights.version, snapshot.params, snapshot.buffers, snapshot.counters)
        try:
            yield weights
        finally:
            weights.release()

    group_seconds = 1.0
    """How long a group of iterations should take, if it may be of any size."""

    @property
    def longest_group(self) -> int:
        """How many iterations :meth:`run` takes at once, at most."""
        return 1

    def run(self, iterations: Sequence[Iteration], model: ModelState) -> tuple[ModelState, list[Outcome]]:
        """Run iterations.

        Args:
            iterations: which ones, and what is particular about each; at most :attr:`longest_group`.
            model: weights and optimizer state before them; still valid after this, until
                :meth:`let_go`.

        Returns:
            The model after them and what each reports; fewer than were given if a later one failed.

        Raises:
            NonFiniteError: if loss or gradient of the first one became NaN or infinite.
            ModelError: if the module fails on the rows.
            TaskError: if a task failed for another reason.
        """
        (iteration,) = iterations
        for _ in range(MAX_REBUILDS):
            with job_errors(iteration):
                sent = self._run_jobs(iteration, model)
            problems = problems_among(sent.messages)
            refused = not problems and (sent.torn or _too_many(sent.messages, iteration.allowance))
            if not problems and not refused:
                break
            if sent.kept is not None:
                self._jobs.unpersist(sent.kept)
            if refused and iteration.allowance is not None:
                iteration = replace(iteration, allowance=Allowance(iteration.allowance.chunks))
            for partition in missing_partitions(iteration, problems):
                self._jobs.drop_block(self.store.tokens.id(), partition)
        else:
            raise still_missing(iteration)
        begin = time.perf_counter()
        new = self._assemble(sent.messages, model.weights)
        sent.seconds["broadcast"] = time.perf_counter() - begin
        outdated = model.weights if sent.kept is not None else None
        buffers = average_buffers(model.average_buffers, new.buffers, iteration.turn.average)
        gradient = _join_slices(sent.messages, "gradient", new.params) if iteration.turn.gradient else None
        outcome = outcome_of(
            sent.messages,
            started=sent.started,
            seconds=sent.seconds,
            weights=new.nbytes,
            slices=new.params.nbytes,
            gradient=gradient,
        )
        return ModelState(new, sent.kept, outdated, buffers), [outcome]

    def close(self) -> None:
        """Delete what is on the executors besides models; what executors that fail keep goes with them."""
        if not self._leaves_files:
            return
        jobs = self._jobs
        jobs.describe("sparkdl: delete the run's files")
        try:
            # On all of them: where tasks have run in the course of losses, no RDD knows any more.
            jobs.run_on_executors(partial(forget_fit, self._fit.fit_id), profile=self._profile)
        except Exception as error:
            if not is_job_failure(error):
                raise
            _log.debug("files of fit %s were not deleted: %s", self._fit.fit_id, error)
        finally:
            jobs.describe(None)

    def _forward_backward(
        self, iteration: Iteration, weights: WeightsRef, since: int, **more: Any
    ) -> ForwardBackward:
        """Return the task of an iteration.

        Args:
            iteration: which one.
            weights: what it starts from.
            since: iteration from which on it may have to run again.
            **more: further fields.
        """
        number = iteration.state.iteration
        state = PartitionState(self._fit.fit_id, number, since) if self._partition_state else None
        self._leaves_files |= state is not None
        return ForwardBackward(
            self._fit,
            weights,
            self.slices,
            iteration.place,
            number,
            self.store.manifest,
            iteration.frozen,
            iteration.allowance,
            iteration.inner,
            state,
            **more,
        )

    def let_go(self, before: ModelState, after: ModelState) -> None:
        """Release what nobody needs any more once the iterations between two models are completed."""
        before.release_outdated(self._jobs)
        if after.kept is None:
            before.weights.release()

    def _run_jobs(self, iteration: Iteration, model: ModelState) -> _Sent:
        """Run the iteration's jobs and return what the slices sent back."""
        jobs, weights, state, turn = self._jobs, model.weights, iteration.state, iteration.turn
        phases = 1 + (self._reductions if self.slices > 1 else 0)
        broadcasts = [self._fit_broadcast, *weights.broadcasts]
        started, times = time.time(), [time.perf_counter()]

        # Job 1: each partition's gradient, cut into shards, written as the map side of a shuffle.
        forward_backward = self._forward_backward(iteration, weights.ref, state.iteration)
        moved = iteration.cursor.broadcasts if iteration.cursor is not None else ()
        task = InPieces(forward_backward)
        shards = jobs.stage(self.store.tokens, task, [*broadcasts, *moved], profile=self._profile)
        shuffled = jobs.shuffle(jobs.keyed(shards), self.slices)
        kept: JavaObject | None = None
        sums: JavaObject | None = None
        messages: list[Frame] = []
        torn = False
        try:
            jobs.describe(self._describe(state, "forward-backward"))
            jobs.run_map_side(shuffled)
            times.append(time.perf_counter())

            # Job 2: shard n of all partitions and the state of slice n meet in task n. Where an update
            # needs sums over all slices, each is a job before it: the first also leaves the sums of the
            # shards, from which the later ones go on.
            for phase in range(phases):
                last = phase == phases - 1
                arriving = jobs.values(shuffled) if sums is None else _staying(jobs, sums)
                if model.kept is not None:
                    arriving = jobs.union(_staying(jobs, model.kept), arriving)
                keyed = self._keeps if last else phase == 0
                sync = ParameterSync(self._fit, weights.ref, self.slices, turn, keyed)
                task = InPieces(sync, token=False, keyed=keyed)
                results = jobs.stage(arriving, task, broadcasts, preserves_partitioning=True)
                if keyed and last:
                    kept = results
                    jobs.persist_replicated(kept, self._slice_bytes())
                elif keyed:
                    sums = results
                    jobs.persist(sums)
                if keyed:
                    results = jobs.select(jobs.keyed(results), update.RESULT, drop=[update.STATE])
                jobs.describe(self._describe(state, "parameter sync" if last else "reduction"))
                received = [frame.unpack(data) for data in joined(jobs.collect(results))]
                messages += received
                torn = _torn(received)
                if torn or problems_among(received):
                    break
                if not last:
                    turn = replace(turn, totals=(*turn.totals, _total(received)))
            times.append(time.perf_counter())
        except BaseException:
            if kept is not None:
                jobs.unpersist(kept)
            raise
        finally:
            jobs.describe(None)
            if sums is not None:
                jobs.unpersist(sums)
            jobs.release_shuffle(shuffled)
        seconds = {"job1": times[1] - times[0], "job2": times[2] - times[1]}
        return _Sent(messages, kept, torn, started, seconds)

    def average(self, model: ModelState) -> Array:
        """Fetch the averaged weights; the current ones before the first iteration."""
        if model.kept is None:
            return model.weights.params
        slices = self._collect_kept(model.kept, partial(eq, "average"), "fetch the averaged weights")
        parts = [frame.unpack(data).arrays["params"] for _, data in slices]
        return np.concatenate(parts) if parts else model.weights.params

    def fetch(self, model: ModelState) -> Kept:
        """Copy what stays with the slices to the driver.

        Raises:
            TaskError: if it cannot be read.
        """
        if model.kept is None:
            return []
        found: Kept = [[] for _ in range(self.slices)]
        for index, data in self._collect_kept(model.kept, is_not_master, "fetch the optimizer's state"):
            found[index].append(bytes(data))
        return found

    def write(self, model: ModelState, folder: str) -> dict[str, str]:
        """Let the slices' owners write what stays with them, as files in a folder that all executors reach.

        Returns:
            sha256 by file name.

        Raises:
            TaskError: if it cannot be read or written.
        """
        if model.kept is None:
            return {}
        task = InPieces(WriteSlice(folder, self.slices), token=False, keyed=False)
        with self._reading_kept("write the optimizer's state"):
            received = self._jobs.collect(self._jobs.stage(_staying(self._jobs, model.kept), task))
        return {meta["name"]: meta["sha256"] for meta in (frame.unpack(d).meta for d in joined(received))}

    def restore(self, snapshot: Snapshot, kept: Kept, average_buffers: Array | None) -> ModelState:
        """Publish weights and let frames from :meth:`fetch` stay with the slices again.

        Raises:
            TaskError: if the job fails.
        """
        jobs = self._jobs
        restored: JavaObject | None = None
        if kept:
            pieces = ((n, piece) for n, frames in enumerate(kept) for piece in cut(n, frames))
            shuffled = jobs.shuffle(jobs.scattered(pieces), self.slices)
            restored = jobs.stage(jobs.values(shuffled), keep, preserves_partitioning=True)
            jobs.persist_replicated(restored, self._slice_bytes())
            jobs.describe("sparkdl: restore the optimizer's state")
            try:
                jobs.collect(jobs.select(jobs.keyed(restored), update.RESULT, drop=[update.STATE]))
            except Exception as error:
                jobs.unpersist(restored)
                if is_job_failure(error):
                    raise task_error(error, "restoring the optimizer's state") from None
                raise
            finally:
                jobs.describe(None)
                jobs.release_shuffle(shuffled)
        weights = self.publish(0, snapshot.params, snapshot.buffers, snapshot.counters)
        return ModelState(weights, restored, None, average_buffers)

    def discard(self, model: ModelState) -> None:
        """Release what iterations made that are to be undone; the model before them stays."""
        if model.kept is not None:
            self._jobs.unpersist(model.kept)
        model.weights.release()
        for broadcast in model.seed:
            broadcast.destroy()

    def release(self, model: ModelState) -> None:
        """Let go of a model that no iteration will start from."""
        model.release(self._jobs)

    def _slice_bytes(self) -> int:
        """Return how long a slice of the weights is, about."""
        return self._layout.nbytes // self.slices

    def _collect_kept(
        self, kept: JavaObject, wanted: Callable[[str], bool], doing: str
    ) -> list[tuple[int, Buffer]]:
        """Return the frames of some kinds that stay with the slices, each after its slice, in their order."""
        jobs, most = self._jobs, min(_COLLECTED_BYTES // self.slices, _RESULT_BYTES)
        step = max(1, most // PIECE_BYTES)
        pieces: list[bytes] = []
        with self._reading_kept(doing):
            for first in count(0, step):
                in_round = InRounds(wanted, first, first + step)
                received = jobs.collect(jobs.stage(_staying(jobs, kept), in_round))
                pieces += [data for data in received if data != MORE]
                if MORE not in received:
                    break
        return sorted(joined_by_source(pieces), key=itemgetter(0))

    @contextmanager
    def _reading_kept(self, doing: str) -> Iterator[None]:
        """Name a job that reads what stays with the slices, and its failure."""
        self._jobs.describe(f"sparkdl: {doing}")
        try:
            yield
        except Exception as error:
            if is_job_failure(error):
                raise task_error(error, f"trying to {doing}") from None
            raise
        finally:
            self._jobs.describe(None)

    def _assemble(self, messages: list[Frame], old: Weights | RemoteWeights) -> Weights:
        """Put the slices that came back together and publish them."""
        params = _join_slices(messages, "params", old.params)
        buffers, counters = old.buffers, old.counters
        for message in messages:
            if message.meta["kind"] == "reports":
                buffers = np.array(message.arrays.get("buffers", buffers))
                counters = np.array(message.arrays.get("counters", counters))
        return self.publish(old.version + 1, params, buffers, counters)


@contextmanager
def job_errors(iteration: Iteration) -> Iterator[None]:
    """Turn Spark's report of a failed job into an error of this package."""
    try:
        yield
    except Exception as error:
        if is_job_failure(error):
            raise task_error(error, f"training {iteration}") from None
        raise


def missing_partitions(iteration: Iteration, problems: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the partitions whose files are missing, or raise what cannot be mended."""
    where = str(iteration)
    for problem in problems:
        if problem["kind"] == "loss":
            advice = "Try a lower learning rate, or look for extreme values in the data"
            if problem["found"]:
                advice = f"It comes from {problem['found']}. Filter such rows or fill such values first"
            raise NonFiniteError(
                f"the loss became {problem['loss']} in partition {problem['partition']} ({where}). "
                f"{advice}; the error's .result holds the module as it was before this iteration"
            )
        if problem["kind"] == "gradient":
            raise NonFiniteError(
                f"the gradient of parameter {problem['parameter']!r} became NaN or infinite in "
                f"partitions {problem['sources']} ({where}), although the loss is finite. "
                "The error's .result holds the module as it was before this iteration"
            )
        if problem["kind"] == "changed":
            raise changed_error(problem, where)
        if problem["kind"] != "missing":
            raise ModelError(f"{problem} ({where})")
    return {problem["partition"] for problem in problems}


def still_missing(iteration: Iteration) -> DataError:
    """Return the error of an iteration whose partitions cannot be rebuilt."""
    return DataError(
        f"{iteration}: partitions of the store were still missing after "
        f"{MAX_REBUILDS} rebuilds; is the executors' local disk full or being cleaned?",
        code="data-store",
    )


def _staying(jobs: FrameJobs, keyed_frames: JavaObject) -> JavaObject:
    """Return the frames that an earlier job left for this one."""
    return jobs.select(jobs.keyed(keyed_frames), update.STATE, drop=[update.RESULT])


def problems_among(messages: list[Frame]) -> list[dict[str, Any]]:
    """Return why an iteration could not be completed."""
    return [p for m in messages if m.meta["kind"] == "problems" for p in m.meta["problems"]]


def _torn(messages: list[Frame]) -> bool:
    """Return whether the slices saw different gradients of a source.

    A task that may leave rows out need not do the same when it runs again; if it does so between two
    reads of its shards, these do not belong together.
    """
    seen = [m.meta["sources"] for m in messages if "sources" in m.meta]
    return any(sources != seen[0] for sources in seen)


def _too_many(messages: list[Frame], allowance: Allowance | None) -> bool:
    """Return whether more rows were left out than may be."""
    if allowance is None or allowance.deadline is None:
        return False
    reports = [r for m in messages if m.meta["kind"] == "reports" for r in m.meta["reports"]]
    dropped = sum(int(report["dropped"]) for report in reports)
    return dropped > allowance.most * (dropped + sum(int(report["rows"]) for report in reports))


def _total(messages: list[Frame]) -> Array:
    """Add the partial sums of all slices up, in their order."""
    partials = [m for m in messages if m.meta["kind"] == "partials"]
    return add_up(m.arrays["partials"] for m in sorted(partials, key=lambda m: int(m.meta["start"])))


def _join_slices(messages: list[Frame], name: str, like: Array) -> Array:
    joined = np.empty_like(like)
    for message in messages:
        if message.meta["kind"] == "slice":
            values = message.arrays[name]
            joined[message.meta["start"] : message.meta["start"] + len(values)] = values
    return joined


def average_buffers(before: Array | None, buffers: Array, weight: float) -> Array | None:
    """Let new buffers enter their average; they are small and at hand on the driver."""
    if not weight:
        return before
    if before is None or weight == 1.0:
        return buffers
    average: Array = before + before.dtype.type(weight) * (buffers - before)
    return average

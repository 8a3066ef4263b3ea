"""One iteration: forward-backward, parameter sync, new weights.

This is the only module that joins ``data``, ``nn``, ``allreduce`` and ``optim``. Everything that
survives an iteration is in :class:`ModelState`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl import frame
from sparkdl._spark import FrameJobs, JavaObject, task_error
from sparkdl.allreduce import slices, update
from sparkdl.allreduce.weights import Weights, publish
from sparkdl.data.dataset import Store
from sparkdl.exceptions import DataError, ModelError, NonFiniteError
from sparkdl.frame import Array, Frame
from sparkdl.layout import ParamLayout
from sparkdl.train.forward_backward import ForwardBackward
from sparkdl.train.parameter_sync import ParameterSync
from sparkdl.train.state import TrainState
from sparkdl.train.worker import FitRef

_MAX_REBUILDS = 5


@dataclass(frozen=True, slots=True)
class ModelState:
    """What one iteration leaves for the next.

    Attributes:
        weights: published weights and buffers.
        optimizer: persisted RDD of keyed frames with the optimizer's state per slice; ``None`` before the
            first iteration, and always for optimizers without state.
        outdated: the weights before these, as long as the task that made ``optimizer`` names
            their broadcast: Spark ships that task's description with every job that reads its RDD.
    """

    weights: Weights
    optimizer: JavaObject | None = None
    outdated: Weights | None = None

    def release(self, jobs: FrameJobs) -> None:
        """Delete weights and optimizer state from the executors."""
        self.weights.release()
        self.release_outdated(jobs)

    def release_outdated(self, jobs: FrameJobs) -> None:
        """Delete what a completed next iteration no longer needs."""
        if self.optimizer is not None:
            jobs.unpersist(self.optimizer)
        if self.outdated is not None:
            self.outdated.release()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one iteration reports.

    Attributes:
        samples: rows of the global batch.
        loss: their mean loss.
        phases: seconds by phase.
        bytes: bytes by kind.
    """

    samples: int
    loss: float
    phases: dict[str, float]
    bytes: dict[str, int]


class Stepper:
    """Runs iterations as Spark jobs.

    Args:
        jobs: Spark access.
        store: the partition store.
        fit: the fixed part of the fit, broadcast.
        fit_broadcast: the broadcast itself.
        layout: layout of the flat vectors.
        num_slices: number of parameter-sync tasks.
        stateful: whether the optimizer keeps state between iterations.
        profile: resource profile of forward-backward tasks.
        describe: names a job from the iteration's state and the job's kind.
    """

    def __init__(
        self,
        *,
        jobs: FrameJobs,
        store: Store,
        fit: FitRef,
        fit_broadcast: Any,
        layout: ParamLayout,
        num_slices: int,
        stateful: bool,
        profile: JavaObject | None,
        describe: Callable[[TrainState, str], str],
    ) -> None:
        self._jobs = jobs
        self._store = store
        self._fit = fit
        self._fit_broadcast = fit_broadcast
        self._layout = layout
        self._slices = num_slices
        self._stateful = stateful
        self._profile = profile
        self._describe = describe

    def publish(self, version: int, params: Array, buffers: Array, counters: Array) -> Weights:
        """Make weights available to the tasks."""
        return publish(self._jobs.sc, version, params, buffers, counters)

    def run(self, state: TrainState, model: ModelState, steps: int) -> tuple[ModelState, Outcome]:
        """Run one iteration and release what the previous one left.

        Args:
            state: position of the run.
            model: weights and optimizer state before the iteration; still valid if this raises.
            steps: iterations per epoch.

        Raises:
            NonFiniteError: if loss or gradient became NaN or infinite.
            ModelError: if the module fails on the rows.
            TaskError: if a task failed for another reason.
        """
        for _ in range(_MAX_REBUILDS):
            try:
                messages, optimizer, phases, shuffled_bytes = self._run_jobs(state, model, steps)
            except Exception as error:
                if type(error).__name__ in ("Py4JJavaError", "Py4JError"):
                    raise task_error(error, f"training iteration {state.iteration + 1}") from None
                raise
            problems = [p for m in messages if m.meta["kind"] == "problems" for p in m.meta["problems"]]
            if not problems:
                break
            if optimizer is not None:
                self._jobs.unpersist(optimizer)
            self._repair(state, problems)
        else:
            raise DataError(
                f"iteration {state.iteration + 1}: partitions of the store were still missing after "
                f"{_MAX_REBUILDS} rebuilds; is the executors' local disk full or being cleaned?"
            )
        begin = time.perf_counter()
        new = self._assemble(messages, model.weights)
        phases["broadcast"] = time.perf_counter() - begin
        model.release_outdated(self._jobs)
        if optimizer is None:
            model.weights.release()
        outdated = model.weights if optimizer is not None else None
        outcome = _outcome(messages, phases, shuffled_bytes, new)
        return ModelState(new, optimizer, outdated), outcome

    def _run_jobs(
        self, state: TrainState, model: ModelState, steps: int
    ) -> tuple[list[Frame], JavaObject | None, dict[str, float], int]:
        """Run the iteration's two jobs and return what the slices sent back."""
        jobs, weights = self._jobs, model.weights
        broadcasts = [self._fit_broadcast, *weights.broadcasts]
        times = [time.perf_counter()]

        # Job 1: each partition's gradient, cut into shards, written as the map side of a shuffle.
        forward_backward = ForwardBackward(
            self._fit, weights.ref, self._slices, state.epoch, state.iteration, state.step, steps
        )
        shards = jobs.stage(self._store.tokens, forward_backward, broadcasts, profile=self._profile)
        shuffled = jobs.shuffle(jobs.keyed(shards), self._slices)
        optimizer = None
        try:
            jobs.describe(self._describe(state, "forward-backward"))
            jobs.run_map_side(shuffled)
            times.append(time.perf_counter())

            # Job 2: shard n of all partitions and the state of slice n meet in task n.
            arriving = jobs.values(shuffled)
            if model.optimizer is not None:
                kept = jobs.select(jobs.keyed(model.optimizer), update.STATE, drop=[update.RESULT])
                arriving = jobs.union(kept, arriving)
            sync = ParameterSync(self._fit, weights.ref, self._slices, keyed=self._stateful)
            results = jobs.stage(arriving, sync, broadcasts, preserves_partitioning=True)
            jobs.describe(self._describe(state, "parameter sync"))
            if self._stateful:
                optimizer = results
                jobs.persist_replicated(optimizer)
                results = jobs.select(jobs.keyed(optimizer), update.RESULT, drop=[update.STATE])
            messages = [frame.unpack(data) for data in jobs.collect(results)]
            times.append(time.perf_counter())
        except BaseException:
            if optimizer is not None:
                jobs.unpersist(optimizer)
            raise
        finally:
            jobs.describe(None)
            jobs.release_shuffle(shuffled)
        received = sum(int(m.meta.get("received", 0)) for m in messages)
        phases = {"job1": times[1] - times[0], "job2": times[2] - times[1]}
        return messages, optimizer, phases, received

    def _assemble(self, messages: list[Frame], old: Weights) -> Weights:
        """Put the slices that came back together and publish them."""
        params = np.empty_like(old.params)
        buffers, counters = old.buffers, old.counters
        for message in messages:
            if message.meta["kind"] == "slice":
                start = message.meta["start"]
                values = message.arrays["params"]
                params[start : start + len(values)] = values
            else:
                buffers = np.array(message.arrays.get("buffers", buffers))
                counters = np.array(message.arrays.get("counters", counters))
        return self.publish(old.ref.version + 1, params, buffers, counters)

    def _repair(self, state: TrainState, problems: list[dict[str, Any]]) -> None:
        """Drop the blocks of partitions whose files are missing, or raise what cannot be mended."""
        where = f"iteration {state.iteration + 1}, epoch {state.epoch + 1}"
        for problem in problems:
            if problem["kind"] == "loss":
                raise NonFiniteError(
                    f"the loss became {problem['loss']} in partition {problem['partition']} ({where}). "
                    "Try a lower learning rate, or look for extreme values in the data; the error's "
                    ".result holds the module as it was before this iteration"
                )
            if problem["kind"] == "gradient":
                raise NonFiniteError(
                    f"the gradient of parameter {problem['parameter']!r} became NaN or infinite in "
                    f"partitions {problem['sources']} ({where}), although the loss is finite. "
                    "The error's .result holds the module as it was before this iteration"
                )
            if problem["kind"] != "missing":
                raise ModelError(f"{problem} ({where})")
        for partition in {problem["partition"] for problem in problems}:
            self._jobs.drop_block(self._store.tokens.id(), partition)


def choose_slices(layout: ParamLayout, partitions: int) -> int:
    """Return the number of parameter-sync tasks."""
    return slices.count(layout, partitions)


def _outcome(messages: list[Frame], times: dict[str, float], received: int, new: Weights) -> Outcome:
    """Add the reports of all partitions up."""
    (reports,) = [m.meta["reports"] for m in messages if m.meta["kind"] == "reports"]
    weight = sum(report["weight"] for report in reports)
    loss = sum(report["loss"] * report["weight"] for report in reports) / weight if weight else 0.0
    slowest_task = max(report["seconds"] for report in reports)
    updated = [m for m in messages if m.meta["kind"] == "slice"]
    slowest_update = max(m.meta["update_seconds"] for m in updated)
    phases = {
        name: max(report["phases"].get(name, 0.0) for report in reports)
        for name in ("weights_in", "data", "compute", "gradient_out")
    }
    phases["launch"] = times["job1"] - slowest_task
    phases["update"] = slowest_update
    phases["shuffle"] = times["job2"] - slowest_update
    phases["broadcast"] = times["broadcast"]
    state_bytes = sum(int(m.meta["state_bytes"]) for m in updated)
    moved = {
        "weights": new.nbytes,
        "gradients": max(received - state_bytes, 0),
        "state": state_bytes,
        "slices": sum(m.arrays["params"].nbytes for m in updated),
    }
    return Outcome(sum(report["rows"] for report in reports), loss, phases, moved)

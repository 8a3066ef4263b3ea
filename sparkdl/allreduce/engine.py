"""The engine: runs groups of steps by a plan over a transport, again where executors lack something."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import numpy as np

from sparkdl._spark.errors import explained
from sparkdl.access.base import Published
from sparkdl.access.in_pieces import ChainTask
from sparkdl.allreduce.cluster import Cluster, Spreading
from sparkdl.allreduce.outcome import Outcome, outcomes_of
from sparkdl.allreduce.persisted import PersistedShards
from sparkdl.allreduce.plan import Plan, Step
from sparkdl.allreduce.row_layers import RowLayers, as_shard_states, complete, pass_changed_rows
from sparkdl.allreduce.shard_states import ShardStates, Snapshot, joined_rows, unpacked, with_rows
from sparkdl.allreduce.state import ModelState, Weights
from sparkdl.allreduce.transport.base import Group, GroupResult, Transport
from sparkdl.allreduce.update.combine import average_buffers
from sparkdl.compute.problems import (
    FailedModel,
    Fatal,
    LackingState,
    LocalState,
    LostPeer,
    MissingPartition,
    Problem,
)
from sparkdl.compute.start import ModelVersion, Origin, Start
from sparkdl.compute.worker import FitRef, forget_fit
from sparkdl.data.store.build import MAX_ATTEMPTS, PartitionStore
from sparkdl.exceptions import DataError, ModelError, TaskError
from sparkdl.keyed.entries import Entries
from sparkdl.wire.frame import Array, Frame


@dataclass(frozen=True, slots=True)
class Route:
    """How the engine exchanges over one partition store."""

    plan: Plan  # how gradients become weights
    transport: Transport  # how the plan's messages travel


class Engine:
    """Runs groups of steps; ``route`` chooses plan and transport for a store, ``sent`` is the fixed part.

    ``leaves_files`` says whether tasks leave files whatever the plan (``compute/partition_state.py``).
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        store: PartitionStore,
        fit: FitRef,
        sent: Published,
        route: Callable[[PartitionStore, FitRef], Route],
        leaves_files: bool,
        name: str,
    ) -> None:
        self._cluster = cluster
        self._fit = fit
        self._sent = sent
        self._choose = route
        self._leaves_files = leaves_files
        self._name = name
        self._generation = 0
        self._overwritten: ModelVersion | None = None
        self._take(store)

    def _take(self, store: PartitionStore) -> None:
        self.store = store
        self._cluster.end_surplus_processes(store.executors.tasks)
        self._fit = replace(self._fit, in_memory=self._cluster.one_process(store.executors.tasks))
        route = self._choose(store, self._fit)
        self.plan, self._traits, self._transport = route.plan, route.plan.traits, route.transport
        self._spreading = Spreading(self._cluster, store, route.transport)

    @property
    def longest_group(self) -> int:
        """How many steps may be one group, now."""
        return min(self._traits.longest_group, self._transport.longest_group)

    @property
    def _shards(self) -> PersistedShards:
        return self._cluster.shards(self._traits.shards, self._traits.shard_bytes)

    def resize(self, store: PartitionStore) -> None:
        """Use another store from now on.

        There may be another number of shards then, for which :meth:`restore` is to be given what stayed
        with those before, cut anew.
        """
        self._transport.release()
        self._take(store)

    # -- running --------------------------------------------------------------------------------

    def run(self, steps: Sequence[Step], model: ModelState) -> tuple[ModelState, list[Outcome]]:
        """Run steps.

        Args:
            steps: which ones; more than :attr:`longest_group` are cut.
            model: weights and optimizer state before them; still valid after this, until :meth:`let_go`.

        Returns:
            The model after them and what each reports; fewer than were given if a later one failed.

        Raises:
            NonFiniteError: if loss or gradient of the first one became NaN or infinite.
            ModelError: if the module fails on the rows.
            TaskError: if a task failed for another reason.
        """
        seed: list[Published] = []
        try:
            return self._run(steps, model, seed)
        except BaseException:
            for published in seed:
                published.release()
            raise

    def _run(
        self, steps: Sequence[Step], model: ModelState, seed: list[Published]
    ) -> tuple[ModelState, list[Outcome]]:
        have = model.version not in (None, self._overwritten)
        origin = Origin.EXECUTORS if have else Origin.DRIVER
        problems: Sequence[Problem] = ()
        if self._spreading.move():
            origin, steps = Origin.DRIVER_ALONE, steps[:1]
            self._generation += 1
        for _ in range(MAX_ATTEMPTS):
            steps = steps[: self.longest_group]
            if origin is not Origin.EXECUTORS and not seed:
                self._send_seed(model, seed)
            begin = perf_counter()
            start = self._start(steps, model, seed, origin)
            publishing = perf_counter() - begin
            try:
                with explained(f"training {steps[0]}"):
                    result = self._transport.run(self._group(start, steps, model, seed))
            except (TaskError, ModelError) as error:
                if len(steps) == 1 or (isinstance(error, TaskError) and not error.remote_traceback):
                    raise
                steps = steps[:1]  # the user's code fails in one of them
                continue
            problems = result.problems
            if not problems and not result.refused:
                return self._after(result, start, steps, model, seed, publishing)
            if result.persisted is not None:
                self._cluster.unpersist(result.persisted)
            steps = sound(steps, problems) if problems else [steps[0].without_deadline()]
            if any(loses_state(problem) for problem in problems):
                # Executors have come or gone, or tasks went elsewhere. One step that relies on no file makes
                # files for the next group; what others have of this attempt is another generation.
                origin, steps = Origin.DRIVER_ALONE, steps[:1]
                self._generation += 1
            self._cluster.end_surplus_processes(self.store.executors.tasks, result.processes)
            for problem in problems:
                if isinstance(problem, MissingPartition):
                    self._transport.forget(problem.partition)
                if isinstance(problem, LackingState | LostPeer | MissingPartition):
                    self._spreading.lost()
        if not any(isinstance(problem, MissingPartition) for problem in problems):
            raise TaskError(
                f"{steps[0]}: in each of {MAX_ATTEMPTS} attempts an executor was lost, or a task ran where "
                "nothing was left for it; look for the reason in the executors' logs"
            )
        raise DataError(
            f"{steps[0]}: partitions of the store were still missing after "
            f"{MAX_ATTEMPTS} rebuilds; is the executors' local disk full or being cleaned?",
            code="data-store",
        )

    def _send_seed(self, model: ModelState, seed: list[Published]) -> None:
        if model.persisted is not None:
            for data in self.plan.seed(lambda: self.fetch(model)):
                seed.append(self._cluster.publish(data, inline=False))

    def _start(
        self, steps: Sequence[Step], model: ModelState, seed: Sequence[Published], origin: Origin
    ) -> Start:
        have = origin is Origin.EXECUTORS
        version = model.version if have else None
        return Start(
            version or ModelVersion(self._generation, steps[0].iteration),
            self._generation,
            None if have else model.weights.publish().ref,
            model.persisted is not None,
            self.store.manifest,
            tuple(published.ref for published in seed),
            origin is not Origin.DRIVER_ALONE,
            self._traits.keeps_rows and model.persisted is not None and not model.layers.is_full,
        )

    def _group(
        self, start: Start, steps: Sequence[Step], model: ModelState, seed: Sequence[Published]
    ) -> Group:
        self._leaves_files |= self._traits.leaves_model
        sent = [*seed] if start.weights is None else [model.weights.publish(), *seed]
        broadcasts = [
            *self._sent.broadcasts,
            *(broadcast for published in sent for broadcast in published.broadcasts),
        ]
        first = steps[0]
        name = f"{self._name}: epoch {first.place.epoch + 1}, iteration {first.iteration + 1}"
        return Group(self.plan, start, steps, model.persisted, broadcasts, name)

    def _after(
        self,
        result: GroupResult,
        start: Start,
        steps: Sequence[Step],
        model: ModelState,
        seed: Sequence[Published],
        publishing: float,
    ) -> tuple[ModelState, list[Outcome]]:
        """Return the model after a group, and what each of its steps reports.

        Its weights have come with the report, or are fetched from the executors when somebody asks.
        """
        before, plan, persisted = model.weights, self.plan, result.persisted
        report = plan.conclude(result.messages, before.buffers, before.counters)
        shards = self._shards  # of now: the number of shards may change before they are fetched
        params = partial(shards.weights, persisted) if report.params is None else _own(report.params)
        weights = Weights(self._cluster, params, np.array(report.buffers), np.array(report.counters))
        average = max(step.directives.average for step in steps)
        outcomes = outcomes_of(
            steps, report, result, weights_bytes=self._traits.weights_bytes, publish_seconds=publishing
        )
        after = ModelState(
            weights,
            persisted,
            before if persisted is not None else None,
            average_buffers(model.average_buffers, weights.buffers, average),
            version=start.after(len(steps)) if self._traits.leaves_model else None,
            made_of=start.version,
            seed=seed,
            layers=model.layers.above(
                model.persisted, model.named, steps[0].iteration + len(steps), outcomes, changes=start.changes
            ),
        )
        return after, outcomes

    # -- models ---------------------------------------------------------------------------------

    def replace(self, model: ModelState, snapshot: Snapshot) -> ModelState:
        """Go on with other weights; optimizer state and averages are unchanged."""
        self._generation += 1
        model.weights.release()
        # Copies: they are published when they are needed, and a hook may go on writing to its own.
        own = Snapshot(
            *(np.array(values) for values in (snapshot.params, snapshot.buffers, snapshot.counters))
        )
        return replace(model, weights=Weights.of(self._cluster, own), version=None)

    @contextmanager
    def published(self, snapshot: Snapshot | None, model: ModelState) -> Iterator[Published]:
        """Publish weights for a while: the given ones, or the model's own."""
        if snapshot is None and (rows := self.rows(model)):
            published = self._cluster.publish(with_rows(model.weights.snapshot, rows))
            try:
                yield published
            finally:
                published.release()
            return
        if snapshot is None:
            yield model.weights.publish()
            return
        weights = Weights.of(self._cluster, snapshot)
        try:
            yield weights.publish()
        finally:
            weights.release()

    def average(self, model: ModelState) -> Array:
        """Fetch the averaged weights; the current ones before the first iteration."""
        average = None if model.persisted is None else self._shards.average(model.persisted)
        return model.weights.params if average is None else average

    def fetch(self, model: ModelState) -> ShardStates:
        """Copy the state of the shards, but for their weights, to the driver."""
        found = self._shards.fetch(model.persisted)
        return complete([*self._below(model), found]) if model.layers.below else found

    def fetch_changes(self, model: ModelState, since: int) -> list[ShardStates]:
        """Copy the state of the shards to the driver, but of rows those that have changed since.

        These are in layers, for :func:`~sparkdl.allreduce.row_layers.complete`, to be put above those of that
        time.
        """
        if not self._traits.keeps_rows or model.persisted is None:
            return [self.fetch(model)]
        shards, changed = self._shards, partial(pass_changed_rows, since)
        *early, last = [
            as_shard_states(shards.rows(layer.persisted, changed))
            for layer in model.layers.since(model.persisted, since)
        ]
        state = shards.fetch(model.persisted, rows=False)
        return [*early, [[*frames, *rows] for frames, rows in zip(state, last, strict=True)]]

    def rows(self, model: ModelState) -> dict[str, Entries]:
        """Fetch the rows of embedding variables, with the optimizer's state; none before the first step."""
        if model.persisted is None or not self._traits.keeps_rows:
            return {}
        own = as_shard_states(self._shards.rows(model.persisted))
        return joined_rows(unpacked(complete([*self._below(model), own])))

    def _below(self, model: ModelState) -> list[ShardStates]:
        """Return the rows of the layers below what a model keeps itself."""
        return [as_shard_states(self._shards.rows(layer.persisted)) for layer in model.layers.below]

    def run_on_persisted(
        self, model: ModelState, task: Callable[[int], ChainTask], doing: str, since: int = 0
    ) -> list[Frame]:
        """Run tasks over the state of each shard, and over rows in the layers below."""
        if model.persisted is None:
            return []
        layers = reversed(model.layers.since(model.persisted, since))
        return [
            message
            for number, layer in enumerate(layers)
            for message in self._shards.run(layer.persisted, task(number), doing)
        ]

    def restore(
        self, snapshot: Snapshot, states: ShardStates, average_buffers: Array | None, iteration: int
    ) -> ModelState:
        """Go on from a copy on the driver: weights, and frames from :meth:`fetch`, of some iteration."""
        self._generation += 1
        restored = self._shards.restore(states) if states else None
        weights, layers = Weights.of(self._cluster, snapshot), RowLayers(iteration=iteration)
        return ModelState(weights, restored, None, average_buffers, layers=layers)

    # -- releasing ------------------------------------------------------------------------------

    def let_go(self, before: ModelState, after: ModelState) -> None:
        """Release everything that is obsolete after the iterations between two models are completed."""
        before.release_outdated(self._cluster, after.layers)
        if after.persisted is None:
            before.weights.release()

    def discard(self, model: ModelState) -> None:
        """Release the results of iterations to undo; the model before them stays."""
        self._generation += 1  # executors have versions that are no longer true
        if self._fit.in_memory:  # and have made them of the one before, in its memory
            self._overwritten = model.made_of
        if model.persisted is not None:
            self._cluster.unpersist(model.persisted)
        model.weights.release()
        for published in model.seed:
            published.release()

    def release(self, model: ModelState) -> None:
        """Let go of a model that no iteration will start from."""
        model.release(self._cluster)

    def close(self, stores: Sequence[PartitionStore] = ()) -> None:
        """Delete all files on the executors, except models, and in the same job those of some stores.

        Files of failed executors are gone with them.
        """
        fit_id = self._fit.fit_id
        forget = partial(forget_fit, fit_id, [store.name for store in stores])
        deleted = self._transport.release(forget)
        if not deleted and self._leaves_files:
            deleted = self._cluster.delete_files(fit_id, forget)
        for store in stores:
            store.owns_files = not deleted


def _own(array: Array) -> Array:
    """Return an array that has its memory to itself: a view would keep a whole message."""
    return array if array.flags.owndata else np.array(array)


def loses_state(problem: Problem) -> bool:
    """Return whether executors may not have any more what the group has started from."""
    return isinstance(problem, LackingState) or (isinstance(problem, LostPeer) and problem.begun)


def sound(steps: Sequence[Step], problems: Sequence[Problem]) -> Sequence[Step]:
    """Return the steps before the one that no further run would mend; raise if that is the first."""
    fatal = [problem for problem in problems if isinstance(problem, Fatal)]
    if not fatal:
        return steps
    local = [problem for problem in fatal if isinstance(problem, LocalState)]
    if local:  # nobody knows since when, and in a new process the step would work
        raise local[0].error(str(steps[local[0].iteration - steps[0].iteration]))
    completed = fatal[0].iteration - steps[0].iteration
    if completed > 0:  # those are completed; the next group will begin with the failing one
        return steps[:completed]
    if isinstance(fatal[0], FailedModel):
        return steps[:1]  # alone, and by shuffles, it raises in its task, which Spark tries again
    raise fatal[0].error(str(steps[0]))

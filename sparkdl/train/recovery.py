"""Going on after executors took the state of the shards: commits and replay.

The state of the shards between iterations lies on two executors each. Where both are lost, Spark
cannot compute it again: its lineage is cut. A *commit* is a copy on the driver. After a loss, the
iterations since the last commit run again from it; tasks are deterministic, so that they end where the
lost ones did, to the bit, and neither hooks nor the history see them twice.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter
from typing import TypeVar

from sparkdl.access.in_pieces import ChainTask
from sparkdl.allreduce.engine import Engine
from sparkdl.allreduce.outcome import Outcome
from sparkdl.allreduce.plan import Step
from sparkdl.allreduce.row_layers import complete, stacked
from sparkdl.allreduce.shard_states import ShardStates, Snapshot
from sparkdl.allreduce.state import ModelState
from sparkdl.compute.forward_backward import Allowance
from sparkdl.exceptions import TaskError
from sparkdl.keyed.entries import Entries
from sparkdl.train.interrupt import raise_if_stopped
from sparkdl.wire.frame import Array, Frame

_SHARE = 0.03  # commits take at most this share of the time, unless ``commit_every`` says otherwise

# About what a commit takes, as long as none was taken: a job, and its bytes.
_JOB_SECONDS, _BYTES_PER_SECOND = 0.1, 100e6

_log = logging.getLogger("sparkdl")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommittedModel:
    """A copy, on the driver, of all that an iteration leaves for the next."""

    snapshot: Snapshot  # weights and buffers
    average_buffers: Array | None  # averaged buffers, if weights are averaged
    layers: Sequence[
        ShardStates
    ]  # the state of the shards; see :func:`~sparkdl.allreduce.row_layers.complete`
    iteration: int  # completed iterations

    @property
    def states(self) -> ShardStates:
        """The state of the shards, with all rows."""
        return complete(self.layers)


@dataclass(slots=True)
class Recovery:
    """Runs iterations so that lost executors do not end the run; ``model`` is that after the last one.

    ``every`` is iterations between two commits; 0 for none; ``None`` to spend 3 % of the time on them. The
    run ends after ``max_failures`` failed iterations within ``window`` seconds; ``failures`` counts all that
    were run again.
    """

    engine: Engine
    model: ModelState
    every: int | None
    max_failures: int
    window: float
    failures: int = 0
    _before: ModelState | None = None
    _commit: CommittedModel | None = None
    _since: list[Step] = field(default_factory=list)
    _seconds: float = 0.0
    _commit_seconds: float = 0.0
    _times: deque[float] = field(default_factory=deque)
    _behind: bool = False  # whether going back has ended with an error before the model was where it had been

    def run(self, iterations: Sequence[Step]) -> list[Outcome]:
        """Run iterations, if need be again from the last commit.

        Raises TaskError, the first, if the user's code failed or iterations keep failing.
        """
        self.let_go()
        begin, beginning = perf_counter(), self._beginning(iterations[0])
        outcomes = self._persistently(
            lambda: self._step(iterations), self._go_back, f"{iterations[0]} runs again"
        )
        if self.model.persisted is not None and self.every != 0:
            if beginning is not None:
                self._commit = beginning
                nbytes = beginning.snapshot.params.nbytes + outcomes[-1].bytes["state"]
                self._commit_seconds = _JOB_SECONDS + nbytes / _BYTES_PER_SECOND
            self._since += map(_as_it_was, iterations, outcomes)
            self._seconds += perf_counter() - begin
            if self._is_due():
                try:
                    self._take_commit()
                except BaseException:  # nobody gets the outcomes, so a last checkpoint is of the step before
                    self.undo(iterations)
                    raise
        if len(outcomes) == 1:
            self.let_go()
        return outcomes

    def undo(self, iterations: Sequence[Step]) -> None:
        """Go back to before the last :meth:`run`, of several iterations that begin with these."""
        lost, before, first = self.model, self._before, iterations[0].iteration
        if before is None:
            raise RuntimeError("there is nothing to undo")
        self.model, self._before = before, None
        self.engine.discard(lost)
        if self._commit is not None and self._commit.iteration > first:
            self._commit = None
        self._since = [i for i in self._since if self._commit is not None and i.iteration < first]

    def let_go(self) -> None:
        """Release what only :meth:`undo` needs."""
        if self._before is not None:
            self.engine.let_go(self._before, self.model)
            self._before = None

    def replace(self, model: ModelState) -> None:
        """Go on from a model with other weights, which no iteration since the last commit made."""
        self.let_go()
        self.model = model
        self._commit = None
        self._since.clear()

    def restart(self, commit: CommittedModel) -> None:
        """Go on from a commit, with as many shards as the engine has now."""
        self.let_go()
        old = self.model
        self.model = self._persistently(lambda: self._restored(commit))
        self.engine.release(old)
        self._behind = False
        self._commit = commit if self.model.persisted is not None else None
        self._since.clear()

    def fetch(self, since: int = 0) -> ShardStates:
        """Copy the state of the shards to the driver, if need be after going back to the last commit.

        ``since`` leaves out rows of embedding variables unchanged since so many completed iterations.
        """

        def fetched() -> ShardStates:
            if not since:
                return self.engine.fetch(self.model)
            return complete(self.engine.fetch_changes(self.model, since))

        return self._persistently(fetched, self._go_back)

    def snapshot(self) -> Snapshot:
        """Return weights and buffers after fetching them, if need be after going back to the last commit."""
        return self._persistently(lambda: self.model.weights.snapshot, self._go_back)

    def average(self) -> Array:
        """Fetch the averaged weights, if need be after going back to the last commit."""
        return self._persistently(lambda: self.engine.average(self.model), self._go_back)

    def rows(self) -> dict[str, Entries]:
        """Fetch the rows of embedding variables, if need be after going back to the last commit."""
        return self._persistently(lambda: self.engine.rows(self.model), self._go_back)

    def run_on_persisted(self, task: Callable[[int], ChainTask], doing: str, since: int) -> list[Frame]:
        """Run a task over the state of the shards; see :meth:`Engine.run_on_persisted`."""
        return self._persistently(
            lambda: self.engine.run_on_persisted(self.model, task, doing, since), self._go_back
        )

    def release(self) -> None:
        """Delete all models from the executors."""
        self.let_go()
        self.engine.release(self.model)

    def _persistently(
        self,
        action: Callable[[], T],
        before_retry: Callable[[], None] = lambda: None,
        news: str = "trying again",
    ) -> T:
        """Run what may fail with an executor, as often as failures are allowed."""
        first: TaskError | None = None
        while True:
            try:
                if first is not None or self._behind:
                    before_retry()
                return action()
            except TaskError as error:
                raise_if_stopped()
                first = first or error
                if error.remote_traceback or not self._may_retry():
                    raise first from None
                _log.warning("%s: %s", news, error)

    def _step(self, iterations: Sequence[Step]) -> list[Outcome]:
        before = self.model
        self.model, outcomes = self.engine.run(iterations, before)
        self._before = before
        return outcomes

    def _may_retry(self) -> bool:
        now = monotonic()
        self.failures += 1
        self._times.append(now)
        while self._times[0] < now - self.window:
            self._times.popleft()
        return len(self._times) <= self.max_failures

    def _go_back(self) -> None:
        """Restore the last commit and run the iterations since then again."""
        commit = self._commit
        if self.model.persisted is None or commit is None:
            return  # the driver has all there is, or nothing better: the iteration can only run again
        _log.warning("going back to a commit and running %d iterations again", len(self._since))
        self.let_go()
        lost = self.model
        self.model, self._behind = self._restored(commit), True
        self.engine.release(lost)
        rest = list(self._since)
        while rest:
            rest = rest[len(self._step(rest)) :]
            self.let_go()
        self._behind = False

    def _restored(self, commit: CommittedModel) -> ModelState:
        return self.engine.restore(commit.snapshot, commit.states, commit.average_buffers, commit.iteration)

    def _beginning(self, first: Step) -> CommittedModel | None:
        """Return the model before a run's first iteration, which the driver has: a commit without cost."""
        model = self.model
        if self._commit is not None or model.persisted is not None:
            return None
        return CommittedModel(model.weights.snapshot, model.average_buffers, [[]], first.iteration)

    def _is_due(self) -> bool:
        """Return whether it is time for a commit."""
        if self._commit is None:
            return True
        if self.every is not None:
            return len(self._since) >= self.every
        return self._commit_seconds <= _SHARE * self._seconds

    def _take_commit(self) -> None:
        """Copy the state of the shards to the driver."""
        begin = perf_counter()
        model = self.model
        try:
            layers = self._layers(model)
            snapshot = model.weights.snapshot
        except TaskError as error:
            _log.warning("no commit after %s: %s", self._since[-1], error)
            return
        iteration = self._since[-1].iteration + 1
        self._commit = CommittedModel(snapshot, model.average_buffers, layers, iteration)
        self._since.clear()
        # The time between two commits counts, not that of the first iteration, in which processes start.
        self._seconds, self._commit_seconds = 0.0, perf_counter() - begin

    def _layers(self, model: ModelState) -> Sequence[ShardStates]:
        """Return the state of the shards: rows that have changed since the last commit above its own."""
        if self._commit is None or not self._commit.layers[0]:
            return [self.engine.fetch(model)]
        above = self.engine.fetch_changes(model, self._commit.iteration)
        return stacked(self._commit.layers, above)


def _as_it_was(iteration: Step, outcome: Outcome) -> Step:
    """Return the iteration that leaves out the rows that this one has left out."""
    if iteration.allowance is None:
        return iteration
    return replace(iteration, allowance=Allowance(iteration.allowance.chunks, taken=outcome.taken))

"""The training loop: iterations, validation, hooks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isnan
from time import perf_counter
from typing import Any

from sparkdl.allreduce.engine import Engine
from sparkdl.allreduce.outcome import Outcome, within
from sparkdl.allreduce.shard_files import WriteShard
from sparkdl.allreduce.shard_states import Snapshot
from sparkdl.allreduce.state import ModelState
from sparkdl.data.streams import FROM_THE_BEGINNING, Since
from sparkdl.exceptions import DataError, TaskError
from sparkdl.keyed.entries import Entries
from sparkdl.saved.identity import Identity
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.demand import Demand
from sparkdl.train.groups import Ahead, Epochs, Forecast
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.calls import HookCalls
from sparkdl.train.keyed import Counters
from sparkdl.train.options.averaging import kind_of
from sparkdl.train.options.elastic import Elastic, PartitionWatch
from sparkdl.train.options.stragglers import Deadlines
from sparkdl.train.passes.validation import Validator
from sparkdl.train.planning.costs import Kind
from sparkdl.train.recovery import CommittedModel, Recovery
from sparkdl.train.result import StoppedBy
from sparkdl.train.run import Run
from sparkdl.train.scheduled import ScheduledHyper

_log = logging.getLogger("sparkdl")


class Loop:
    """Runs iterations until something ends the run.

    ``model`` is that before the first iteration, ``hooks`` are in the order in which they are called, and
    ``setting`` returns what must be the same for another run to go on from this one.
    """

    def __init__(
        self,
        *,
        run: Run,
        engine: Engine,
        model: ModelState,
        epochs: Epochs,
        schedule: ScheduledHyper,
        validator: Validator,
        hooks: Sequence[Hook],
        setting: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.run = run
        self._engine = engine
        config = run.config
        self._recovery = Recovery(
            engine, model, config.commit_every, config.max_failures, config.failure_window
        )
        self._ahead = Ahead(self._recovery, config.iterations_per_job)
        self._epochs = epochs
        rules, access = Elastic.of(config.elastic), run.data.access
        self._watch: PartitionWatch | None = None
        if rules is not None:
            most = run.data.source.most_partitions(run.data.plan)
            self._watch = PartitionWatch(rules, access.count_executors, most=most)
        self._demand: Demand | None = None
        if rules is not None and rules.asks:
            kind: Kind = "sharded" if engine.plan.traits.weights_bytes else "replicated"
            self._demand = Demand(rules, access.ask_for_executors, run.layout.nbytes, kind)
        self._deadlines = Deadlines(config.drop_stragglers) if config.drop_stragglers else None
        self._resumed: ResumePoint | None = None
        self._own_frozen = run.frozen  # by the module itself
        self._schedule = schedule
        self._validator = validator
        self._hooks = HookCalls(hooks, run)
        self._forecast = Forecast(
            run, epochs, schedule, self._deadlines, self._hooks, validates=bool(validator.sets)
        )
        self._counters = Counters(run.module)
        self._setting = setting
        self._averaged = 0
        self._begun = False
        self._finished = True
        self._mark = perf_counter()

    @property
    def model(self) -> ModelState:
        """Weights and the state of the shards."""
        return self._recovery.model

    def release(self) -> None:
        """Delete models from the executors, and what is there for this fit alone."""
        self._recovery.release()
        read = (self.run.data, *self._validator.sets.values())
        self._engine.close([store for data in read for store in data.stores_of_one_fit()])

    def resume(self, point: ResumePoint) -> None:
        """Go on from where another run was; before :meth:`train`.

        The schedule is taken through all that happened until then, so that it need not be saved.
        """
        run = self.run
        point = point.averaged_by(run.config.averaging).monitored_by(run.monitored, self._validator.mode)
        state = point.state
        scores = self._validator.monitored(point.history.validations)
        epochs = [*point.history.column("epoch"), state.epoch + 1]
        if point.unfinished is not None:  # the schedule learns of the epoch's end when it is made up for
            epochs[-1] = epochs[-2]
        early = point.history.left_out  # of these rows the number is known, and that of their epochs
        for _ in range(1, epochs[0]):
            self._schedule.after_epoch()
        for iteration in range(1, state.iteration + 1):
            self._schedule.after_iteration()
            if iteration in scores:
                self._schedule.after_validation(scores[iteration])
            if iteration > early and epochs[iteration - early] != epochs[iteration - early - 1]:
                self._schedule.after_epoch()
        run.previous, run.state = point.unfinished or state, state
        self._finished = point.unfinished is None
        run.begin, run.source = point.begin, point.source
        if not point.continues or point.identity is None:
            run.identity = Identity.resumed(point.identity, state.iteration)
        else:
            run.identity = point.identity
        run.history, run.scores, self._averaged = point.history, dict(point.scores), point.averaged
        run.batch_size, run.learning_rate_scale = point.batch_size, point.learning_rate_scale
        if state.step:
            run.steps = point.steps
            self._epochs.since = Since(point.first, point.slot)
        self._go_on_from(point)
        self._resumed = point

    def _go_on_from(self, point: ResumePoint) -> None:
        """Give weights and the state of the shards back, to as many shards as there are now."""
        states = point.states_for(self.run.layout, self._engine.plan.traits.shards)
        self._recovery.restart(
            CommittedModel(point.snapshot, point.average_buffers, [states], point.state.iteration)
        )

    def write_shards(self, folder: str, since: int = 0) -> dict[str, str]:
        """Let executors write the state of the shards; return sha256 by file name."""
        self._ahead.settle()
        task = partial(WriteShard, folder, self._engine.plan.traits.shards, since)
        written = self._recovery.run_on_persisted(task, "write the optimizer's state", since)
        return {message.meta["name"]: message.meta["sha256"] for message in written}

    def point(self, with_state: bool = True, since: int = 0) -> ResumePoint:
        """Return all that another run needs to go on from here.

        Of rows of embedding variables it has those alone that have changed since so many completed
        iterations, 0 for all. Raises TaskError if the state of the shards cannot be read.
        """
        self._ahead.settle()
        run, begun = self.run, self._epochs.since
        frames = self._recovery.fetch(since) if with_state else []
        return ResumePoint(
            state=run.state,
            snapshot=self.current(),
            states=frames,
            average_buffers=self.model.average_buffers,
            averaged=self._averaged,
            averaging=kind_of(run.config.averaging),
            monitored=run.monitored,
            monitor_mode=self._validator.mode,
            history=run.history,
            scores=run.scores,
            setting=self._setting(),
            steps=run.steps,
            batch_size=run.batch_size,
            learning_rate_scale=run.learning_rate_scale,
            frozen=run.frozen,
            own_frozen=self._own_frozen,
            unfinished=None if self._finished else run.previous,
            first=begun.step,
            slot=begun.slot,
            hooks=self._hooks.state_dicts(),
        )

    def train(self, interrupted: Callable[[], bool]) -> StoppedBy:
        """Run until a trigger, a hook or Ctrl-C ends it; return which."""
        run, config = self.run, self.run.config
        self._mark = perf_counter()
        self._call("on_train_begin")
        if self._resumed is not None:
            run.frozen = self._resumed.frozen_now(self._own_frozen)
            self._hooks.load_state_dicts(self._resumed.hooks)
        self._begun = True
        if not self._finished:
            self._finish()
        while not config.end_when(run.counted(run.previous), run.counted(run.state)):
            if run.stopped:
                return "hook"
            if interrupted():
                run.stop("interrupt")
                return "interrupt"
            self._resize_if_due()
            if run.state.step == 0:
                self._begin_epoch()
                self._call("on_epoch_begin")
            self._call("on_iteration_begin")
            self._iterate()
            self._call("on_iteration_end")
            self._finish()
        return "hook" if run.stopped else "end_when"

    def _finish(self) -> None:
        """Do the work that is due after an iteration; a resumed run does work that an error has skipped."""
        run = self.run
        if self._validator.is_due(run.previous, run.state):
            self._validate()
        if run.state.step == 0:
            self._schedule.after_epoch()
            self._call("on_epoch_end")
        self._finished = True
        self._call("on_boundary", False)

    def left_out(self) -> Iterator[str]:
        """Say what was asked for and has never happened in a run that is over."""
        config, state = self.run.config, self.run.state
        where = f"in {state.iteration} iterations, {state.epoch} epochs of which are complete"
        if config.averaging is not None and state.iteration and not self._averaged:
            yield (
                f"averaging={config.averaging!r}: no weights entered the average {where}; the result has "
                "the last ones"
            )
        if self._validator.sets and state.iteration and not self.run.history.validations:
            yield f"validate_when={config.validate_when!r} never fired {where}; there are no scores"

    def end(self) -> None:
        """Tell the hooks that the run is over.

        Every hook is told, whatever the others do. The first exception is raised, unless the run has
        failed already: its own error is the one to see. After a second Ctrl-C nobody wants to wait for a
        last checkpoint.
        """
        run = self.run
        errors: list[Exception] = []
        try:
            if self._begun and not isinstance(run.error, KeyboardInterrupt):
                errors += self._hooks.tell("on_boundary", True)
        except BaseException as error:
            run.error = run.error or error
            raise
        finally:
            errors += self._hooks.tell("on_train_end")
        if errors and run.error is None:
            raise errors[0]

    def _begin_epoch(self) -> None:
        """Begin an epoch that visits all rows."""
        self._epochs.since = FROM_THE_BEGINNING
        self.run.steps = self._epochs.steps(self._forecast.rows(self.run.state.epoch))

    def _resize_if_due(self) -> None:
        """Lay the rows out over another number of partitions if the cluster has changed for good."""
        if self._watch is None:
            return
        run, state = self.run, self.run.state
        before = len(self._epochs.store.partitions)
        if self._demand is not None:
            self._demand.decide()
        after = self._watch.decide(before, between_epochs=state.step == 0)
        if after is None or not self._epochs.may_move(state):
            return
        rows = self._forecast.rows(state.epoch)
        try:
            point = self.point()
            self._epochs.move(after)
        except (TaskError, DataError) as error:
            _log.warning("staying at %d partitions, for moving to %d failed: %s", before, after, error)
            self._watch.wait()
            return
        _log.info("moved from %d to %d partitions after iteration %d", before, after, state.iteration)
        self._call("on_resize", before, after)
        if state.step and rows != (now := self._forecast.rows(state.epoch)):
            run.steps = self._epochs.rebatch(state, run.steps, now)
        self._engine.resize(self._epochs.store)
        self._go_on_from(point)

    def _iterate(self) -> None:
        """Run one iteration and write it down."""
        run = self.run
        begin, before, lead = perf_counter(), run.state, self._ahead.lead
        self._schedule.scale(run.learning_rate_scale)
        learning_rate = self._schedule.learning_rate()
        outcome: Outcome | None = None
        if self._epochs.rows(before, run.steps):
            told, averaged = self._forecast.directives(run.previous, before, self._averaged), self._averaged
            outcome = self._ahead.run(
                self._forecast.step(before, told), lambda n: self._forecast.following(told, averaged, n)
            )
            if self._deadlines is not None:
                self._deadlines.add(outcome.gradient_seconds)
            self._averaged += told.average > 0
            self._counters.check(outcome.extras)
        # Of many tiny partitions some iterations of an epoch get no row at all.
        found = outcome or Outcome(samples=0, loss=before.loss, phases={}, bytes={})
        # If all samples have weight zero, nothing is known about the loss.
        loss = before.loss if isnan(found.loss) else found.loss
        now, later = perf_counter(), self._ahead.lead - lead
        run.previous, run.outcome = before, outcome
        run.state = before.advance(run.steps, found.samples, loss, now - self._mark - later)
        self._finished = False
        self._mark = now
        if self._demand is not None and outcome is not None:
            work = max(outcome.row_seconds, default=0.0)
            self._demand.add(len(self._epochs.store.partitions), now - begin - later, work)
        seconds = max(0.0, now - begin - later)
        run.history.append(
            {
                "epoch": before.epoch + 1,
                "iteration": run.state.iteration,
                "loss": run.state.loss,
                "samples": found.samples,
                "dropped": found.dropped,
                "lost": found.lost,
                "direct": int(found.direct),
                "lr": learning_rate,
                "seconds": seconds,
                "phases": within(found.phases, seconds, "other"),
                "bytes": found.bytes,
                "extras": found.extras,
            }
        )
        self._schedule.after_iteration()

    def _validate(self) -> None:
        self._ahead.settle()
        average = self.averaged() if self._averaged else None
        if average is None:
            self._recovery.snapshot()  # which an evaluation would have to publish
        self._validator.run(lambda: self._engine.published(average, self.model), self._call)

    def current(self) -> Snapshot:
        """Return the weights as the last iteration left them."""
        self._ahead.settle()
        return self._recovery.snapshot()

    def rows(self) -> dict[str, Entries]:
        """Return the rows of embedding variables as the last iteration left them."""
        self._ahead.settle()
        return self._recovery.rows()

    def averaged(self) -> Snapshot:
        """Return the averaged weights, or the current ones as long as nothing was averaged."""
        self._ahead.settle()
        buffers = self.model.average_buffers
        if not self._averaged or buffers is None:
            return self.current()
        return Snapshot(self._recovery.average(), buffers, self.model.weights.counters)

    def _call(self, method: str, *arguments: Any) -> None:
        """Call a method of all hooks, and go on with other weights if one of them wants that."""
        self._hooks.call(method, *arguments)
        replacement = self.run.take_replacement()
        if replacement is not None:
            self._ahead.settle()
            self._recovery.replace(self._engine.replace(self.model, replacement))

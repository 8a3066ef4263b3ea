"""The training loop: iterations, validation, hooks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan
from time import perf_counter
from typing import Any, Literal

from sparkdl import session
from sparkdl.allreduce.directives import Directives, Step
from sparkdl.allreduce.engine import Engine
from sparkdl.allreduce.kept import Snapshot
from sparkdl.allreduce.outcome import Outcome
from sparkdl.allreduce.state import ModelState
from sparkdl.compute.local_steps import InnerSteps
from sparkdl.compute.place import Place
from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import ConfigError, DataError, TaskError
from sparkdl.train.ahead import Ahead
from sparkdl.train.drop import Deadlines
from sparkdl.train.elastic import Watch
from sparkdl.train.epochs import Epochs
from sparkdl.train.evaluate import Evaluator
from sparkdl.train.hooks import Hook
from sparkdl.train.leaving import note
from sparkdl.train.recovery import Commit, Recovery
from sparkdl.train.resume import ResumePoint
from sparkdl.train.run import Run
from sparkdl.train.schedule import ScheduledHyper
from sparkdl.train.slice_files import WriteSlice
from sparkdl.train.state import TrainState
from sparkdl.train.validation import Monitor

StoppedBy = Literal["end_when", "hook", "interrupt", "error"]

_log = logging.getLogger("sparkdl")


class Loop:
    """Runs iterations until something ends the run.

    Args:
        run: what hooks see; holds state and history.
        engine: runs steps.
        model: what the first iteration starts from.
        epochs: the rows.
        schedule: hyper-parameters as they change.
        evaluator: evaluates validation sets.
        sets: validation sets by name.
        monitor: the monitored score, if there is validation.
        hooks: in the order in which they are called.
        setting: returns what must be the same for another run to go on from this one.
    """

    def __init__(
        self,
        *,
        run: Run,
        engine: Engine,
        model: ModelState,
        epochs: Epochs,
        schedule: ScheduledHyper,
        evaluator: Evaluator,
        sets: Mapping[str, Dataset],
        monitor: Monitor | None,
        hooks: Sequence[Hook],
        setting: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._run = run
        self._engine = engine
        config = run.config
        self._recovery = Recovery(
            engine, model, config.commit_every, config.max_failures, config.failure_window
        )
        self._ahead = Ahead(self._recovery, config.iterations_per_job)
        self._epochs = epochs
        self._watch = (
            Watch(config.elastic, lambda: session.executor_count(run.data.spark)) if config.elastic else None
        )
        self._deadlines = Deadlines(config.drop_stragglers) if config.drop_stragglers else None
        self._resumed: ResumePoint | None = None
        self._schedule = schedule
        self._evaluator = evaluator
        self._sets = sets
        self._monitor = monitor
        self._hooks = hooks
        self._setting = setting
        self._averaged = 0
        self._begun = False
        self._finished = True
        self._mark = perf_counter()
        self._indices = {p.name: index for index, p in enumerate(run.layout.params)}

    @property
    def model(self) -> ModelState:
        """Weights and what stays with the slices."""
        return self._recovery.model

    def release(self) -> None:
        """Delete models from the executors."""
        self._recovery.release()

    def resume(self, point: ResumePoint) -> None:
        """Go on from where another run was; before :meth:`train`.

        The schedule is taken through all that happened until then, so that it need not be saved.

        Raises:
            TaskError: if the optimizer's state cannot be given back to the slices.
        """
        run, state = self._run, point.state
        scores = _monitored(point.history.validations, self._monitor)
        epochs = [*point.history.column("epoch"), state.epoch + 1]
        if point.unfinished is not None:  # the schedule learns of the epoch's end when it is made up for
            epochs[-1] = epochs[-2]
        for iteration in range(1, state.iteration + 1):
            self._schedule.after_iteration()
            if iteration in scores:
                self._schedule.after_validation(scores[iteration])
            if epochs[iteration] != epochs[iteration - 1]:
                self._schedule.after_epoch()
        run.previous, run.state = point.unfinished or state, state
        self._finished = point.unfinished is None
        run.history, run.scores, self._averaged = point.history, dict(point.scores), point.averaged
        run.batch_size, run.learning_rate_scale = point.batch_size, point.learning_rate_scale
        if state.step:
            self._resume_epoch(point)
        self._go_on_from(point)
        self._resumed = point

    def _resume_epoch(self, point: ResumePoint) -> None:
        """Go on with the rows that an epoch had left."""
        run, then, now = self._run, point.setting["partitions"], list(self._epochs.store.rows)
        run.steps = point.steps
        if point.left is not None and then == now:
            self._epochs.go_on(point.first, point.left)
        elif then != now:
            self._epochs.recover(point.state, point.steps, then, point.first, point.left)
            run.steps = self._epochs.steps_left(point.state, self._rows(point.state.epoch))
            self._engine.resize(self._epochs.store)

    def _go_on_from(self, point: ResumePoint) -> None:
        """Give weights and what stays with the slices back, to as many slices as there are now."""
        kept = point.kept_for(self._run.layout, self._engine.plan.shards)
        self._recovery.restart(Commit(point.snapshot, point.average_buffers, kept, point.state.iteration))

    def write_slices(self, folder: str) -> dict[str, str]:
        """Let executors write what stays with the slices; return sha256 by file name."""
        self._ahead.settle()
        task = WriteSlice(folder, self._engine.plan.shards)
        written = self._recovery.run_on_kept(task, "write the optimizer's state")
        return {message.meta["name"]: message.meta["sha256"] for message in written}

    def point(self, kept: bool = True) -> ResumePoint:
        """Return all that another run needs to go on from here.

        Args:
            kept: whether with what stays with the slices.

        Raises:
            TaskError: if what stays with the slices cannot be read.
        """
        self._ahead.settle()
        run, cursor = self._run, self._epochs.cursor
        frames = self._recovery.fetch() if kept else []
        return ResumePoint(
            state=run.state,
            snapshot=self.current(),
            kept=frames,
            average_buffers=self.model.average_buffers,
            averaged=self._averaged,
            history=run.history,
            scores=run.scores,
            setting=self._setting(),
            steps=run.steps,
            batch_size=run.batch_size,
            learning_rate_scale=run.learning_rate_scale,
            frozen=run.frozen,
            unfinished=None if self._finished else run.previous,
            first=cursor.first if cursor is not None else 0,
            left=cursor.positions if cursor is not None else None,
            hooks={name: hook.state_dict() for name, hook in _by_name(self._hooks).items()},
        )

    def train(self, interrupted: Callable[[], bool]) -> StoppedBy:
        """Run until a trigger, a hook or Ctrl-C ends it; return which."""
        run, config = self._run, self._run.config
        self._mark = perf_counter()
        self._call("on_train_begin")
        if self._resumed is not None:
            self._resume_hooks(self._resumed)
        self._begun = True
        if not self._finished:
            self._finish()
        while not config.end_when(run.previous, run.state):
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
        return "end_when"

    def _finish(self) -> None:
        """Do what is due after an iteration; a resumed run makes up for what an error left undone."""
        run = self._run
        if self._sets and run.config.validate_when(run.previous, run.state):
            self._validate()
        if run.state.step == 0:
            self._schedule.after_epoch()
            self._call("on_epoch_end")
        self._finished = True
        self._call("on_boundary", False)

    def end(self) -> None:
        """Tell the hooks that the run is over.

        Every hook is told, whatever the others do. The first exception is raised, unless the run has
        failed already: its own error is the one to see. After a second Ctrl-C nobody wants to wait for a
        last checkpoint.
        """
        run = self._run
        errors: list[Exception] = []
        try:
            if self._begun and not isinstance(run.error, KeyboardInterrupt):
                errors += self._tell("on_boundary", True)
        except BaseException as error:
            run.error = run.error or error
            raise
        finally:
            errors += self._tell("on_train_end")
        if errors and run.error is None:
            raise errors[0]

    def _tell(self, method: str, *arguments: Any) -> list[Exception]:
        """Call a method of all hooks at the end of the run; return what failed."""
        errors: list[Exception] = []
        for hook in self._hooks:
            try:
                getattr(hook, method)(self._run, *arguments)
            except Exception as error:
                errors.append(error)
                failure = f"{type(hook).__name__}.{method} failed: {error!r}"
                if self._run.error is not None:
                    note(self._run.error, failure)
                else:
                    _log.warning("%s", failure)
        return errors

    def _begin_epoch(self) -> None:
        """Begin an epoch that visits all rows."""
        moved = self._epochs.cursor is not None
        self._epochs.begin()
        if moved and self._recovery.commit():
            self._epochs.release_old()
        self._run.steps = self._epochs.steps(self._rows(self._run.state.epoch))

    def _rows(self, epoch: int) -> int:
        """Return the rows of one iteration in an epoch."""
        return self._run.config.rows_per_iteration(self._run.batch_size, epoch)

    def _resume_hooks(self, point: ResumePoint) -> None:
        """Let hooks go on from where those of the run before were."""
        self._run.frozen = point.frozen
        for name, hook in _by_name(self._hooks).items():
            if name in point.hooks:
                hook.load_state_dict(point.hooks[name])

    def _resize_if_due(self) -> None:
        """Lay the rows out over another number of partitions if the cluster has changed for good."""
        if self._watch is None:
            return
        run, state = self._run, self._run.state
        before = len(self._epochs.store.partitions)
        after = self._watch.decide(before, between_epochs=state.step == 0)
        if after is None:
            return
        try:
            point = self.point()
            self._epochs.move(state, run.steps, after)
        except (TaskError, DataError) as error:
            _log.warning("staying at %d partitions, for moving to %d failed: %s", before, after, error)
            self._watch.wait()
            return
        _log.info("moved from %d to %d partitions after iteration %d", before, after, state.iteration)
        self._call("on_resize", before, after)
        run.steps = self._epochs.steps_left(state, self._rows(state.epoch))
        self._engine.resize(self._epochs.store)
        self._go_on_from(point)

    def _iterate(self) -> None:
        """Run one iteration and write it down."""
        run = self._run
        begin, before, lead = perf_counter(), run.state, self._ahead.lead
        self._schedule.scale(run.learning_rate_scale)
        learning_rate = self._schedule.learning_rate()
        outcome: Outcome | None = None
        if self._epochs.rows(before, run.steps):
            turn = self._turn(run.previous, before, self._averaged)
            outcome = self._ahead.run(self._iteration(before, turn), lambda n: self._expect(turn, n))
            if self._deadlines is not None:
                self._deadlines.add(outcome.gradient_seconds)
            self._averaged += turn.average > 0
        # else: many tiny partitions: some iterations of an epoch get no row at all
        samples, loss = (outcome.samples, outcome.loss) if outcome else (0, before.loss)
        if isnan(loss):  # all samples have weight zero: nothing is known about the loss
            loss = before.loss
        now, later = perf_counter(), self._ahead.lead - lead
        run.previous, run.outcome = before, outcome
        run.state = before.advance(run.steps, samples, loss, now - self._mark - later)
        self._finished = False
        self._mark = now
        run.history.append(
            {
                "epoch": before.epoch + 1,
                "iteration": run.state.iteration,
                "loss": run.state.loss,
                "samples": samples,
                "dropped": outcome.dropped if outcome else 0,
                "lost": outcome.lost if outcome else 0,
                "lr": learning_rate,
                "seconds": now - begin - later,
                "phases": outcome.phases if outcome else {},
                "bytes": outcome.bytes if outcome else {},
                "extras": outcome.extras if outcome else {},
            }
        )
        self._schedule.after_iteration()

    def _iteration(self, state: TrainState, turn: Directives) -> Step:
        """Return what is to be done after a state."""
        frozen = tuple(self._indices[name] for name in sorted(self._run.frozen))
        allowance = self._deadlines.allowance() if self._deadlines is not None else None
        local, inner = self._run.config.local, None
        if local is not None:  # hyper-parameters are those of the partitions' optimizer
            inner, turn = InnerSteps(local.at(state.epoch), turn.hyper), replace(turn, hyper=())
        cursor = self._epochs.cursor
        place = Place(state.epoch, state.step, self._run.steps, cursor.ref if cursor is not None else None)
        broadcasts = cursor.broadcasts if cursor is not None else ()
        return Step(place, state.iteration, turn, frozen, allowance, inner, broadcasts)

    def _turn(self, previous: TrainState, state: TrainState, averaged: int) -> Directives:
        """Decide what the iteration after a state is told."""
        run, averaging = self._run, self._run.config.averaging
        weight = 0.0
        if averaging is not None:
            after = state.advance(run.steps, 0, state.loss)
            weight = averaging.weight(state, after, averaged)
        wanted = any(h.gradients is not None and h.gradients(previous, state) for h in self._hooks)
        return Directives(self._schedule.hyper(), weight, wanted)

    def _expect(self, turn: Directives, most: int) -> list[Step]:
        """Return the iterations that will follow the coming one, as far as nothing comes between them.

        Args:
            turn: what the coming one is told.
            most: how many to return at most.
        """
        if turn.gradient or self._deadlines is not None or most < 1:
            return []
        run, averaged = self._run, self._averaged
        previous, state = run.state, run.state
        expected: list[Step] = []
        schedule = self._schedule.state_dict()
        try:
            while len(expected) < most:
                averaged += turn.average > 0
                rows = self._epochs.rows(state, run.steps)
                previous, state = state, state.advance(run.steps, rows, state.loss)
                self._schedule.after_iteration()
                if self._comes_between(previous, state):
                    break
                if state.step == 0:
                    self._schedule.after_epoch()
                turn = self._turn(previous, state, averaged)
                if turn.gradient:
                    break
                expected.append(self._iteration(state, turn))
        except ConfigError:  # a schedule's end, which the run may not come to
            pass
        finally:
            self._schedule.load_state_dict(schedule)
        return expected

    def _differs(self, epoch: int) -> bool:
        """Return whether an epoch has other rows, or another number of iterations, than the current one."""
        return self._epochs.cursor is not None or self._epochs.steps(self._rows(epoch)) != self._run.steps

    def _comes_between(self, previous: TrainState, state: TrainState) -> bool:
        """Return whether something has to happen before the iteration after a state."""
        run, config = self._run, self._run.config
        return (
            (state.step == 0 and self._differs(state.epoch))
            or not self._epochs.rows(state, run.steps)
            or config.end_when.foresees(previous, state)
            or (bool(self._sets) and config.validate_when.foresees(previous, state))
            or any(hook.looks(previous, state) for hook in self._hooks)
        )

    def _validate(self) -> None:
        """Evaluate all validation sets; the monitored score enters the state."""
        self._ahead.settle()
        run = self._run
        average = self.averaged() if self._averaged else None
        if average is None:
            self._recovery.snapshot()  # which an evaluation would have to publish
        done = {row["name"] for row in run.history.validations if row["iteration"] == run.state.iteration}
        for name, data in self._sets.items():
            if name in done:  # before the error that ended the run that is resumed
                continue
            self._call("on_validation_begin", name)
            describe = f"sparkdl fit {run.name}: epoch {run.previous.epoch + 1}, validation {name}"
            # Anew for each set: a hook that replaces the weights releases those before.
            with self._engine.published(average, self.model) as weights:
                scores = self._evaluator.run(data, weights, describe)
            run.scores |= {f"{name}/{score}": value for score, value in scores.items()}
            run.history.add_scores(run.state.iteration, run.previous.epoch + 1, name, scores)
            self._note_score(name, scores)
            self._call("on_validation_end", name, scores)

    def _note_score(self, name: str, scores: Mapping[str, float]) -> None:
        monitor = self._monitor
        if monitor is None or monitor.set != name or monitor.score not in scores:
            return
        run, score = self._run, scores[monitor.score]
        run.state = run.state.validated(
            score, higher_is_better=monitor.higher_is_better, min_delta=monitor.min_delta
        )
        self._schedule.after_validation(score)

    def current(self) -> Snapshot:
        """Return the weights as the last iteration left them."""
        self._ahead.settle()
        return self._recovery.snapshot()

    def averaged(self) -> Snapshot:
        """Return the averaged weights, or the current ones as long as nothing was averaged."""
        self._ahead.settle()
        buffers = self.model.average_buffers
        if not self._averaged or buffers is None:
            return self.current()
        return Snapshot(self._recovery.average(), buffers, self.model.weights.counters)

    def _call(self, method: str, *arguments: Any) -> None:
        """Call a method of all hooks, and go on with other weights if one of them wants that."""
        for hook in self._hooks:
            getattr(hook, method)(self._run, *arguments)
        replacement = self._run.take_replacement()
        if replacement is not None:
            self._ahead.settle()
            self._recovery.replace(self._engine.replace(self.model, replacement))


def _monitored(validations: Sequence[Mapping[str, Any]], monitor: Monitor | None) -> dict[int, float]:
    """Return the monitored score of each validation, by completed iterations."""
    if monitor is None:
        return {}
    rows = (row for row in validations if row["name"] == monitor.set and monitor.score in row)
    return {row["iteration"]: row[monitor.score] for row in rows}


def _by_name(hooks: Sequence[Hook]) -> dict[str, Hook]:
    """Name hooks by their class and a number: ``EarlyStopping.0``."""
    named: dict[str, Hook] = {}
    for hook in hooks:
        kind = type(hook).__name__
        named[f"{kind}.{sum(name.rpartition('.')[0] == kind for name in named)}"] = hook
    return named

"""What the coming iterations are told, and how far that is known before they run."""

from __future__ import annotations

from dataclasses import replace

from sparkdl.allreduce.directives import Directives, Step
from sparkdl.compute.local_steps import InnerSteps
from sparkdl.data.sampler import Place
from sparkdl.exceptions import ConfigError
from sparkdl.train.epochs import Epochs
from sparkdl.train.hooks.calls import HookCalls
from sparkdl.train.options.stragglers import Deadlines
from sparkdl.train.run import Run
from sparkdl.train.scheduled import ScheduledHyper
from sparkdl.train.state import TrainState


class Forecast:
    """Writes iterations down before they run.

    Args:
        run: the run.
        epochs: the rows.
        schedule: hyper-parameters as they change.
        deadlines: what slow tasks may leave out; ``None`` for nothing.
        hooks: the hooks.
        validates: whether there is anything to validate on.
    """

    def __init__(
        self,
        run: Run,
        epochs: Epochs,
        schedule: ScheduledHyper,
        deadlines: Deadlines | None,
        hooks: HookCalls,
        validates: bool,
    ) -> None:
        self._run = run
        self._epochs = epochs
        self._schedule = schedule
        self._deadlines = deadlines
        self._hooks = hooks
        self._validates = validates
        self._indices = {p.name: index for index, p in enumerate(run.layout.params)}

    def rows(self, epoch: int) -> int:
        """Return the rows of one iteration in an epoch."""
        return self._run.config.rows_per_iteration(self._run.batch_size, epoch)

    def directives(self, previous: TrainState, state: TrainState, averaged: int) -> Directives:
        """Return the directives of the iteration after a state.

        Args:
            previous: the state before that state.
            state: the state.
            averaged: how many iterations have entered the average by then.
        """
        run, averaging = self._run, self._run.config.averaging
        weight = 0.0
        if averaging is not None:
            after = state.advance(run.steps, 0, state.loss)
            weight = averaging.weight(state, after, averaged)
        wanted = self._hooks.want_gradient(previous, state)
        return Directives(self._schedule.hyper(), weight, wanted)

    def step(self, state: TrainState, directives: Directives) -> Step:
        """Return the actions that are due after a state."""
        frozen = tuple(self._indices[name] for name in sorted(self._run.frozen))
        allowance = self._deadlines.allowance() if self._deadlines is not None else None
        local, inner = self._run.config.local, None
        if local is not None:  # hyper-parameters are those of the partitions' optimizer
            inner = InnerSteps(local.at(state.epoch), directives.hyper)
            directives = replace(directives, hyper=())
        cursor = self._epochs.cursor
        place = Place(state.epoch, state.step, self._run.steps, cursor.ref if cursor is not None else None)
        broadcasts = cursor.broadcasts if cursor is not None else ()
        return Step(place, state.iteration, directives, frozen, allowance, inner, broadcasts)

    def following(self, directives: Directives, averaged: int, most: int) -> list[Step]:
        """Return the iterations that will follow the coming one, as far as nothing comes between them.

        Args:
            directives: what the coming one is told.
            averaged: how many iterations have entered the average before it.
            most: how many to return at most.
        """
        if directives.gradient or self._deadlines is not None or most < 1:
            return []
        run = self._run
        previous, state = run.state, run.state
        found: list[Step] = []
        schedule = self._schedule.state_dict()
        try:
            while len(found) < most:
                averaged += directives.average > 0
                rows = self._epochs.rows(state, run.steps)
                previous, state = state, state.advance(run.steps, rows, state.loss)
                self._schedule.after_iteration()
                if self._comes_between(previous, state):
                    break
                if state.step == 0:
                    self._schedule.after_epoch()
                directives = self.directives(previous, state, averaged)
                if directives.gradient:
                    break
                found.append(self.step(state, directives))
        except ConfigError:  # a schedule's end, which the run may not come to
            pass
        finally:
            self._schedule.load_state_dict(schedule)
        return found

    def _comes_between(self, previous: TrainState, state: TrainState) -> bool:
        """Return whether something has to happen before the iteration after a state."""
        run, config = self._run, self._run.config
        return (
            (state.step == 0 and self._differs(state.epoch))
            or not self._epochs.rows(state, run.steps)
            or config.end_when.foresees(run.counted(previous), run.counted(state))
            or (self._validates and config.validate_when.foresees(previous, state))
            or self._hooks.look(previous, state)
        )

    def _differs(self, epoch: int) -> bool:
        """Return whether an epoch has other rows, or another number of iterations, than the current one."""
        return self._epochs.cursor is not None or self._epochs.steps(self.rows(epoch)) != self._run.steps

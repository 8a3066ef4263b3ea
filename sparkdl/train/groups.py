"""Groups of iterations: which rows and steps come next, run at once and delivered one by one.

Triggers, hooks, schedules and history go through a run iteration by iteration. A group of iterations is
planned from what they say before it; where what they do afterwards does not agree with the plan (a trigger
fires that nobody could foresee, a hook changes something or looks at the weights), the group is undone and
only the iterations that count are run again. Tasks are deterministic, so the result is that of running
them one by one, to the bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from sparkdl.allreduce.outcome import Outcome, fixed_seconds
from sparkdl.allreduce.plan import LONGEST_GROUP, Directives, Step, steps_of_group
from sparkdl.compute.local_steps import InnerSteps
from sparkdl.data import sampler
from sparkdl.data.dataset import Dataset
from sparkdl.data.sampler import EpochPlace
from sparkdl.data.store.build import PartitionStore
from sparkdl.data.streams import FROM_THE_BEGINNING, Since
from sparkdl.exceptions import ConfigError
from sparkdl.train.hooks.calls import HookCalls
from sparkdl.train.options.stragglers import Deadlines
from sparkdl.train.recovery import Recovery
from sparkdl.train.run import Run
from sparkdl.train.scheduled import ScheduledHyper
from sparkdl.train.state import TrainState


class Epochs:
    """Tells how many rows and iterations an epoch has, and moves its rows to other partitions.

    Where rows were dealt, batches do not depend on the partitions: a move changes nothing but these. The
    store of ``data`` must be built; the current epoch has its number of iterations from ``since`` on.
    """

    def __init__(self, data: Dataset) -> None:
        self._data = data
        self.store: PartitionStore = data.store()
        self.since = FROM_THE_BEGINNING

    def steps(self, batch_size: int) -> int:
        """Return the iterations of a whole epoch."""
        return sampler.iterations_per_epoch(self._total, batch_size)

    def place(self, state: TrainState, steps: int) -> EpochPlace:
        """Return the place of the iteration after a state."""
        return EpochPlace(state.epoch, state.step, steps, self._total, self.since)

    def rows(self, state: TrainState, steps: int) -> int:
        """Return the rows of an iteration over all partitions; an epoch of many may have some of none."""
        if not self.store.is_dealt:
            return sampler.global_rows(self.store.rows, steps, state.step)
        first, end = self.since.slots(self._total, steps, state.step)
        return end - first

    def may_move(self, state: TrainState) -> bool:
        """Return whether rows can move now: those that were not dealt can between two epochs only."""
        return self.store.is_dealt or not state.step

    def move(self, partitions: int) -> None:
        """Lay the rows out over so many partitions; if DataError or TaskError comes, nothing has changed."""
        with self._data.repartitioned(partitions) as store:
            pass
        self.store = store

    def rebatch(self, state: TrainState, steps: int, batch_size: int) -> int:
        """Return the iterations that the epoch has in all if it goes on with another batch size."""
        slot, _ = self.since.slots(self._total, steps, state.step)
        self.since = Since(state.step, slot)
        return state.step + max(1, sampler.iterations_per_epoch(self._total - slot, batch_size))

    @property
    def _total(self) -> int:
        return sum(self.store.rows)


class Forecast:
    """Writes iterations down before they run; ``deadlines`` is what slow tasks may leave out, if anything."""

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
        """Return the directives of the iteration after ``state``; ``averaged`` are in the average by then."""
        run, averaging = self._run, self._run.config.averaging
        weight = 0.0
        if averaging is not None:
            after = state.advance(run.steps, 0, state.loss)
            weight = averaging.weight(state, after, averaged)
        wanted = self._hooks.want_gradient(previous, state)
        return Directives(self._schedule.hyper(), weight, wanted)

    def step(self, state: TrainState, directives: Directives) -> Step:
        """Return the step after a state."""
        frozen = tuple(self._indices[name] for name in sorted(self._run.frozen))
        allowance = self._deadlines.allowance() if self._deadlines is not None else None
        local, inner = self._run.config.local, None
        if local is not None:  # hyper-parameters are those of the partitions' optimizer
            inner = InnerSteps(local.at(state.epoch), directives.hyper)
            directives = replace(directives, hyper=())
        place = self._epochs.place(state, self._run.steps)
        return Step(place, state.iteration, directives, frozen, allowance, inner)

    def following(self, directives: Directives, averaged: int, most: int) -> list[Step]:
        """Return the iterations that will follow the coming one, as far as nothing comes between.

        ``averaged`` have entered the average before it.
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
        """Return whether an epoch has another number of iterations than the current one, or other batches."""
        epochs = self._epochs
        return epochs.since != FROM_THE_BEGINNING or epochs.steps(self.rows(epoch)) != self._run.steps


_FULL_GROUPS = 8
"""So many groups in a row have to be used up before a limit that an undone group has set is raised."""


class Ahead:
    """Runs iterations in groups.

    Without ``size`` a group fits the plan's ``group_seconds``, or keeps the part of its fixed cost small,
    which grows with the number of tasks and with what is persisted.
    """

    def __init__(self, recovery: Recovery, size: int | None) -> None:
        self._recovery = recovery
        self._size = size
        self._now = size or 1
        self._limit = LONGEST_GROUP
        self._used_up = 0
        self._waiting: deque[tuple[Step, Outcome]] = deque()
        self._delivered: list[Step] = []
        self._owed: list[Step] = []
        self._each = 0.0

    @property
    def lead(self) -> float:
        """Seconds that iterations took that are still to be delivered."""
        return self._each * len(self._waiting)

    def run(self, iteration: Step, upcoming: Callable[[int], list[Step]]) -> Outcome:
        """Return the outcome of an iteration, after running it if that has not been done yet."""
        if self._owed or (self._waiting and not self._waiting[0][0].same_as(iteration)):
            self.settle()
        if not self._waiting:
            most = min(self._now, self._limit, self._recovery.engine.longest_group)
            self._run_group([iteration, *upcoming(most - 1)])
        planned, outcome = self._waiting.popleft()
        self._delivered.append(planned)
        if not self._waiting:
            self._used_up += 1
        return outcome

    def settle(self) -> None:
        """Let the model be that of the last delivered iteration; after a TaskError the next call retries."""
        if self._waiting:
            self._waiting.clear()
            # Whoever has ended this group will probably end the next ones as early.
            self._limit, self._used_up = len(self._delivered), 0
            self._owed = list(self._delivered)
            self._recovery.undo(self._delivered)
        while self._owed:  # where an executor has lost its files, a run ends after one iteration
            del self._owed[: len(self._recovery.run(self._owed))]

    def _run_group(self, group: list[Step]) -> None:
        """Let the engine run a group; :class:`Recovery` runs it again where executors are lost."""
        if self._used_up >= _FULL_GROUPS:
            self._limit, self._used_up = min(2 * self._limit, LONGEST_GROUP), 0
        begin = perf_counter()
        outcomes = self._recovery.run(group)
        self._waiting.extend(zip(group, outcomes, strict=False))
        self._delivered.clear()
        elapsed = perf_counter() - begin
        self._each = elapsed / len(outcomes)
        if self._size is None:
            wanted = self._recovery.engine.plan.traits.group_seconds
            # Not all at once: the first ones take longer than those after them.
            fitting = steps_of_group(wanted, self._each, fixed_seconds(outcomes, elapsed))
            self._now = min(fitting, 4 * self._now)

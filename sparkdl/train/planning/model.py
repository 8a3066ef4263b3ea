"""From a rehearsal to steps on other numbers of executors: time and memory. Numbers alone, no Spark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sparkdl.allreduce.plan import steps_of_group
from sparkdl.train.planning.costs import (
    Carrier,
    Driver,
    Kind,
    Surroundings,
    exchange_seconds,
    moves,
)

_SURE = 0.06  # relative error of a forecast for what was measured: two runs of the same differ by so much
_PER_DOUBLING = 0.06  # what each doubling of executors beyond the measured ones adds
_NETWORK = 0.3  # relative error of an exchange over a network that was not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTimes:
    """One fit of a rehearsal. Seconds are means of a step over the later groups."""

    ranks: int  # how many
    rows: float  # of a rank in a step
    threads: int  # of a task
    exchange: Kind  # how gradients became weights
    transport: str  # ``"direct"`` or ``"shuffle"``
    group: int  # steps of a job
    seconds: float  # of a step, with its share of the job
    work: float  # seconds of a rank's own work: rows, forward and backward, of the slowest task
    noise: float  # relative spread of the groups' seconds
    python_bytes: int  # largest memory of an executor's Python processes
    jvm_bytes: int  # largest memory of an executor's JVM
    group_seconds: float = 2.0  # how long the plan wants a job to take


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What was measured on a sample."""

    alone: Sequence[FitTimes]  # one rank, with few rows and more; at least one fit
    # as many ranks as executors, for each exchange and transport; the first is that of the options. Empty if
    # there was one executor of one core.
    together: Sequence[FitTimes]
    # two ranks for each executor, each with half the cores; ``None`` if a core cannot be halved
    halved: FitTimes | None
    job: float  # seconds of a job beyond those of its steps
    nbytes: int  # of the weights
    state_bytes: int  # of the optimizer's state, of all shards
    row_bytes: float  # of a stored row
    executors: int  # how many there were
    cores: int  # of an executor
    host_cores: int  # cores of a machine
    one_host: bool  # whether all executors share one machine, also if there are more of them
    sample_rows: int = 0  # of the sample
    iterations_per_job: int | None = None  # as the option says


@dataclass(frozen=True, slots=True)
class Line:
    """What grows with the rows of a rank."""

    fixed: float
    each: float

    def at(self, rows: float) -> float:
        """Return the value for so many rows."""
        return self.fixed + self.each * rows

    @classmethod
    def through(cls, rows: Sequence[float], values: Sequence[float]) -> Line:
        """Fit a line by relative error, without negative parts."""
        x, y = np.array(rows), np.maximum(np.array(values), 1e-12)
        if len(set(rows)) > 1:
            matrix = np.stack([1 / y, x / y], axis=1)
            fixed, each = np.linalg.lstsq(matrix, np.ones(len(y)), rcond=None)[0]
            if fixed >= 0 and each >= 0:
                return cls(float(fixed), float(each))
            if each < 0:
                return cls(float(y.mean()), 0.0)
        return cls(0.0, float((y / np.maximum(x, 1e-9)).mean()))


@dataclass(frozen=True, slots=True)
class Curve:
    """What was measured with some numbers of rows: as measured between them, along a line beyond them."""

    rows: tuple[float, ...]
    values: tuple[float, ...]
    line: Line

    def at(self, rows: float) -> float:
        """Return the value for so many rows."""
        near = min(max(rows, self.rows[0]), self.rows[-1])
        value = float(np.interp(near, self.rows, self.values))
        return value if near == rows else value * self.line.at(rows) / self.line.at(near)

    @classmethod
    def through(cls, rows: Sequence[float], values: Sequence[float]) -> Curve:
        """Return the curve through some points, with means where rows are equal."""
        known: dict[float, list[float]] = {}
        for x, y in zip(rows, values, strict=True):
            known.setdefault(x, []).append(max(y, 1e-12))
        means = {x: float(np.mean(known[x])) for x in sorted(known)}
        return cls(tuple(means), tuple(means.values()), Line.through(rows, values))


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seconds of a step, by what takes them."""

    work: float  # rows, forward and backward
    sync: float  # exchange, sums and update
    job: float  # its share of the job's scheduling
    error: float  # relative error of the sum

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.work + self.sync + self.job


@dataclass(frozen=True, slots=True)
class StepModel:
    """Forecasts steps from a rehearsal.

    The cost model says how sync grows with ranks and bytes, the rehearsal how large it is.
    """

    found: Rehearsal  # the rehearsal
    # bytes per second of a machine in each direction, where executors have a machine each
    network: float = 1.25e9
    carrier: Carrier = field(default_factory=Carrier)  # what a message costs
    driver: Driver = field(default_factory=Driver)  # what a job costs

    def step(self, executors: int, batch: float, like: FitTimes | None = None) -> StepTime:
        """Return a step's time on executors of one rank each, with exchange and transport of ``like``."""
        found, like = self.found, like or self.usual
        rows = batch / executors
        work = self._work.at(rows) * self._slower(executors)
        update = self._update / executors if like.exchange == "sharded" else self._update
        sync, error = update * self._slower(executors), 0.0
        if executors > 1 and like.ranks > 1:
            ratio = self._exchange(like, executors) / self._exchange(like, like.ranks, here=True)
            crowded = self._oversubscribed(executors) / self._oversubscribed(found.executors)
            exchange = self._exchanging(like) * ratio * crowded
            sync += exchange
            if not found.one_host and found.executors == 1:
                error = _NETWORK * exchange / max(work + sync, 1e-9)
        job = found.job * self.driver.seconds(executors, 1, 1) / self.driver.seconds(like.ranks, 1, 1)
        each = max(work + sync, 1e-9)
        group = found.iterations_per_job or steps_of_group(like.group_seconds, each, job)
        far = _PER_DOUBLING * abs(math.log2(executors / like.ranks))
        noise = max(like.noise, self._alone_noise)
        error = math.sqrt(error**2 + noise**2 + _SURE**2 + far**2)
        return StepTime(work, sync, job / group, error)

    def memory(
        self, executors: int, batch: float, rows: float, like: FitTimes | None = None
    ) -> tuple[int, int]:
        """Return the memory of an executor's JVM and of its Python processes."""
        found, like = self.found, like or self.usual
        curve = Curve.through([fit.rows for fit in found.alone], [fit.python_bytes for fit in found.alone])
        python, mapped = curve.at(batch / executors), float(found.sample_rows)
        if executors > 1 and like.ranks > 1:
            python += like.python_bytes - curve.at(like.rows)
            python += self._held(like.exchange, executors) - self._held(like.exchange, like.ranks)
            mapped /= like.ranks
        # A task maps the files of its partition, and visits all rows in the course of an epoch.
        stored = max(0.0, rows / executors - mapped) * found.row_bytes
        return max(like.jvm_bytes, *(fit.jvm_bytes for fit in found.alone)), int(python + stored)

    @property
    def usual(self) -> FitTimes:
        """The fit with the options as they are, together if there were several ranks."""
        return self.found.together[0] if self.found.together else self.found.alone[-1]

    def chosen(self, kind: Kind) -> FitTimes:
        """Return the fit that has measured an exchange with the usual transport, or the nearest to it."""
        known = [fit for fit in self.found.together if fit.exchange == kind]
        usual = [fit for fit in known if fit.transport == self.usual.transport]
        return (usual or known or [self._with(kind)])[0]

    def _with(self, kind: Kind) -> FitTimes:
        """Return what the usual fit would have measured with another exchange."""
        usual = self.usual
        if usual.ranks == 1:
            return replace(usual, exchange=kind)
        exchange, update = self._exchanging(usual), self._updating(usual)
        other = replace(usual, exchange=kind)
        ratio = self._exchange(other, usual.ranks, here=True) / self._exchange(usual, usual.ranks, here=True)
        held = self._held(kind, usual.ranks) - self._held(usual.exchange, usual.ranks)
        return replace(
            other,
            seconds=usual.seconds + exchange * (ratio - 1) + self._updating(other) - update,
            python_bytes=max(0, round(usual.python_bytes + held)),
        )

    @property
    def _work(self) -> Curve:
        alone = self.found.alone
        return Curve.through([fit.rows for fit in alone], [fit.work for fit in alone])

    @property
    def _alone_noise(self) -> float:
        return max(fit.noise for fit in self.found.alone)

    @property
    def _update(self) -> float:
        """Seconds of one rank beyond its work: the update of all weights, and the loop."""
        rest = [fit.seconds - fit.work - self._job_share(fit) for fit in self.found.alone]
        return max(0.0, float(np.median(rest)))

    def _job_share(self, fit: FitTimes) -> float:
        each = self.found.job / fit.group
        usual = self.driver.seconds(self.usual.ranks, 1, 1)
        return each * self.driver.seconds(fit.ranks, 1, 1) / usual

    def _exchanging(self, like: FitTimes) -> float:
        """Return the seconds in which messages travelled, and ranks waited."""
        return max(1e-6, like.seconds - like.work - self._job_share(like) - self._updating(like))

    def _updating(self, like: FitTimes) -> float:
        """Return the seconds of a rank's update, as slow beside the others as its work is."""
        update = self._update / like.ranks if like.exchange == "sharded" else self._update
        return update * max(1.0, like.work / max(self._work.at(like.rows), 1e-12))

    def _exchange(self, like: FitTimes, ranks: int, *, here: bool = False) -> float:
        """Return the cost model's seconds; those of the rehearsal's own network if ``here``."""
        same = here or self.found.one_host or self.found.executors > 1
        around = Surroundings(network=math.inf if same else self.network)
        does = moves(like.exchange, self.found.nbytes, ranks)
        travel = exchange_seconds(does, like.transport, self.carrier, around)
        stages = self.driver.task * ranks if like.transport != "direct" else 0.0
        return travel + around.copy * does.summed + stages

    def _slower(self, executors: int) -> float:
        """Return by what factor a rank's work is slower than alone, with others beside it."""
        found, usual = self.found, self.usual
        alone = found.alone[-1].threads
        if usual.ranks == 1 or usual.threads != alone:
            return 1.0
        measured = max(1.0, usual.work / max(self._work.at(usual.rows), 1e-12))
        if executors == 1:
            return 1.0
        if not found.one_host:
            return measured
        busy, cores = executors * alone, found.host_cores
        full = measured / self._oversubscribed(usual.ranks)
        most = min(usual.ranks * alone, cores)
        within = (
            1.0 if most <= alone else 1 + (max(1.0, full) - 1) * (min(busy, cores) - alone) / (most - alone)
        )
        return max(1.0, within) * self._oversubscribed(executors)

    def _oversubscribed(self, executors: int) -> float:
        """Return how many threads want each core of the one machine that all executors share."""
        if not self.found.one_host:
            return 1.0
        return max(1.0, executors * self.found.alone[-1].threads / self.found.host_cores)

    def _held(self, kind: Kind, ranks: int) -> float:
        """Return bytes that a rank holds of gradients, weights and state beyond the activations."""
        weights, state = self.found.nbytes, self.found.state_bytes
        if kind == "replicated":
            return 2.0 * weights + state + weights * ranks
        return 2.0 * weights + (3.0 * weights + state) / ranks

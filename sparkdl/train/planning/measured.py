"""Measurements of a rehearsal: numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl.train.planning.costs import Kind


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

"""Measurements of a rehearsal: numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl.train.planning.costs import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One fit of a rehearsal. Seconds are means of a step over the later groups.

    Attributes:
        ranks: how many.
        rows: of a rank in a step.
        threads: of a task.
        exchange: how gradients became weights.
        transport: ``"direct"`` or ``"shuffle"``.
        group: steps of a job.
        seconds: of a step, with its share of the job.
        work: seconds of a rank's own work: rows, forward and backward, of the slowest task.
        noise: relative spread of the groups' seconds.
        python_bytes: largest memory of an executor's Python processes.
        jvm_bytes: largest memory of an executor's JVM.
        group_seconds: how long the plan wants a job to take.
    """

    ranks: int
    rows: float
    threads: int
    exchange: Kind
    transport: str
    group: int
    seconds: float
    work: float
    noise: float
    python_bytes: int
    jvm_bytes: int
    group_seconds: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What was measured on a sample.

    Attributes:
        alone: one rank, with few rows and more; at least one fit.
        together: as many ranks as executors, for each exchange and transport; the first is that of the
            options. Empty if there was one executor of one core.
        halved: two ranks for each executor, each with half the cores; ``None`` if a core cannot be halved.
        job: seconds of a job beyond those of its steps.
        nbytes: of the weights.
        state_bytes: of the optimizer's state, of all shards.
        row_bytes: of a stored row.
        executors: how many there were.
        cores: of an executor.
        host_cores: cores of a machine.
        one_host: whether all executors share one machine, also if there are more of them.
        sample_rows: of the sample.
        iterations_per_job: as the option says.
    """

    alone: Sequence[Fit]
    together: Sequence[Fit]
    halved: Fit | None
    job: float
    nbytes: int
    state_bytes: int
    row_bytes: float
    executors: int
    cores: int
    host_cores: int
    one_host: bool
    sample_rows: int = 0
    iterations_per_job: int | None = None

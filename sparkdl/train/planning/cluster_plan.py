"""A cluster plan: forecasts for numbers of executors, and which of them pays."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl import html
from sparkdl.exceptions import ConfigError
from sparkdl.train.planning.costs import Kind, worth
from sparkdl.train.planning.model import FitTimes, Rehearsal, StepModel

_BETTER = 0.05  # another exchange, transport or division of cores is recommended if it saves at least so much
_SPARE = 1.2
_STEP = 256 << 20
_LEAST_HEAP = 1 << 30
_REMARKS = {"overhead": "  # leave it out on a standalone cluster"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The forecast for a number of executors.

    Attributes:
        executors: how many.
        batch: rows of a step.
        exchange: how gradients become weights.
        transport: how messages travel.
        epoch_seconds: of an epoch's steps; validation and the first build of the partition store come on top.
        error: relative error of the seconds, about.
        step_seconds: of a step.
        work: share of a step in which rows are gathered, and forward and backward run.
        sync: share of the exchange and the update.
        scheduling: share of Spark's scheduling.
        jvm_bytes: memory of an executor's JVM, as measured: it grows with the heap that it may have.
        python_bytes: memory of an executor's Python processes, with the files of its rows.
        cost: of an epoch; 0 without a price.
    """

    executors: int
    batch: int
    exchange: Kind
    transport: str
    epoch_seconds: float
    error: float
    step_seconds: float
    work: float
    sync: float
    scheduling: float
    jvm_bytes: int
    python_bytes: int
    cost: float

    @property
    def nbytes(self) -> int:
        """Memory of an executor."""
        return self.jvm_bytes + self.python_bytes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClusterPlan:
    """Forecasts of time, memory and cost, made from a rehearsal.

    Attributes:
        estimates: for each number of executors, with the options as they are.
        best: the largest number whose last executor still brought half of what ideal scaling would, with the
            exchange and transport that suit it.
        batches: at the best number, for the batch and for two and four times as many rows.
        cores_per_task: of an executor's cores; fewer than all if several tasks beside each other are faster.
        cores: of an executor.
        rows: of an epoch.
        price: of a core hour.
        rehearsal: what was measured.
    """

    estimates: Sequence[Estimate]
    best: Estimate
    batches: Sequence[Estimate]
    cores_per_task: int
    cores: int
    rows: int
    price: float
    rehearsal: Rehearsal

    def resources(self) -> dict[str, str | int]:
        """Return what the best number of executors asks of a cluster, as a job file's ``[resources]``."""
        return {
            "executors": self.best.executors,
            "cores": self.cores,
            "memory": _mebibytes(max(_LEAST_HEAP, self.best.jvm_bytes)),
            "overhead": _mebibytes(_SPARE * self.best.python_bytes),
            "task.cores": self.cores_per_task,
        }

    def job_table(self) -> str:
        """Return :meth:`resources` as the table of a job file."""
        lines = [
            f"{key} = {json.dumps(value)}{_REMARKS.get(key, '')}" for key, value in self.resources().items()
        ]
        return "\n".join(["[resources]", *lines, ""])

    def resource_profile(self, gpus: float = 0.0) -> Any:
        """Return :meth:`resources` as a ``pyspark.resource.ResourceProfile``, for ``rdd.withResources``.

        Spark starts executors for it where it may, which takes dynamic allocation.

        Args:
            gpus: of a task: a whole number, or a share of at most 0.5.

        Raises:
            ConfigError: if Spark has no such share of a GPU.
        """
        if gpus < 0 or (gpus > 0.5 and gpus != int(gpus)):
            raise ConfigError(f"gpus={gpus!r}: expected a whole number, or a share of at most 0.5")
        from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests

        asked = self.resources()
        executor = ExecutorResourceRequests().cores(self.cores)
        executor = executor.memory(str(asked["memory"])).memoryOverhead(str(asked["overhead"]))
        task = TaskResourceRequests().cpus(self.cores_per_task)
        if gpus:
            tasks = self.cores // self.cores_per_task
            executor, task = executor.resource("gpu", math.ceil(gpus * tasks)), task.resource("gpu", gpus)
        return ResourceProfileBuilder().require(executor).require(task).build

    def to_json(self) -> dict[str, Any]:
        """Return everything, JSON-compatible."""
        return asdict(self) | {"resources": self.resources()}

    def notes(self) -> list[str]:
        """Return what a reader should know of these forecasts."""
        best, found = self.best, self.rehearsal
        said = [
            f"best: {best.executors} executors of {self.cores} cores, {self.cores_per_task} per task, "
            f"exchange={best.exchange!r}, transport={best.transport!r}, batch_size={best.batch}"
        ]
        if found.one_host:
            said.append(
                f"all executors share one machine of {found.host_cores} cores: where they have more cores "
                "than that, they take turns"
            )
        elif found.executors == 1:
            said.append(
                "one executor was measured: each further one counts as a machine like it, network assumed"
            )
        if best.sync + best.scheduling > 0.5:
            more = self.batches[-1]
            said.append(
                f"a step exchanges and waits for {best.sync + best.scheduling:.0%} of its time: batch_size="
                f"{more.batch} would take {more.epoch_seconds:.3g} s for an epoch, and learn otherwise"
            )
        return said

    def __repr__(self) -> str:
        return f"ClusterPlan(best={self.best.executors} of {len(self.estimates)} estimates)"

    def __str__(self) -> str:
        lines = [self._head(), *(self._row(each) for each in self._shown())]
        rows = [[*line] for line in lines]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        table = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*table, "", *self.notes()])

    def _repr_html_(self) -> str:
        rows = [self._row(each) for each in self._shown()]
        return html.block(
            "Cluster plan",
            {},
            html.table(self._head(), rows),
            html.table(["notes"], [[n] for n in self.notes()]),
        )

    def _shown(self) -> list[Estimate]:
        """Return some dozen of the estimates, the best among them."""
        found = list(self.estimates)
        if len(found) > 12:
            powers = {
                found[0].executors,
                found[-1].executors,
                *(1 << n for n in range(12)),
                self.best.executors,
            }
            found = [each for each in found if each.executors in powers]
        return found

    def _head(self) -> tuple[str, ...]:
        head = ("executors", "epoch s", "+-", "step ms", "work", "sync", "jobs", "memory", "of it Python")
        return (*head, "cost", "") if self.price else (*head, "")

    def _row(self, each: Estimate) -> tuple[str, ...]:
        shares = [f"{share:.0%}" for share in (each.work, each.sync, each.scheduling)]
        memory = [html.amount(n) for n in (each.nbytes, each.python_bytes)]
        cells = [str(each.executors), f"{each.epoch_seconds:.4g}", f"{each.error:.0%}"]
        cells += [f"{1e3 * each.step_seconds:.4g}", *shares, *memory]
        mark = "best" if each.executors == self.best.executors else ""
        return (*cells, f"{each.cost:.4g}", mark) if self.price else (*cells, mark)


def make_plan(
    model: StepModel,
    kinds: dict[int, Kind],
    *,
    rows: int,
    batch: int,
    steps_per_batch: int,
    price: float,
) -> ClusterPlan:
    """Return the plan for some numbers of executors."""
    if not kinds:
        raise ConfigError("executors: no number of them suits the exchange; give larger ones")

    def estimate(executors: int, like: FitTimes, size: int) -> Estimate:
        whole = size * steps_per_batch
        step, steps = model.step(executors, whole, like), math.ceil(rows / whole)
        jvm, python = model.memory(executors, whole, rows, like)
        seconds = steps * step.seconds
        return Estimate(
            executors=executors,
            batch=size,
            exchange=like.exchange,
            transport=like.transport,
            epoch_seconds=seconds,
            error=step.error,
            step_seconds=step.seconds,
            work=step.work / step.seconds,
            sync=step.sync / step.seconds,
            scheduling=step.job / step.seconds,
            jvm_bytes=jvm,
            python_bytes=python,
            cost=price * executors * model.found.cores * seconds / 3600,
        )

    def fastest(usual: Estimate) -> Estimate:
        if usual.executors == 1:
            return usual
        others = [estimate(usual.executors, fit, batch) for fit in model.found.together]
        best = min(others, key=lambda each: each.step_seconds, default=usual)
        return best if best.step_seconds < (1 - _BETTER) * usual.step_seconds else usual

    found = [estimate(n, model.chosen(kind), batch) for n, kind in sorted(kinds.items())]
    best, *others = map(fastest, found)
    for each in others:
        if not worth(best.epoch_seconds, each.epoch_seconds, best.executors, each.executors):
            break
        best = each
    measured = [
        f for f in model.found.together if (f.exchange, f.transport) == (best.exchange, best.transport)
    ]
    like = measured[0] if measured else model.usual
    return ClusterPlan(
        estimates=found,
        best=best,
        batches=[estimate(best.executors, like, times * batch) for times in (1, 2, 4)],
        cores_per_task=_cores_per_task(model.found),
        cores=model.found.cores,
        rows=rows,
        price=price,
        rehearsal=model.found,
    )


def _cores_per_task(found: Rehearsal) -> int:
    """Return an executor's cores, or half of them if two tasks beside each other were faster."""
    whole = found.together[0] if found.executors > 1 and found.together else found.alone[-1]
    halved = found.halved
    if (
        halved is None
        and found.executors == 1
        and found.together
        and found.together[0].threads < whole.threads
    ):
        halved = found.together[0]
    if halved is None:
        return found.cores
    faster = halved.seconds / (halved.rows * halved.ranks) < (1 - _BETTER) * whole.seconds / (
        whole.rows * whole.ranks
    )
    return halved.threads if faster else found.cores


def _mebibytes(nbytes: float) -> str:
    return f"{math.ceil(nbytes / _STEP) * (_STEP >> 20)}m"

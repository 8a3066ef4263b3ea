"""What an iteration reports: loss, seconds and bytes, added up over the partitions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.allreduce.directives import Step
from sparkdl.allreduce.messages import GroupReport
from sparkdl.allreduce.transport.base import GroupResult
from sparkdl.data.store.manifest import other_values
from sparkdl.wire.frame import Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one iteration reports.

    Attributes:
        samples: rows of the global batch, without those that were left out.
        dropped: rows that slow tasks left out.
        taken: rows that were not left out, by partition that left out some.
        lost: partitions that began with a fresh state of their own because it was lost.
        seconds: its share of the time that its jobs took.
        direct: whether its tasks exchanged directly.
        loss: their mean loss; NaN if all of them have weight zero.
        extras: further scalars that a training step returned, as means.
        phases: seconds by phase.
        bytes: bytes by kind.
        tasks: one dict per task, and one for the driver: kind, place, start, seconds, phases.
        gradient: the combined gradient before clipping, if it was asked for.
    """

    samples: int
    loss: float
    phases: dict[str, float]
    bytes: dict[str, int]
    extras: dict[str, float] = field(default_factory=dict)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    gradient: Array | None = None
    dropped: int = 0
    taken: Mapping[int, int] = field(default_factory=dict)
    lost: int = 0
    seconds: float = 0.0
    direct: bool = False

    @property
    def gradient_seconds(self) -> list[float]:
        """Seconds from the start of each forward-backward task to its gradient."""
        return [sum(seconds.values()) - seconds["gradient_out"] for seconds in self._computing]

    @property
    def row_seconds(self) -> list[float]:
        """Seconds that each forward-backward task took to read its rows and to compute their gradient."""
        return [seconds["data"] + seconds["compute"] for seconds in self._computing]

    @property
    def _computing(self) -> list[dict[str, float]]:
        """Phases of each forward-backward task that had rows."""
        phases = [task["phases"] for task in self.tasks if task["kind"] == "forward-backward"]
        return [seconds for seconds in phases if "compute" in seconds]


def fixed_seconds(outcomes: Sequence[Outcome], elapsed: float) -> float:
    """Return what a group has cost besides its steps: to start it, and to persist what stays.

    That is all but the time from the first step's beginning to the last one's gradient, of the rank that took
    longest by its own clock.

    Args:
        outcomes: of the group's steps.
        elapsed: seconds that the group took.
    """
    begun: dict[int, float] = {}
    working = 0.0
    for outcome in outcomes:
        for task in outcome.tasks:
            if task["kind"] == "forward-backward":
                first = begun.setdefault(task["partition"], task["start"])
                working = max(working, task["start"] + task["seconds"] - first)
    return max(0.0, elapsed - working) if begun else 0.0


def outcomes_of(
    steps: Sequence[Step],
    report: GroupReport,
    result: GroupResult,
    *,
    weights_bytes: int,
    publish_seconds: float = 0.0,
) -> list[Outcome]:
    """Return the outcome of each step of a group.

    Args:
        steps: the group.
        report: the group's report.
        result: the transport's result, with times.
        weights_bytes: bytes of weights that each executor receives in a step.
        publish_seconds: how long the driver took to publish the weights before it.
    """
    count = len(steps)
    spent = {**result.seconds, "broadcast": publish_seconds}
    share = {name: seconds / count for name, seconds in spent.items()}
    returned = report.params.nbytes // count if report.params is not None else 0
    return [
        _outcome(
            told,
            started=result.started + index * sum(share.values()),
            seconds=share,
            moved={"weights": weights_bytes, "shards": returned},
            gradient=report.gradient if step.directives.gradient else None,
            direct=result.direct,
        )
        for index, (step, told) in enumerate(zip(steps, report.steps, strict=True))
    ]


def _outcome(
    told: Mapping[str, Any],
    *,
    started: float,
    seconds: Mapping[str, float],
    moved: Mapping[str, int],
    gradient: Array | None,
    direct: bool,
) -> Outcome:
    """Add the reports of all partitions up.

    Args:
        told: reports of the step's partitions and of its updates.
        started: when its first job began, in seconds since 1970.
        seconds: how long its jobs took: ``job1`` and ``job2``, or ``job``, and ``broadcast``.
        moved: bytes that were moved, by kind, besides those of the reports.
        gradient: the combined gradient, if it was asked for.
        direct: whether its tasks exchanged directly.
    """
    reports, updates = told["reports"], told["updates"]
    other = [report["source"] for report in reports if report["other"]]
    if other:
        warnings.warn(other_values(other), UserWarning, stacklevel=2)
    slowest_task = max(report["task"]["seconds"] for report in reports)
    slowest_update = max(update["task"]["phases"]["update"] for update in updates)
    phases = {
        name: max(report["task"]["phases"].get(name, 0.0) for report in reports)
        for name in ("weights_in", "data", "compute", "gradient_out")
    }
    phases["update"] = slowest_update
    phases["broadcast"] = seconds["broadcast"]
    if "job" in seconds:
        # With the replicated plan the phase that reports has made the update before, too.
        updated = any("update" in report["task"]["phases"] for report in reports)
        at_work = slowest_task if updated else slowest_task + slowest_update
        # A step's share of its job, which a slow step may exceed.
        phases["launch"], phases["shuffle"] = max(0.0, seconds["job"] - at_work), 0.0
    else:
        phases["launch"] = seconds["job1"] - slowest_task
        phases["shuffle"] = seconds["job2"] - slowest_update
    bytes_by_kind = {
        "weights": moved["weights"],
        "gradients": sum(int(update["received"]) for update in updates),
        "state": sum(int(update["state_bytes"]) for update in updates),
        "shards": moved["shards"],
    }
    driver = {"kind": "driver", "start": started, "seconds": sum(seconds.values()), "phases": dict(seconds)}
    tasks = [
        *({"kind": "forward-backward", "partition": r["source"], **r["task"]} for r in reports),
        *({"kind": "parameter-sync", "shard": n, **update["task"]} for n, update in enumerate(updates)),
        driver,
    ]
    return Outcome(
        samples=sum(report["rows"] for report in reports),
        dropped=sum(report["dropped"] for report in reports),
        taken={report["source"]: report["rows"] for report in reports if report["dropped"]},
        lost=sum(report["lost"] for report in reports),
        loss=_mean_loss(reports),
        phases=phases,
        bytes=bytes_by_kind,
        extras=_mean_extras(reports),
        tasks=tasks,
        gradient=gradient,
        seconds=sum(seconds.values()),
        direct=direct,
    )


def _mean_loss(reports: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean over the partitions by divisor; by weight, to the bit, where both are proportional."""
    whole, weight = (sum(report[name] for report in reports) for name in ("divisor", "weight"))
    equal = all(report["divisor"] * weight == report["weight"] * whole for report in reports)
    total, name = (weight, "weight") if equal else (whole, "divisor")
    return sum(report["loss"] * report[name] for report in reports) / total if whole else math.nan


def _mean_extras(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Average what training steps returned besides the loss, over the partitions that returned it."""
    names = dict.fromkeys(name for report in reports for name in report["extras"])
    means = {}
    for name in names:
        having = [r for r in reports if name in r["extras"]]
        weight = sum(r["weight"] for r in having)
        means[name] = sum(r["extras"][name] * r["weight"] for r in having) / weight
    return means

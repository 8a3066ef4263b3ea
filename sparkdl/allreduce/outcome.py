"""The report of an iteration: loss, seconds and bytes, added up over the partitions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.allreduce.messages import GroupReport
from sparkdl.allreduce.plan import Step
from sparkdl.allreduce.transport.base import GroupResult
from sparkdl.compute.stopwatch import ROW_UPDATE
from sparkdl.data.store.manifest import other_values
from sparkdl.wire.frame import Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one iteration reports."""

    samples: int  # rows of the global batch, without those that were left out
    loss: float  # their mean loss; NaN if all of them have weight zero
    phases: dict[str, float]  # its share of the seconds of its group by phase; they add up to ``seconds``
    bytes: dict[str, int]  # bytes by kind
    # further scalars that a training step returned, as means
    extras: dict[str, float] = field(default_factory=dict)
    # one dict per task, and one for the driver: kind, place, start, seconds, phases
    tasks: list[dict[str, Any]] = field(default_factory=list)
    gradient: Array | None = None  # the combined gradient before clipping, if it was asked for
    dropped: int = 0  # rows that slow tasks left out
    # rows that were not left out, by partition that left out some
    taken: Mapping[int, int] = field(default_factory=dict)
    lost: int = 0  # partitions that began with a fresh state of their own because it was lost
    seconds: float = 0.0  # its share of the time that its jobs took
    direct: bool = False  # whether its tasks exchanged directly

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

    ``weights_bytes`` are those that each executor receives in a step, ``publish_seconds`` the time that the
    driver took to publish the weights before it.
    """
    count = len(steps)
    spent = {"broadcast": publish_seconds, **result.seconds}
    share = {name: seconds / count for name, seconds in spent.items()}
    phases, seconds = _phases(report.steps, share), sum(share.values())
    returned = report.params.nbytes // count if report.params is not None else 0
    found = []
    for index, (step, facts) in enumerate(zip(steps, report.steps, strict=True)):
        reports, updates = facts["reports"], facts["updates"]
        other = [each["source"] for each in reports if each["other"]]
        if other:
            warnings.warn(other_values(other), UserWarning, stacklevel=2)
        started = result.started - publish_seconds + index * seconds
        outcome = Outcome(
            samples=sum(each["rows"] for each in reports),
            dropped=sum(each["dropped"] for each in reports),
            taken={each["source"]: each["rows"] for each in reports if each["dropped"]},
            lost=sum(each["lost"] for each in reports),
            loss=_mean_loss(reports),
            phases=dict(phases),
            bytes={
                "weights": weights_bytes,
                "gradients": sum(int(update["received"]) for update in updates),
                "state": sum(int(update["state_bytes"]) for update in updates),
                "shards": returned,
                "files": sum(int(each["task"]["file_bytes"]) for each in reports),
            },
            extras=_mean_extras(reports),
            tasks=[
                *({"kind": "forward-backward", "partition": r["source"], **r["task"]} for r in reports),
                *(
                    {"kind": "parameter-sync", "shard": n, **update["task"]}
                    for n, update in enumerate(updates)
                ),
                {"kind": "driver", "start": started, "seconds": seconds, "phases": dict(share)},
            ],
            gradient=report.gradient if step.directives.gradient else None,
            seconds=seconds,
            direct=result.direct,
        )
        found.append(outcome)
    return found


def within(phases: Mapping[str, float], seconds: float, rest: str) -> dict[str, float]:
    """Return phases that add up to some seconds, with ``rest`` as the name of what they leave.

    What overlaps, and so takes more, is counted once: all phases get shorter by the same factor.
    """
    seconds, total = max(0.0, seconds), sum(phases.values())
    found = dict(phases) if total <= seconds else {n: s * seconds / total for n, s in phases.items()}
    found[rest] = found.get(rest, 0.0) + max(0.0, seconds - total)
    return found


_FORWARD = ("weights_in", "data", "compute", "gradient_out")


def _phases(steps: Sequence[Mapping[str, Any]], share: Mapping[str, float]) -> dict[str, float]:
    """Return the phases of each step of a group, which adds up to its share of the group's jobs.

    Work is that of each step's slowest task, divided among the steps: a job's start belongs to all of them.
    """
    forward, update = dict.fromkeys(_FORWARD, 0.0), 0.0
    for facts in steps:
        tasks = [report["task"]["phases"] for report in facts["reports"]]
        slowest = max(tasks, key=lambda phases: sum(phases.get(name, 0.0) for name in _FORWARD))
        for name in _FORWARD:
            forward[name] += slowest.get(name, 0.0) / len(steps)
        # With the replicated plan it is in the next step's task, too; rows of tables have other owners.
        update += max(each["task"]["phases"]["update"] for each in facts["updates"]) / len(steps)
        update += max(phases.get(ROW_UPDATE, 0.0) for phases in tasks) / len(steps)
    updates = {"update": update}
    if "job" in share:
        found = {**within({**forward, **updates}, share["job"], "launch"), "shuffle": 0.0}
    else:
        found = {**within(forward, share["job1"], "launch"), **within(updates, share["job2"], "shuffle")}
    return {**found, "broadcast": share["broadcast"]}


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
        having = [
            (r["extras"][name], r["shares"].get(name, r["weight"])) for r in reports if name in r["extras"]
        ]
        if total := sum(counts for _, counts in having):
            means[name] = sum(value * counts for value, counts in having) / total
    return means

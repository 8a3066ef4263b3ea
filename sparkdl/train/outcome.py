"""What an iteration reports: loss, seconds and bytes, added up over the partitions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.data.manifest import other_values
from sparkdl.frame import Array, Frame


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one iteration reports.

    Attributes:
        samples: rows of the global batch, without those that were left out.
        dropped: rows that slow tasks left out.
        taken: rows that were not left out, by partition that left out some.
        lost: partitions that began with a fresh state of their own because it was lost.
        seconds: its share of the time that its jobs took.
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

    @property
    def gradient_seconds(self) -> list[float]:
        """Seconds from the start of each forward-backward task to its gradient."""
        phases = [task["phases"] for task in self.tasks if task["kind"] == "forward-backward"]
        return [sum(seconds.values()) - seconds["gradient_out"] for seconds in phases if "compute" in seconds]


def outcome_of(
    messages: Sequence[Frame],
    *,
    started: float,
    seconds: Mapping[str, float],
    weights: int,
    slices: int,
    gradient: Array | None,
) -> Outcome:
    """Add the reports of all partitions up.

    Args:
        messages: what the slices have sent to the driver; one ``reports`` and a ``slice`` each.
        started: when the first job began, in seconds since 1970.
        seconds: how long the jobs took: ``job1`` and ``job2``, or ``job``, and ``broadcast``.
        weights: bytes of weights that each executor receives.
        slices: bytes of slices that the driver has received.
        gradient: the combined gradient, if it was asked for.
    """
    (reports,) = [m.meta["reports"] for m in messages if m.meta["kind"] == "reports"]
    other = [report["source"] for report in reports if report["other"]]
    if other:
        warnings.warn(other_values(other), UserWarning, stacklevel=2)
    weight = sum(report["weight"] for report in reports)
    loss = sum(report["loss"] * report["weight"] for report in reports) / weight if weight else math.nan
    slowest_task = max(report["task"]["seconds"] for report in reports)
    updated = [m for m in messages if m.meta["kind"] == "slice"]
    slowest_update = max(m.meta["task"]["phases"]["update"] for m in updated)
    phases = {
        name: max(report["task"]["phases"].get(name, 0.0) for report in reports)
        for name in ("weights_in", "data", "compute", "gradient_out")
    }
    phases["update"] = slowest_update
    phases["broadcast"] = seconds["broadcast"]
    if "job" in seconds:  # the task that reports has made the update before, too
        phases["launch"], phases["shuffle"] = seconds["job"] - slowest_task, 0.0
    else:
        phases["launch"] = seconds["job1"] - slowest_task
        phases["shuffle"] = seconds["job2"] - slowest_update
    moved = {
        "weights": weights,
        "gradients": sum(int(m.meta["received"]) for m in updated),
        "state": sum(int(m.meta["state_bytes"]) for m in updated),
        "slices": slices,
    }
    driver = {"kind": "driver", "start": started, "seconds": sum(seconds.values()), "phases": dict(seconds)}
    tasks = [
        *({"kind": "forward-backward", "partition": r["source"], **r["task"]} for r in reports),
        *({"kind": "parameter-sync", "slice": n, **m.meta["task"]} for n, m in enumerate(updated)),
        driver,
    ]
    return Outcome(
        samples=sum(report["rows"] for report in reports),
        dropped=sum(report["dropped"] for report in reports),
        taken={report["source"]: report["rows"] for report in reports if report["dropped"]},
        lost=sum(report["lost"] for report in reports),
        loss=loss,
        phases=phases,
        bytes=moved,
        extras=_mean_extras(reports),
        tasks=tasks,
        gradient=gradient,
        seconds=sum(seconds.values()),
    )


def _mean_extras(reports: list[dict[str, Any]]) -> dict[str, float]:
    """Average what training steps returned besides the loss, over the partitions that returned it."""
    names = dict.fromkeys(name for report in reports for name in report["extras"])
    means = {}
    for name in names:
        having = [r for r in reports if name in r["extras"]]
        weight = sum(r["weight"] for r in having)
        means[name] = sum(r["extras"][name] * r["weight"] for r in having) / weight
    return means

"""Buffers, such as BatchNorm's statistics, after a step: averaged over the partitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparkdl.allreduce.messages import Report, Reports
from sparkdl.allreduce.update.gradients import PartitionGradient
from sparkdl.wire.frame import Array
from sparkdl.wire.held import Shared


def combine_reports(reports: Sequence[Report], buffers: Array, counters: Array) -> Reports:
    """Put the reports of all partitions together, and average the buffers that they have changed.

    Args:
        reports: in any order.
        buffers: floating-point buffers before the step.
        counters: integer and boolean buffers before the step; the largest are taken.
    """
    reports = sorted(reports, key=lambda report: report.source)
    active = [report for report in reports if report.weight > 0]
    arrays: dict[str, Array] = {}
    if any("buffers" in report.buffers for report in active):
        parts = [
            PartitionGradient(r.source, r.weight, Shared(r.buffers.get("buffers", buffers))) for r in active
        ]
        arrays["buffers"] = weighted_drift(buffers, parts)
    if any("counters" in report.buffers for report in active):
        arrays["counters"] = np.maximum.reduce([r.buffers.get("counters", counters) for r in active])
    return Reports([report.told() for report in reports], arrays)


def weighted_drift(start: Array, parts: Sequence[PartitionGradient]) -> Array:
    """Average buffers as ``x0 + sum(w·(x - x0))``: equal parts stay equal to the bit.

    Args:
        start: values before the iteration; the result if there are no parts.
        parts: values after it, by source.
    """
    if not parts:
        return start
    ordered = sorted(parts, key=lambda part: part.source)
    total = sum(part.weight for part in ordered)
    first = np.array(ordered[0].array)
    result = first.copy()
    for part in ordered[1:]:
        # Where equal, also where both are infinite, there is no difference to add.
        drift = np.zeros_like(first)
        np.subtract(part.array, first, out=drift, where=part.array != first)
        result += drift * result.dtype.type(part.weight / total)
    return result


def average_buffers(before: Array | None, buffers: Array, weight: float) -> Array | None:
    """Let new buffers enter their average; they are small and at hand on the driver."""
    if not weight:
        return before
    if before is None or weight == 1.0:
        return buffers
    average: Array = before + before.dtype.type(weight) * (buffers - before)
    return average

"""Buffers, such as BatchNorm's statistics, after a step: averaged over the partitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparkdl.allreduce.messages import Report, Reports
from sparkdl.allreduce.update.mean import Part, weighted_drift
from sparkdl.frame import Array
from sparkdl.held import Shared


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
        parts = [Part(r.source, r.weight, Shared(r.buffers.get("buffers", buffers))) for r in active]
        arrays["buffers"] = weighted_drift(buffers, parts)
    if any("counters" in report.buffers for report in active):
        arrays["counters"] = np.maximum.reduce([r.buffers.get("counters", counters) for r in active])
    return Reports([report.told() for report in reports], arrays)


def average_buffers(before: Array | None, buffers: Array, weight: float) -> Array | None:
    """Let new buffers enter their average; they are small and at hand on the driver."""
    if not weight:
        return before
    if before is None or weight == 1.0:
        return buffers
    average: Array = before + before.dtype.type(weight) * (buffers - before)
    return average

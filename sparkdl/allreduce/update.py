"""The parameter-sync task: sum shard n of all gradients and update slice n of the weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparkdl import frame
from sparkdl.allreduce.combine import Part, weighted_drift, weighted_mean
from sparkdl.allreduce.weights import WeightsRef
from sparkdl.frame import Array, Frame, Parts
from sparkdl.layout import ParamLayout
from sparkdl.optim.slice import SliceOptimizer
from sparkdl.optim.spec import OptimizerSpec

RESULT = 0
"""Key of the frames that go to the driver: the new slice and the reports."""
STATE = 1
"""Key of the frame that stays for the next iteration: the optimizer's state of the slice."""

Keyed = tuple[int, Parts]


@dataclass(frozen=True, slots=True)
class Update:
    """What the update of slice n needs besides the frames.

    Attributes:
        layout: layout of the flat vectors.
        start: first element of the slice.
        stop: one past its last element.
        optimizer: how to build the optimizer.
        weights: current weights.
    """

    layout: ParamLayout
    start: int
    stop: int
    optimizer: OptimizerSpec
    weights: WeightsRef


def shard_frame(source: int, weight: float, gradient: Array, used: Array) -> Parts:
    """Pack one source's shard for one slice.

    Args:
        source: source partition.
        weight: number of samples, or sum of their weights.
        gradient: its mean gradient over the slice, numpy array.
        used: per parameter of the layout, whether it got a gradient.
    """
    return frame.pack(
        {"kind": "shard", "source": source, "weight": weight}, {"gradient": gradient, "used": used}
    )


def problem_frame(source: int, problem: dict[str, Any]) -> Parts:
    """Pack the news, for every slice, that a source has no gradient and why."""
    return frame.pack({"kind": "problem", "source": source, "problem": problem})


def update_slice(update: Update, frames: Iterator[bytes]) -> Iterator[Keyed]:
    """Sum the shards of one slice, update it, and yield what goes to the driver and what stays.

    Args:
        update: the slice and the optimizer.
        frames: the slice's state, if any, its shards, and for slice 0 also the sources' reports.

    Yields:
        (RESULT, frame) for the driver and (STATE, frame) for the next iteration.
    """
    state: Frame | None = None
    shards: list[Frame] = []
    reports: list[Frame] = []
    problems: list[Frame] = []
    received = 0
    groups = {"shard": shards, "report": reports, "problem": problems}
    for data in frames:
        received += len(data)
        message = frame.unpack(data)
        if message.meta["kind"] == "state":
            state = message
        else:
            groups[message.meta["kind"]].append(message)
    begin = time.perf_counter()
    if problems:
        # Nothing is updated: the driver keeps this iteration's weights and state.
        yield RESULT, frame.pack({"kind": "problems", "problems": _in_order(problems)})
        return
    current = update.weights.load()
    weights = np.array(current.arrays["params"][update.start : update.stop])
    optimizer = SliceOptimizer(update.optimizer, update.layout, update.start, update.stop, state)
    if shards:  # none if every sample of the iteration has weight zero: nothing to learn
        parts = [Part(m.meta["source"], m.meta["weight"], m.arrays["gradient"]) for m in shards]
        gradient = weighted_mean(parts)
        problem = _find_non_finite(update, gradient, parts)
        if problem is not None:
            yield RESULT, frame.pack({"kind": "problems", "problems": [problem]})
            return
        used = np.logical_or.reduce([m.arrays["used"] for m in shards])
        optimizer.step(torch.from_numpy(weights), torch.from_numpy(gradient), used)
    meta = {"kind": "slice", "start": update.start, "received": received}
    kept = optimizer.state_frame()
    meta["state_bytes"] = frame.size(kept)
    meta["update_seconds"] = time.perf_counter() - begin
    yield RESULT, frame.pack(meta, {"params": weights})
    yield STATE, kept
    if reports:
        yield RESULT, _combine_reports(reports, current)


def _find_non_finite(update: Update, gradient: Array, parts: list[Part]) -> dict[str, Any] | None:
    """Name the parameter and the sources whose gradient is NaN or infinite."""
    if np.isfinite(np.sum(gradient, dtype=np.float64)):  # one pass; NaN and infinity survive a sum
        return None
    bad = np.flatnonzero(~np.isfinite(gradient))
    if not len(bad):
        return None
    index = int(bad[0])
    sources = sorted(p.source for p in parts if not np.isfinite(p.values[index]))
    return {
        "kind": "gradient",
        "parameter": update.layout.param_at(update.start + index).name,
        "sources": sources,
    }


def _in_order(messages: list[Frame]) -> list[Any]:
    return [m.meta["problem"] for m in sorted(messages, key=lambda m: int(m.meta["source"]))]


def _combine_reports(reports: list[Frame], current: Frame) -> Parts:
    """Average buffers over the sources and pass their reports on to the driver."""
    reports = sorted(reports, key=lambda report: int(report.meta["source"]))
    active = [r for r in reports if r.meta["weight"] > 0]
    arrays = {}
    if any("buffers" in r.arrays for r in active):
        before = current.arrays["buffers"]
        parts = [Part(r.meta["source"], r.meta["weight"], r.arrays.get("buffers", before)) for r in active]
        arrays["buffers"] = weighted_drift(before, parts)
    if any("counters" in r.arrays for r in active):
        before = current.arrays["counters"]
        arrays["counters"] = np.maximum.reduce([r.arrays.get("counters", before) for r in active])
    return frame.pack({"kind": "reports", "reports": [r.meta for r in reports]}, arrays)

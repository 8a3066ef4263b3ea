"""The parameter-sync task: sum shard n of all gradients and update slice n of the weights.

Most updates need nothing but their own slice. A norm over all weights (clipping, LAMB, Adasum ...)
needs a *reduction*: the task sends its partial sums to the driver and ends; the driver adds up the
sums of all slices and runs the next phase, whose task starts again from the summed gradient and
goes on with the totals. The whole update is one generator, which yields partial sums and is sent
totals; each phase replays it from its beginning, so that no state lives outside of Spark.
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl import buffers, frame
from sparkdl.allreduce import adasum
from sparkdl.allreduce.codec import Codec, decode, encode
from sparkdl.allreduce.combine import (
    NonFiniteMeanError,
    Part,
    first_non_finite,
    non_finite_sources,
    weighted_drift,
    weighted_mean,
)
from sparkdl.allreduce.weights import WeightsRef
from sparkdl.frame import Array, Frame, Packed, Parts
from sparkdl.layout import ParamLayout
from sparkdl.optim.rule import UpdateRule
from sparkdl.optim.slice import SliceOptimizer
from sparkdl.rows import Rows

RESULT = 0
"""Key of the frames that go to the driver: the new slice and the reports."""
STATE = 1
"""Key of the frames that stay: the optimizer's state of the slice, or the sums for the next phase."""

Keyed = tuple[int, Parts]
Combine = Literal["mean", "adasum"]
"""How the gradients of the partitions become one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What an update is told by the driver, anew in each iteration.

    Attributes:
        hyper: per parameter group, hyper-parameters that replace the optimizer's own.
        average: weight with which the new weights enter their average; 0 leaves it as it is.
        gradient: whether the driver wants the combined gradient.
        totals: results of the reductions so far; their number is the phase.
    """

    hyper: tuple[Mapping[str, Any], ...] = ()
    average: float = 0.0
    gradient: bool = False
    totals: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """What the update of slice n needs besides the frames.

    Attributes:
        layout: layout of the flat vectors.
        start: first element of the slice.
        stop: one past its last element.
        rule: regularisers, clipping and optimizer.
        weights: current weights.
        combine: how gradients are combined.
        averaging: whether an average of the weights is kept.
        turn: what the driver says in this iteration.
        master: the slice itself, if ``weights`` do not have it, or in less precision; overwritten if
            writable.
    """

    layout: ParamLayout
    start: int
    stop: int
    rule: UpdateRule
    weights: WeightsRef
    combine: Combine = "mean"
    averaging: bool = False
    turn: Turn = Turn()
    master: Array | None = None

    @property
    def whole(self) -> bool:
        """Whether the slice is all there is, so that its partial sums are the totals."""
        return self.stop - self.start == self.layout.numel

    @property
    def last(self) -> bool:
        """Whether all totals are known, so that this phase ends the update."""
        return self.whole or len(self.turn.totals) == reductions(self.rule, self.combine)


def reductions(rule: UpdateRule, combine: Combine) -> int:
    """Return how many reductions an update of several slices needs."""
    return rule.reductions + (combine == "adasum")


def shard_frame(
    source: int,
    weight: float,
    gradient: Array,
    used: NDArray[np.bool_],
    rows: Rows | None = None,
    start: int = 0,
    codec: Codec = "fp32",
    left_out: Array | None = None,
) -> Parts:
    """Pack one source's shard for one slice.

    Args:
        source: source partition.
        weight: number of samples, or sum of their weights.
        gradient: its mean gradient over the slice, numpy array.
        used: per parameter of the layout, whether it got a gradient.
        rows: where the gradient is row-sparse, the rows that have one; others are not sent.
        start: first element of the slice.
        codec: how the gradient is written.
        left_out: filled with what the codec leaves out, if given.
    """
    sent = gradient if rows is None else rows.take(gradient, start)
    encoded = encode(codec, sent)
    arrays = {**encoded.arrays, "used": used}
    if rows is not None:
        arrays |= rows.arrays
    if left_out is not None:
        rest = sent - decode(encoded.meta, encoded.arrays, gradient.dtype)
        if rows is None:
            left_out[:] = rest
        else:
            left_out.fill(0)
            rows.put(rest, left_out, start)
    return frame.pack({"kind": "shard", "source": source, "weight": weight, **encoded.meta}, arrays)


def renumber(shard: Frame, onto: Rows) -> Parts:
    """Return a shard of all weights as one of a packed vector, which covers all of its rows."""
    rows = Rows.read(onto.layout, shard.arrays).tables
    places = {index: np.searchsorted(onto.tables[index], rows[index]) for index in rows.keys() & onto.tables}
    return frame.pack(shard.meta, {**shard.arrays, **Rows(onto.packed, places).arrays})


def problem_frame(source: int, problem: dict[str, Any]) -> Parts:
    """Pack the news, for every slice, that a source has no gradient and why."""
    return frame.pack({"kind": "problem", "source": source, "problem": problem})


@dataclass(slots=True)
class _Arrived:
    """The frames of one slice, by kind."""

    state: Frame | None
    average: Frame | None
    shards: list[Frame]
    reports: list[Frame]
    problems: list[Frame]
    bytes: int
    state_bytes: int


def _receive(frames: Iterable[Packed | Frame]) -> _Arrived:
    received, state_bytes = 0, 0
    groups: dict[str, list[Frame]] = {kind: [] for kind in ("state", "average", "shard", "report", "problem")}
    for data in frames:
        message = data if isinstance(data, Frame) else frame.unpack(data, writable=not isinstance(data, list))
        length = message.nbytes if isinstance(data, Frame) else frame.size(data)
        received += length
        if message.meta["kind"] in ("state", "average"):
            state_bytes += length
        groups[message.meta["kind"]].append(message)
    state, average = (groups[kind][0] if groups[kind] else None for kind in ("state", "average"))
    shards = sorted(groups["shard"], key=lambda m: int(m.meta["source"]))
    return _Arrived(
        state, average, shards, groups["report"], groups["problem"], received - state_bytes, state_bytes
    )


def update_slice(update: Update, frames: Iterable[Packed | Frame]) -> Iterator[Keyed]:
    """Sum the shards of one slice, update it, and yield what goes to the driver and what stays.

    Args:
        update: the slice and the rule.
        frames: the slice's state, if any, its shards, and for slice 0 also the sources' reports; in
            later phases the sums that an earlier one left. As they arrived, as they were packed, or read.
            What has arrived, or was read to be writable, is overwritten.

    Yields:
        (RESULT, frame) for the driver and (STATE, frame) for the next phase or iteration.
    """
    clock = time.perf_counter()
    arrived = _receive(frames)
    begin = time.perf_counter()
    if arrived.problems:
        # Nothing is updated: the driver keeps this iteration's weights and state.
        yield RESULT, frame.pack({"kind": "problems", "problems": _in_order(arrived.problems)})
        return
    current = update.weights.load()
    weights = current.arrays["params"][update.start : update.stop] if update.master is None else update.master
    if not weights.flags.writeable:
        weights = buffers.copy(weights)
    optimizer = SliceOptimizer(update.rule.optimizer, update.layout, update.start, update.stop, arrived.state)
    gradient: Array | None = None
    if arrived.shards:  # none if every sample of the iteration has weight zero: nothing to learn
        shards = _Shards.of(arrived.shards, update)
        problem = None if update.turn.totals else shards.prepare(update)
        if problem is not None:
            yield RESULT, frame.pack({"kind": "problems", "problems": [problem]})
            return
        partials, gradient = _replay(update, _steps(update, shards, optimizer, weights))
        if not update.last:
            meta = {"kind": "partials", "start": update.start, "sources": _sources(arrived.shards)}
            yield RESULT, frame.pack(meta, {"partials": partials})
            if not update.turn.totals:
                yield from ((STATE, parts) for parts in shards.frames(update))
    elif not update.last:
        meta = {"kind": "partials", "start": update.start, "sources": _sources([])}
        yield RESULT, frame.pack(meta, {"partials": np.zeros(0)})
    if update.last:
        yield from _finish(update, arrived, weights, gradient, optimizer, clock, begin)
    if arrived.reports:
        yield RESULT, _combine_reports(arrived.reports, current)


def _finish(
    update: Update,
    arrived: _Arrived,
    weights: Array,
    gradient: Array | None,
    optimizer: SliceOptimizer,
    clock: float,
    begin: float,
) -> Iterator[Keyed]:
    """Yield the updated slice and what stays with it."""
    kept = [optimizer.state_frame()]
    if update.averaging and (arrived.average or update.turn.average):
        kept.append(frame.pack({"kind": "average"}, {"params": _average(update, arrived.average, weights)}))
    now = time.perf_counter()
    meta = {
        "kind": "slice",
        "start": update.start,
        "sources": _sources(arrived.shards),
        "received": arrived.bytes,
        "state_bytes": sum(frame.size(parts) for parts in kept),
        "task": {
            **place(),
            "start": time.time() - (now - clock),
            "seconds": now - clock,
            "phases": {"receive": begin - clock, "update": now - begin},
        },
    }
    arrays = {"params": weights}
    if update.turn.gradient:
        arrays["gradient"] = np.zeros_like(weights) if gradient is None else gradient
    yield RESULT, frame.pack(meta, arrays)
    yield from ((STATE, parts) for parts in kept)


def _gradient(shard: Frame, rows: Rows, update: Update) -> Array:
    sent = decode(shard.meta, shard.arrays, np.dtype(update.layout.dtype))
    if not rows.tables:
        return sent
    whole = np.zeros(update.stop - update.start, sent.dtype)
    rows.put(sent, whole, update.start)
    return whole


def _sources(shards: Sequence[Frame]) -> int:
    """Return a checksum of the shards' sources and weights: equal for all slices, unless a source ran twice.

    The pairs themselves would be partitions times slices numbers for the driver, in each iteration.
    """
    pairs = [[m.meta["source"], m.meta["weight"]] for m in shards]
    return zlib.crc32(np.array(pairs, np.float64).tobytes())


def place() -> dict[str, Any]:
    """Return where this task runs."""
    return {"host": _HOST, "pid": os.getpid()}


_HOST = socket.gethostname()


@dataclass(slots=True)
class _Shards:
    """The gradients of one slice: of all sources, or what remains of them after their mean.

    Attributes:
        parts: gradients in source order.
        used: per parameter, whether any source has a gradient.
        touched: rows with a gradient, by parameter, of row-sparse gradients.
    """

    parts: list[Part]
    used: NDArray[np.bool_]
    touched: dict[int, NDArray[np.bool_]]

    @classmethod
    def of(cls, shards: Sequence[Frame], update: Update) -> _Shards:
        layout = update.layout
        sparse = [Rows.read(layout, m.arrays) for m in shards]
        parts = [
            Part(m.meta["source"], m.meta["weight"], _gradient(m, rows, update))
            for m, rows in zip(shards, sparse, strict=True)
        ]
        used = np.logical_or.reduce([m.arrays["used"] for m in shards])
        # A source that has used a table without naming rows may have touched them all.
        tables = {index for rows in sparse for index in rows.tables}
        for message, rows in zip(shards, sparse, strict=True):
            tables -= {i for i in tables if message.arrays["used"][i] and i not in rows.tables}
        touched: dict[int, NDArray[np.bool_]] = {}
        for index in tables:
            touched[index] = np.zeros(layout.params[index].shape[0], np.bool_)
            for rows in sparse:
                touched[index][rows.tables.get(index, [])] = True
        return cls(parts, used, touched)

    def prepare(self, update: Update) -> dict[str, Any] | None:
        """Look for NaN and take the mean; return the problem, if there is one."""
        if update.combine == "mean":
            try:
                mean = weighted_mean(self.parts)
            except NonFiniteMeanError as error:
                return _non_finite(update, error.index, error.sources)
            self.parts = [Part(self.parts[0].source, sum(p.weight for p in self.parts), mean)]
            return None
        for part in self.parts:
            bad = first_non_finite(part.values)
            if bad is not None:
                return _non_finite(update, bad, non_finite_sources(self.parts, bad))
        return None

    def frames(self, update: Update) -> Iterator[Parts]:
        """Pack them for the next phase."""
        rows = Rows(update.layout, {index: np.flatnonzero(mask) for index, mask in self.touched.items()})
        for part in self.parts:
            yield shard_frame(part.source, part.weight, part.values, self.used, rows, update.start)


def _steps(
    update: Update, shards: _Shards, optimizer: SliceOptimizer, weights: Array
) -> Generator[Array, Array, Array]:
    """Update the slice in place; yield partial sums, receive totals, return the combined gradient."""
    if len(shards.parts) > 1:
        totals = yield adasum.gram_partials(shards.parts, update.layout, update.start, update.stop)
        gradient = adasum.combine(
            shards.parts, adasum.coefficients(totals), update.layout, update.start, update.stop
        )
    else:
        if update.combine == "adasum" and not update.whole:
            yield np.zeros(0)  # a single source has nothing to combine, but phases are counted
        gradient = shards.parts[0].values
        if not (update.last and gradient.flags.writeable):  # of others, or to be left for the next phase
            gradient = buffers.copy(gradient)
    combined = np.array(gradient) if update.turn.gradient else gradient
    yield from update.rule.update(
        optimizer,
        torch.from_numpy(weights),
        torch.from_numpy(gradient),
        shards.used,
        hyper=update.turn.hyper,
        touched=shards.touched,
    )
    return combined


def _replay(update: Update, steps: Generator[Array, Array, Array]) -> tuple[Array, Array | None]:
    """Run an update as far as its totals are known.

    Returns:
        The partial sums of the first reduction without total, and the combined gradient if the
        update is complete.
    """
    totals = iter(update.turn.totals)
    partials = np.zeros(0)
    try:
        partials = next(steps)
        while True:
            total = partials if update.whole else next(totals, None)
            if total is None:
                return partials, None
            partials = steps.send(total)
    except StopIteration as done:
        return partials, done.value


def _average(update: Update, before: Frame | None, weights: Array) -> Array:
    """Let the new weights enter their average."""
    if before is None or update.turn.average == 1.0:
        return np.array(weights)  # the weights' own memory may be overwritten by the next update
    average = before.arrays["params"]
    if not average.flags.writeable:
        average = np.array(average)
    if update.turn.average:
        average += average.dtype.type(update.turn.average) * (weights - average)
    return average


def _non_finite(update: Update, index: int, sources: list[int]) -> dict[str, Any]:
    """Name the parameter and the sources whose gradient is NaN or infinite."""
    parameter = update.layout.param_at(update.start + index).name
    return {"kind": "gradient", "parameter": parameter, "sources": sources}


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

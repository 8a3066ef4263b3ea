"""The interface of plans, and their common part: a rank's gradient and report as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparkdl.allreduce.kept import Kept
from sparkdl.allreduce.messages import GroupReport, Message, Report, Shard
from sparkdl.allreduce.steps import Participant, Phase, Step
from sparkdl.compute.forward_backward import Contribution, ForwardBackward
from sparkdl.compute.spec import FitSpec
from sparkdl.compute.start import Start
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Packed
from sparkdl.wire.layout import ParamLayout
from sparkdl.wire.touched_rows import Indices, TouchedRows, nonzero_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTraits:
    """What engine, transports and loop need to know of a plan.

    Attributes:
        shards: in how many shards weights and optimizer state are persisted.
        message_bytes: bytes of the larger message that a rank sends another one, about.
        shard_bytes: bytes of what stays with a shard, about.
        weights_bytes: bytes of weights that each executor receives in a step.
        group_seconds: how long a group of iterations should take, if it may be of any size.
        longest_group: how many iterations may be one group, at most.
        keeps: whether anything stays with the shards between groups.
        keeps_rows: whether rows of embedding variables are among what stays with the shards.
        leaves_model: whether the executors have the model after a group, too, and the next one may start
            from there.
    """

    shards: int
    message_bytes: int
    shard_bytes: int
    weights_bytes: int
    group_seconds: float
    longest_group: int
    keeps: bool
    keeps_rows: bool = False
    leaves_model: bool

    @property
    def kept_bytes(self) -> int | None:
        """Bytes of what stays with a shard, about; ``None`` if nothing does."""
        return self.shard_bytes if self.keeps else None


class Plan(Protocol):
    """A way to exchange gradients for weights."""

    @property
    def traits(self) -> PlanTraits:
        """What others need to know of it."""
        ...

    def seed(self, fetch: Callable[[], Kept]) -> list[Packed]:
        """Return the seed: the state of the shards, for executors that have no copy."""
        ...

    def phases(self, start: Start, steps: Sequence[Step]) -> list[Phase]:
        """Return the phases of a group."""
        ...

    def conclude(self, messages: Sequence[Message], buffers: Array, counters: Array) -> GroupReport:
        """Return the report of a completed group, given the buffers before it."""
        ...


LONGEST_GROUP = 2000
"""Steps of one job: so many take more than a second, and the driver holds a report of each."""
_FIXED_SHARE = 0.03
_LONGEST_SECONDS = 60.0


def steps_of_group(wanted: float, each: float, fixed: float) -> int:
    """Return how many steps a group should have, given what starting it and persisting its end cost.

    At most 3 % of its time goes there, as with commits, unless that takes more than a minute: half of a group
    is lost, on average, with an executor.

    Args:
        wanted: seconds that a group should take at least.
        each: seconds of a step.
        fixed: seconds of what does not depend on its steps.
    """
    return max(1, int(max(wanted, min(fixed / _FIXED_SHARE, _LONGEST_SECONDS)) / each))


_SCANNED_BYTES = 64 << 10
"""Tables of this size and more are looked through for rows of zeros."""

_WORTHWHILE = 1.5
"""Rows go alone if the table has so many times more."""


def gradient_shards(
    me: Participant,
    forward: ForwardBackward,
    contribution: Contribution,
    bounds: Sequence[tuple[int, int]],
) -> Iterator[Shard]:
    """Yield the gradient in shards as their codec writes them; none without a gradient.

    The partition adds the codec's residual to its next gradient. The residual is written to the partition's
    own state, after the last shard.
    """
    spec, state = me.worker.spec, forward.state_of(me.worker, me.rank)
    gradient = contribution.gradient
    if gradient is None:
        if state is not None:
            state.pass_on(contribution.before)
        return
    values, touched, left_out = me.worker.replica.on_host(gradient.values), gradient.touched, None
    if spec.error_feedback:
        residual = (contribution.before or {}).get("residual")
        if residual is not None:
            values = values + residual.value.arrays["left_out"]
            touched = _touched_with(values, touched, spec.layout)
        left_out = np.empty_like(values)
    rows = _rows(values, touched, spec)
    for start, stop in bounds:
        rest = left_out[start:stop] if left_out is not None else None
        yield Shard.of(
            me.rank,
            gradient.weight,
            values[start:stop],
            gradient.used,
            rows,
            start,
            spec.gradient_codec,
            rest,
        )
    if state is not None:
        kept = list(contribution.kept)
        if left_out is not None:
            kept.append(frame.pack({"kind": "residual"}, {"left_out": left_out}))
        state.write(kept)


def report_of(me: Participant, contribution: Contribution) -> Report:
    """Return a rank's report of a step; call it after the gradient was sent."""
    loss = contribution.loss
    if loss.rows:
        me.clock.lap("gradient_out")
    return Report(
        source=me.rank,
        rows=loss.rows,
        other=contribution.other,
        dropped=loss.dropped,
        lost=int(contribution.lost),
        weight=loss.weight,
        divisor=loss.divisor,
        loss=loss.loss,
        extras=loss.extras,
        task=me.clock.facts(),
        buffers=contribution.buffers or {},
    )


def _rows(values: Array, touched: Mapping[int, NDArray[np.bool_]], spec: FitSpec) -> TouchedRows | None:
    """Return the rows of tables to send; ``None`` to send everything."""
    tables: dict[int, Indices] = {index: np.flatnonzero(mask) for index, mask in touched.items()}
    for index in spec.scanned:
        table = spec.layout.params[index]
        if table.numel * values.itemsize < _SCANNED_BYTES:
            continue
        rows = nonzero_rows(values[table.offset : table.end].reshape(table.shape[0], -1))
        if len(rows) * _WORTHWHILE <= table.shape[0]:
            tables[index] = rows
    return TouchedRows(spec.layout, tables) if tables else None


def _touched_with(
    values: Array, touched: Mapping[int, NDArray[np.bool_]], layout: ParamLayout
) -> Mapping[int, NDArray[np.bool_]]:
    """Return the rows that have a gradient after the residual was added."""
    found = {}
    for index, rows in touched.items():
        spec = layout.params[index]
        found[index] = rows | values[spec.offset : spec.end].reshape(len(rows), -1).any(1)
    return found

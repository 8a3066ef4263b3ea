"""A rank's contribution to a step as messages: shards of its gradient, and a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sparkdl.allreduce.messages import Report, Shard
from sparkdl.allreduce.plans.base import Participant
from sparkdl.compute.forward_backward import Contribution, ForwardBackward
from sparkdl.compute.spec import FitSpec
from sparkdl.nn.flat import Weights
from sparkdl.wire import frame
from sparkdl.wire.frame import Array
from sparkdl.wire.layout import ParamLayout
from sparkdl.wire.touched_rows import Indices, TouchedRows, nonzero_rows

_SCANNED_BYTES = 64 << 10
"""Tables of this size and more are looked through for rows of zeros."""

_WORTHWHILE = 1.5
"""Rows go alone if the table has so many times more."""


def compute(me: Participant, forward: ForwardBackward, weights: Mapping[str, Weights]) -> Contribution:
    """Run a rank's forward and backward pass; see :class:`ForwardBackward`."""
    assert me.token is not None
    return forward(me.worker, me.token, lambda: weights, me.clock)


def shards(
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
            state.pass_on()
        return
    values, touched, left_out = me.worker.replica.on_host(gradient.values), gradient.touched, None
    if spec.error_feedback:
        residual = (contribution.before or {}).get("residual")
        if residual is not None:
            values = values + residual.arrays["left_out"]
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


def report(me: Participant, contribution: Contribution) -> Report:
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

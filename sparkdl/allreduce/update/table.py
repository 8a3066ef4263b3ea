"""The update of rows of an embedding variable by their owner: rows without a gradient stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from sparkdl.allreduce.messages import RowGradients, Shard
from sparkdl.allreduce.plan import Directives
from sparkdl.allreduce.update.shard import Finished, ShardUpdate, update_shard
from sparkdl.keyed.columns import FreshState
from sparkdl.keyed.entries import ROW
from sparkdl.keyed.mix import Ids, distinct
from sparkdl.keyed.table import KeyedTable
from sparkdl.optim.shard.lazy_rows import fresh_state
from sparkdl.optim.shard.optimizer import UpdateRule
from sparkdl.optim.shard.run import ShardRun
from sparkdl.optim.staleness import LATE
from sparkdl.wire.codec import encode
from sparkdl.wire.frame import Array
from sparkdl.wire.layout import ParamLayout, TensorPlace
from sparkdl.wire.touched_rows import TouchedRows


def beginning(rule: UpdateRule, group: int) -> FreshState:
    """Return the function from new rows to the optimizer's state of each."""
    return partial(_fresh, rule, group)


def _fresh(rule: UpdateRule, group: int, rows: Array) -> Mapping[str, Array]:
    state = fresh_state(rule.optimizer, group, rows)
    return state if rule.staleness is None else {**state, LATE: np.zeros_like(rows)}


def update_table(
    table: KeyedTable,
    name: str,
    group: int,
    rule: UpdateRule,
    gradients: Sequence[RowGradients],
    directives: Directives,
    iteration: int,
) -> Ids:
    """Update the rows that any rank has a gradient of, as if the whole table was a parameter.

    Raises ProblemError if a gradient is not finite; nothing is updated then.
    """
    own = [message.tables[name] for message in gradients if name in message.tables]
    if not own:
        return np.empty(0, np.int64)
    ids = distinct(part.ids for part in own)
    fresh = beginning(rule, group)
    if len(ids):
        columns = table.columns_of(ids)
    else:  # the optimizer counts the step of the table, of which other owners have rows
        rows = np.zeros((1, table.rule.width), table.rule.dtype)
        columns = {ROW: rows, **(fresh(rows) if table.scalars else {})}
    weights, count = columns.pop(ROW), max(1, len(ids))
    layout = ParamLayout((TensorPlace(name, weights.shape, 0, group),), dtype=table.rule.dtype)
    update = ShardUpdate(
        layout=layout,
        start=0,
        stop=layout.numel,
        rule=rule,
        weights=torch.from_numpy(weights.reshape(-1)),
        iteration=iteration,
        directives=replace(directives, gradient=False, average=0.0),
        rows=True,
    )
    optimizer = update.optimizer(None)
    if columns or table.scalars:
        optimizer.runs = [_run(layout, group, columns, table.scalars)]
    made = update_shard(update, [_shard(message, name, ids, layout) for message in gradients], optimizer)
    assert isinstance(made, Finished)
    state = {name: value for run in optimizer.runs for name, value in run.state.items()}
    scalars: dict[str, Any] = {}
    changed = {ROW: made.weights.numpy().reshape(count, -1)}
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == (layout.numel,):
            changed[key] = value.numpy().reshape(count, -1)
        else:
            scalars[key] = _plain(value)
    table.update(ids, {key: values[: len(ids)] for key, values in changed.items()}, fresh, iteration + 1)
    table.scalars = scalars
    return ids


def _shard(message: RowGradients, name: str, ids: Ids, layout: ParamLayout) -> Shard:
    """Return a rank's gradient of the rows in the order of their ids; zeros are not there."""
    own = message.tables.get(name)
    used = np.array([own is not None])
    places = np.searchsorted(ids, own.ids) if own is not None else np.empty(0, np.int64)
    values = own.values if own is not None and len(own.ids) else np.empty(0, layout.dtype)
    if not len(ids):
        places = np.zeros(0, np.int64)
    rows = TouchedRows(layout, {0: places})
    return Shard(message.source, message.weight, encode("fp32", values.reshape(-1)), used, rows.arrays)


def _run(
    layout: ParamLayout, group: int, columns: Mapping[str, Array], scalars: Mapping[str, Any]
) -> ShardRun:
    """Return some rows with the optimizer's state of them."""
    elementwise = {name: torch.from_numpy(values.reshape(-1)) for name, values in columns.items()}
    return ShardRun(0, layout.numel, group, {**_restored(scalars), **elementwise})


def _plain(value: Any) -> Any:
    """Return a state of the whole table as JSON has it; a tensor with its dtype."""
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "value": value.tolist()}
    return value


def _restored(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Read what :func:`_plain` returned."""
    return {
        name: torch.tensor(value["value"], dtype=getattr(torch, value["dtype"]))
        if isinstance(value, Mapping)
        else value
        for name, value in scalars.items()
    }

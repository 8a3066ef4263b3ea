"""Metric states as frames, and how those of several partitions become one.

Each task updates metrics of its own and sends their states. Merged in partition order, by the
reduction that the metric chose for each state, they are what one metric would have had that saw all
rows. Integer states are equal to the bit; sums of floats differ by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat, dim_zero_max, dim_zero_mean, dim_zero_min, dim_zero_sum

from sparkdl.exceptions import ConfigError
from sparkdl.metrics.spec import AnyMetric, leaves, scores
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Frame

State = Tensor | list[Tensor]
_PARTS = 3  # some metrics merge two parts, and no more


def pack(metrics: Mapping[str, AnyMetric]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the states of metrics as the content of a frame; ConfigError names one that cannot travel.

    For each metric with states, by its path: how often it was updated, and per state -1 for a tensor or the
    number of tensors in the list; and the arrays.
    """
    table: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    owners: dict[tuple[int, ...], str] = {}
    for name, metric in metrics.items():
        for path, leaf in leaves(metric):
            key = f"{name}:{path}"
            if not leaf.update_count:
                continue  # the default: its partition has nothing to say
            states = leaf.metric_state
            # The metrics of a collection may share their states: these are sent once.
            owner = owners.setdefault(tuple(id(state) for state in states.values()), key)
            if owner != key:
                table[key] = owner
                continue
            counts = {}
            for state, value in states.items():
                where = f"metric {name!r}: state {state!r}"
                if isinstance(value, Tensor):
                    arrays[f"{key}/{state}"] = _array(value, where)
                    counts[state] = -1
                    continue
                items = [_tensor(item, where) for item in value]
                if items and leaf._reductions[state] is dim_zero_cat:
                    items = [dim_zero_cat(items)]
                arrays |= {f"{key}/{state}/{i}": _array(item, where) for i, item in enumerate(items)}
                counts[state] = len(items)
            table[key] = {"updates": leaf.update_count, "states": counts}
    return table, arrays


def merge(metrics: Mapping[str, AnyMetric], parts: Sequence[Frame]) -> None:
    """Give fresh metrics the states of all parts together, in partition order.

    Frames' meta have the table of :func:`pack` as ``states``. ConfigError names one that cannot be merged.
    """
    for name, metric in metrics.items():
        for path, leaf in leaves(metric):
            found = [entry for part in parts if (entry := _unpack(part, f"{name}:{path}"))]
            if found:
                _merge_leaf(name, leaf, found)


def _unpack(part: Frame, key: str) -> tuple[int, dict[str, State]] | None:
    """Return how often a part updated a metric, and its states; ``None`` for never."""
    entry = part.meta["states"].get(key)
    if isinstance(entry, str):
        key, entry = entry, part.meta["states"][entry]
    if entry is None:
        return None

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(np.array(part.arrays[name]))  # a copy: torch wants writable memory

    states: dict[str, State] = {}
    for state, count in entry["states"].items():
        if count < 0:
            states[state] = tensor(f"{key}/{state}")
        else:
            states[state] = [tensor(f"{key}/{state}/{i}") for i in range(count)]
    return entry["updates"], states


def _merge_leaf(name: str, leaf: Metric, found: Sequence[tuple[int, dict[str, State]]]) -> None:
    updates = [count for count, _ in found]
    if len(found) == 1 or _merges_itself(leaf):
        for state, value in found[0][1].items():
            setattr(leaf, state, value)
        leaf._update_count = updates[0]
        for count, states in found[1:]:
            leaf._update_count += count
            leaf.merge_state(dict(states))
    else:
        for state, reduction in leaf._reductions.items():
            values = [states[state] for _, states in found]
            try:
                merged = _reduce(reduction, values, updates)
            except Exception as error:
                raise ConfigError(
                    f"metric {name!r}: state {state!r} of several partitions cannot be merged: {error!r}"
                ) from error
            setattr(leaf, state, merged)
        leaf._update_count = sum(updates)
    for state, reduction in leaf._reductions.items():
        value = getattr(leaf, state)
        if reduction is dim_zero_cat and isinstance(value, list) and value:
            setattr(leaf, state, dim_zero_cat(value))  # as torchmetrics does between processes
    leaf._computed = None


def _merges_itself(leaf: Metric) -> bool:
    """Whether a metric brings its own ``merge_state``, which older torchmetrics do not have."""
    return getattr(type(leaf), "merge_state", None) is not getattr(Metric, "merge_state", None)


def _reduce(reduction: Any, values: Sequence[State], updates: Sequence[int]) -> Any:
    """Reduce one state of several parts, as torchmetrics does between processes."""
    if not isinstance(values[0], Tensor):
        joined = [item for value in values for item in value]
        return joined if reduction in (None, dim_zero_cat) else reduction(joined)
    tensors = [value for value in values if isinstance(value, Tensor)]
    if reduction is dim_zero_cat:
        return dim_zero_cat(tensors)
    stacked = torch.stack(tensors)
    if reduction is dim_zero_mean:
        weight = torch.tensor(updates, dtype=torch.float64)
        mean = torch.tensordot(weight, stacked.double(), dims=1) / weight.sum()
        return mean.to(stacked.dtype) if stacked.is_floating_point() else mean.float()
    if reduction in (dim_zero_sum, dim_zero_max, dim_zero_min):
        return reduction(stacked).to(stacked.dtype)
    return stacked if reduction is None else reduction(stacked)


def _tensor(value: Any, where: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise ConfigError(f"{where} holds a {type(value).__name__}; only tensors travel between partitions")
    return value


def _array(tensor: Tensor, where: str) -> Array:
    try:
        array: Array = tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"{where} is a {tensor.dtype} tensor, which cannot be sent: {error}") from error
    return array


def check_mergeable(name: str, metric: AnyMetric, *updates: Callable[[AnyMetric], None]) -> None:
    """Try whether three parts, each of an update, or of the only one, give what one pass gives.

    Metrics need no registration: one whose states do not merge (a reduction is missing or wrong, or
    ``update`` keeps something outside of the states) is found by using it.
    """

    def copy(updates: Iterable[Callable[[AnyMetric], None]]) -> AnyMetric:
        fresh = metric.clone()
        for update in updates:
            update(fresh)
        return fresh

    every = updates if len(updates) == _PARTS else updates * _PARTS
    parts = []
    for update in every:
        table, arrays = pack({name: copy([update])})
        parts.append(frame.unpack(frame.join(frame.pack({"states": table}, arrays))))
    merged = copy([])
    merge({name: merged}, parts)
    try:
        expected, again = scores(name, copy(every)), scores(name, copy(every))
    except ConfigError:
        raise
    except Exception:
        return  # too few rows for this metric: nothing to compare with
    try:
        found = scores(name, merged)
        # A metric that draws random numbers gives something else each time: nothing to compare with.
        if agree(expected, found) or not agree(expected, again):
            return
        what = f"{found!r:.200}"
    except Exception as error:
        what = f"{error!r:.200}"
    raise ConfigError(
        f"metric {name!r} ({type(metric).__name__}) cannot be computed in parts: {_PARTS} parts merged "
        f"give {what}, one pass gives {expected!r:.200}. Every state needs the dist_reduce_fx that "
        "merges it, and update() must keep nothing elsewhere"
    )


def agree(expected: Mapping[str, float], found: Mapping[str, float]) -> bool:
    """Whether two results have the same names and nearly the same values, where these are finite."""
    return expected.keys() == found.keys() and all(
        math.isclose(value, found[name], rel_tol=1e-3, abs_tol=1e-5)
        for name, value in expected.items()
        if math.isfinite(value)
    )

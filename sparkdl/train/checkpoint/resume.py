"""Everything a run needs to go on elsewhere, as arrays and plain values.

The optimizer's state stays with the shards between iterations. For a checkpoint it is copied to the
driver once, shard by shard, and written with the weights; a run that resumes gives it back to shards,
to the same ones bit for bit, or cut anew if there is another number of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import prod
from typing import Any

import numpy as np

from sparkdl.allreduce.messages import OwnedRows
from sparkdl.allreduce.shard_states import (
    ShardStates,
    Snapshot,
    check_shard_states,
    cut_shard_states,
    state_names,
    unpacked,
)
from sparkdl.exceptions import ConfigError, is_integer, is_number
from sparkdl.keyed.entries import ROW
from sparkdl.saved.identity import Identity
from sparkdl.train.checkpoint.mark import Base
from sparkdl.train.checkpoint.setting import (
    check_inside_epoch,
    check_setting,
    check_state,
    without_checksums,
)
from sparkdl.train.history import History
from sparkdl.train.options.averaging import Averaging, kind_of
from sparkdl.train.state import TrainState
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, under
from sparkdl.wire.layout import ParamLayout

_FLAT = np.empty(0)
_COUNTED = ("epoch", "iteration", "samples", "seconds", "validations")
"""Fields of a state that tell where a run took over other rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A run between two iterations."""

    state: TrainState  # where it is
    snapshot: Snapshot  # weights and buffers
    states: ShardStates  # per shard, the frames that stay with it: optimizer state, averaged weights
    average_buffers: Array | None  # averaged buffers, if weights are averaged
    averaged: int  # how many iterations have entered the average
    history: History  # rows and validations so far
    scores: Mapping[str, float]  # latest value of each metric
    # what must be the same to go on: see :func:`~sparkdl.train.checkpoint.setting.setting_of`
    setting: Mapping[str, Any]
    steps: int  # iterations of the current epoch
    batch_size: int  # rows of one iteration now
    learning_rate_scale: float = 1.0  # factor of the learning rate
    frozen: frozenset[str] = frozenset()  # names of the parameters that are frozen
    # those that the module itself had frozen, for an Unfreeze; ``None`` if an earlier release wrote it
    own_frozen: frozenset[str] | None = None
    # by what, the name of a class; empty without an average, or if an earlier release wrote it
    averaging: str = ""
    # the score that ``state`` knows, "set/metric"; empty without one, or if an earlier release wrote it
    monitored: str = ""
    # "max" or "min", which of its values are better; empty likewise
    monitor_mode: str = ""
    # iteration from which on the epoch has so many; the first one, but if its batch size changed
    first: int = 0
    slot: int = 0  # slots of the epoch that the iterations before that one have taken
    # state of each hook, by its class and a number
    hooks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # state before the last iteration if an error came before its validation and the end of its epoch were
    # done
    unfinished: TrainState | None = None
    source: Base | None = None  # the checkpoint from which it was read
    identity: Identity | None = None  # of the checkpoint; ``None`` if an earlier release has written it
    # whether the program that has written it goes on: nobody else has made anything of it
    continues: bool = False

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return JSON-compatible values and named arrays, without ``states``; the run leaves them alone."""
        arrays: dict[str, Array] = {
            "params": self.snapshot.params,
            "buffers": self.snapshot.buffers,
            "counters": self.snapshot.counters,
        }
        if self.average_buffers is not None:
            arrays["average_buffers"] = self.average_buffers
        hooks: dict[str, dict[str, Any]] = {}
        for hook, values in self.hooks.items():
            hooks[hook] = {name: v for name, v in values.items() if not isinstance(v, np.ndarray)}
            arrays |= {f"hook.{hook}.{n}": v for n, v in values.items() if isinstance(v, np.ndarray)}
        history = self.history.to_arrays()
        arrays |= {f"history.{name}": column for name, column in history.items()}
        meta = {
            "state": asdict(self.state),
            "averaged": self.averaged,
            "averaging": self.averaging,
            "monitored": self.monitored,
            "monitor_mode": self.monitor_mode,
            "scores": dict(self.scores),
            "validations": [dict(row) for row in self.history.validations],
            "setting": self.setting,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "learning_rate_scale": self.learning_rate_scale,
            "frozen": sorted(self.frozen),
            "own_frozen": None if self.own_frozen is None else sorted(self.own_frozen),
            "first": self.first,
            "slot": self.slot,
            "hooks": hooks,
            "unfinished": asdict(self.unfinished) if self.unfinished is not None else None,
            "new_rows": [dict(change) for change in self.history.new_rows],
            "left_out": self.history.left_out,
        }
        return meta, arrays

    @classmethod
    def from_arrays(
        cls, meta: Mapping[str, Any], arrays: Mapping[str, Array], states: ShardStates
    ) -> ResumePoint:
        """Read what :meth:`to_arrays` returned.

        Raises ValueError, LookupError, TypeError or AttributeError if it is something else.
        """
        columns = under("history.", arrays)
        changes = [_change(change) for change in meta.get("new_rows", [])]  # earlier releases write none
        history = History.from_arrays(columns, _rows(meta["validations"]), changes)
        history.left_out = _count(meta.get("left_out", 0))
        state = _state(meta["state"])
        rows = history.left_out + len(history)
        if len({len(column) for column in columns.values()}) > 1 or rows != state.iteration:
            raise ValueError(f"a history of {rows} rows after {state.iteration} iterations")
        for name in ("params", "buffers", "counters", "average_buffers"):
            if arrays.get(name, _FLAT).ndim != 1:
                raise ValueError(f"{name} has shape {arrays[name].shape}")
        check_shard_states(states, len(arrays["params"]))
        return cls(
            state=state,
            snapshot=Snapshot(arrays["params"], arrays["buffers"], arrays["counters"]),
            states=states,
            average_buffers=arrays.get("average_buffers"),
            averaged=_count(meta["averaged"]),
            averaging=str(meta.get("averaging", "")),
            monitored=str(meta.get("monitored", "")),
            monitor_mode=str(meta.get("monitor_mode", "")),
            history=history,
            scores={str(name): float(value) for name, value in meta["scores"].items()},
            setting=_setting(meta["setting"]),
            steps=_count(meta["steps"]),
            batch_size=_count(meta["batch_size"]),
            learning_rate_scale=float(meta["learning_rate_scale"]),
            frozen=frozenset(map(str, meta["frozen"])),
            own_frozen=None if (own := meta.get("own_frozen")) is None else frozenset(map(str, own)),
            first=_count(meta["first"]),
            slot=_count(meta.get("slot", 0)),  # earlier releases write none
            hooks={k: {**values, **under(f"hook.{k}.", arrays)} for k, values in meta["hooks"].items()},
            unfinished=_state(meta["unfinished"]) if meta.get("unfinished") else None,
        )

    @property
    def begin(self) -> TrainState:
        """Where the run took over the rows that it has; the start if it never had others."""
        if not self.history.new_rows:
            return TrainState()
        change = self.history.new_rows[-1]
        return TrainState(**{name: change[name] for name in _COUNTED})

    def shortened(self, keep: int) -> ResumePoint:
        """Return the point with the last rows of the history, and all of an epoch that has not ended."""
        return replace(self, history=self.history.shortened(keep, self.state.epoch + 1))

    def on_new_rows(self, rows: int) -> ResumePoint:
        """Return the point from which the run goes on with other rows.

        Weights, the optimizer's state, schedule and counters go on. The epoch of the old rows ends here, with
        an entry in the history. Scores, and what hooks remember, are of the old rows and end as well.
        """
        state, before = self.state, int(self.setting["rows"])
        left = 0
        if state.step:
            samples = zip(self.history.column("epoch"), self.history.column("samples"), strict=True)
            left = max(0, before - sum(n for epoch, n in samples if epoch == state.epoch + 1))
            state = replace(state, epoch=state.epoch + 1, step=0)
        state = replace(state, score=math.nan, best_score=math.nan, stale=0)
        counted = {name: getattr(state, name) for name in _COUNTED}
        self.history.new_rows.append({**counted, "rows": before, "now": rows, "left": left})
        setting = {**without_checksums(self.setting), "rows": rows}
        frozen = self.frozen - frozen_by(self.hooks)
        return replace(
            self,
            state=state,
            setting=setting,
            scores={},
            frozen=frozen,
            first=0,
            slot=0,
            hooks={},
            unfinished=None,
        )

    def averaged_by(self, averaging: Averaging | None) -> ResumePoint:
        """Return the point from which a run goes on that averages in this way: without an average of another.

        The mean of some weights is no moving average of them, and a run without an average has none.
        """
        kind = kind_of(averaging)
        if kind and self.averaging in ("", kind):
            return self
        return replace(self, averaged=0, average_buffers=None, averaging=kind)

    def monitored_by(self, score: str, mode: str) -> ResumePoint:
        """Return the point from which a run goes on that monitors this score: without the best of another.

        The best of the other ``mode`` was the worst.
        """
        if not score or (self.monitored in ("", score) and self.monitor_mode in ("", mode)):
            return self
        return replace(self, state=replace(self.state, score=math.nan, best_score=math.nan, stale=0))

    def check(self, setting: Mapping[str, Any]) -> None:
        """Check that a run with a setting can go on from here."""
        check_setting(self.setting, setting)
        params, sizes = self.snapshot.params, [prod(shape) for _, shape, _ in setting["layout"]]
        if params.shape != (sum(sizes),) or str(params.dtype) != setting["dtype"]:
            raise ConfigError(
                f"resume: the checkpoint has weights of shape {params.shape} and {params.dtype}; the "
                f"module has {sum(sizes)} of {setting['dtype']}: resume with the module that it was trained "
                "with",
                code="config-resume",
            )
        check_state(state_names(self.states), setting, exactly="optimizer" not in self.setting)
        if self.state.step:
            check_inside_epoch(self.setting, setting, since=self.first)

    def check_rows(self, begun: Mapping[str, Collection[str]]) -> None:
        """Check that rows of embedding variables have the state of their optimizer, whose names are given."""
        if not begun:  # there are none, and dense shards need not be read for that
            return
        rows = [message for message in unpacked(self.states) if message.meta["kind"] == OwnedRows.kind]
        tables = [own for message in rows for own in OwnedRows.read(message, False).tables.items()]
        for name, entries in tables:
            then, now = entries.columns.keys() - {ROW}, set(begun.get(name, ()))
            if then and now - then:
                raise ConfigError(
                    f"resume: rows of the embedding variable {name!r} have {', '.join(sorted(then))} of "
                    f"their optimizer in the checkpoint, and {', '.join(sorted(now))} now: an earlier "
                    "release, or another optimizer, has written it. Begin a run of its own with the weights "
                    "and rows: load_weights(path, module), then fit without resume=",
                    code="config-resume",
                )

    def frozen_now(self, own: frozenset[str]) -> frozenset[str]:
        """Return what is frozen where a run goes on, of whose module ``own`` have no gradient by itself."""
        if self.own_frozen is None:
            return self.frozen
        return (self.frozen - (self.own_frozen - own)) | (own - self.own_frozen)

    def states_for(self, layout: ParamLayout, count: int) -> ShardStates:
        """Return what stays with each of ``count`` shards; cut anew if there were others."""
        if len(self.states) in (0, count):
            return self.states
        cut = cut_shard_states(unpacked(self.states), layout.shards(count))
        return [[frame.join(parts) for parts in frames] for frames in cut]


def frozen_by(hooks: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of parameters that a ``Freeze`` had frozen, of the states of hooks."""
    own = (state.get("own", ()) for name, state in hooks.items() if name.startswith("Freeze("))
    return frozenset(name for names in own for name in names)


def _state(values: Mapping[str, Any]) -> TrainState:
    """Return the state of a file."""
    counts = {f.name for f in fields(TrainState) if isinstance(f.default, int)}
    checked: dict[str, Any] = {n: _count(v) if n in counts else _number(v) for n, v in values.items()}
    return TrainState(**checked)


def _number(value: Any) -> float:
    """Return a number of a file."""
    if not is_number(value):
        raise TypeError(f"{value!r:.40}, expected a number")
    return float(value)


def _count(value: Any) -> int:
    """Return a number of a file that counts something."""
    if not is_integer(value, 0):
        raise TypeError(f"{value!r:.40}, expected a count")
    return value


def _rows(validations: Any) -> list[dict[str, Any]]:
    for row in validations:
        if not isinstance(row, dict) or not isinstance(row["name"], str):
            raise TypeError(f"a validation {row!r:.100}")
        _count(row["iteration"])
    return list(validations)


def _change(change: Any) -> dict[str, Any]:
    """Return an entry of the history about other rows."""
    counts = {name: _count(change[name]) for name in (*_COUNTED, "rows", "now", "left") if name != "seconds"}
    return {**counts, "seconds": _number(change["seconds"])}


def _setting(setting: Any) -> dict[str, Any]:
    """Return a file's setting if its parts have the structure of those of :func:`setting_of`."""
    for name, shape, group in setting["layout"]:
        _entry(name, shape)
        _count(group)
    for name, shape in setting.get("buffers", []):
        _entry(name, shape)
    for key in ("optimizer", "inner_optimizer"):
        if (optimizer := setting.get(key)) is not None and len(optimizer["classes"]) != len(
            optimizer["groups"]
        ):
            raise ValueError(f"{key}={optimizer!r:.100}")
        for count in optimizer["groups"] if optimizer is not None else ():
            _count(count)
    for rows in setting["partitions"]:
        _count(rows)
    for place, column in setting.get("columns", {}).items():
        if not isinstance(place, str) or not isinstance(column, str):
            raise TypeError(f"a column {column!r:.40} at {place!r:.40}")
    return dict(setting)


def _entry(name: Any, shape: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a parameter called {name!r:.40}")
    for size in shape:
        _count(size)

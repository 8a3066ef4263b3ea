"""The whole model in a process's memory, brought from version to version by what iterations have changed.

Where an iteration changes some rows of large tables and leaves the others as they are, neither weights nor
the optimizer's state are written anew in each: a *change* has the elements that are covered
(:mod:`sparkdl.rows`) as they are after it. Where several processes of an executor take turns, it keeps the
last changes as files, and the whole model at the beginning of the group, from which a process starts that is
new or has to compute an earlier iteration again. What an executor lacks, the driver sends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl import frame
from sparkdl.allreduce import weights as published
from sparkdl.frame import Array, Frame, Parts
from sparkdl.nn.flat import FlatModule
from sparkdl.optim.packed import put_state
from sparkdl.optim.slice import SliceOptimizer
from sparkdl.rows import Rows
from sparkdl.train import replica, stage
from sparkdl.train.executor_files import decode, delete_files, encode, read_file, write_file
from sparkdl.train.replica import Replica, Start, Version
from sparkdl.train.worker import FitSpec, Worker

_CHANGE = "change"
_MOST_CHANGES = 8
"""So many changes at most stay on an executor, for processes that have run no task meanwhile."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an iteration has changed.

    Attributes:
        rows: the elements that are given.
        arrays: packed params, buffers and counters.
        state: frame of the optimizer's state of these elements.
        report: what the iteration has to report.
    """

    rows: Rows
    arrays: Mapping[str, Array]
    state: Frame
    report: Mapping[str, Any]


class LiveModel:
    """The model in this process.

    Args:
        spec: the fixed part of the fit.
        module: the module, whose memory the weights live in if it is the host's.
        version: which version is given.
        base: the whole model.

    Attributes:
        version: the version in memory; ``None`` while it changes.
        params: flat trainable parameters.
        buffers: flat floating-point buffers.
        counters: flat integer and boolean buffers.
        optimizer: the optimizer of all weights, with its state.
        reports: what iterations had to report, by their number.
        gradient: the last iteration's combined gradient, if the driver wanted it.
    """

    def __init__(self, spec: FitSpec, module: FlatModule, version: Version, base: Replica) -> None:
        arrays, (state,) = base.arrays, [*base.kept, None][:1]
        self._module = module
        self.params: Array = (
            np.empty_like(arrays["params"]) if module.own_params is None else module.own_params
        )
        np.copyto(self.params, arrays["params"])
        self.buffers, self.counters = np.array(arrays["buffers"]), np.array(arrays["counters"])
        self.optimizer = SliceOptimizer(
            spec.rule.optimizer,
            spec.layout,
            0,
            spec.layout.numel,
            frame.unpack(state) if state is not None else None,
        )
        self.reports: dict[int, Mapping[str, Any]] = {}
        self.gradient: Array = self.params[:0]
        self._set(version)

    def _set(self, version: Version | None) -> None:
        self.version = version
        self._module.holds = version

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Params, buffers and counters."""
        return {"params": self.params, "buffers": self.buffers, "counters": self.counters}

    def is_between(self, start: Version, version: Version) -> bool:
        """Return whether this is a version of a group that some changes lead on from."""
        own = self.version
        if own is None or (own.fit_id, own.generation) != (version.fit_id, version.generation):
            return False
        if self._module.own_params is not None and self._module.holds != own:
            return False  # others were loaded since
        known = all(number in self.reports for number in range(start.iteration + 1, own.iteration + 1))
        return start.iteration <= own.iteration <= version.iteration and known

    def apply(self, change: Change) -> None:
        """Go on to the next version."""
        assert self.version is not None
        after = self.version.after(1)
        self._set(None)
        change.rows.put(change.arrays["params"], self.params)
        put_state(self.optimizer, change.rows, change.state)
        self.buffers, self.counters = (np.array(change.arrays[name]) for name in ("buffers", "counters"))
        self.reports[after.iteration] = change.report
        self.gradient = np.array(change.arrays.get("gradient", self.params[:0]))
        self._set(after)


def bring(worker: Worker, start: Start, version: Version) -> LiveModel:
    """Return this process's model, brought to a version.

    Args:
        worker: this process's state of the fit.
        start: what the group starts from.
        version: a version of the group.

    Raises:
        ProblemError: if this executor lacks the files for it.
    """
    live = worker.live
    if live is None or not live.is_between(start.version, version):
        base = start.load()
        if base is None:
            raise stage.lacking(start.version.iteration, "the weights")
        live = worker.live = LiveModel(worker.spec, worker.replica, start.version, base)
    while live.version is not None and live.version != version:
        change = read_change(worker.spec, live.version.after(1))
        if change is None:
            raise stage.lacking(live.version.iteration + 1, "a change")
        live.apply(change)
    for number in [number for number in live.reports if number <= start.version.iteration]:
        del live.reports[number]
    return live


def write_change(version: Version, change: Change) -> None:
    """Leave the change that leads to a version for this executor's other processes."""
    arrays = frame.pack({"kind": _CHANGE}, {**change.arrays, **change.rows.arrays})
    report: Parts = [replica.report(change.report)]
    write_file(_path(version), encode([report, arrays, frame.pack(change.state.meta, change.state.arrays)]))


def read_change(spec: FitSpec, version: Version) -> Change | None:
    """Return the change that leads to a version, if this executor has it."""
    data = read_file(_path(version))
    if data is None:
        return None
    header, arrays, state = decode(data)
    found = frame.unpack(arrays).arrays
    return Change(Rows.read(spec.layout, found), found, frame.unpack(state), json.loads(bytes(header)))


def write_base(live: LiveModel) -> None:
    """Leave the whole model for the next group, unless another task of this executor has done so."""
    assert live.version is not None
    if replica.read(live.version) is None:
        weights = published.pack(live.version.iteration, **live.arrays)
        replica.write_copy(live.version, weights, [live.optimizer.state_frame()])


def changes_to_keep(slots: int) -> int:
    """Return how many changes an executor with so many task slots keeps: 0 if one process runs all tasks.

    Spark gives a task to the process that has been idle for longest.
    """
    return 0 if slots == 1 else min(slots, _MOST_CHANGES) + 1


def delete_outdated(start: Version, version: Version, changes: int) -> None:
    """Delete the files that neither the group's tasks nor the next group's need, but for the last changes."""

    def outdated(name: str) -> bool:
        which, _, what = name.partition(".")
        generation, iteration = map(int, which.split("-"))
        first = version.iteration - (changes if what == _CHANGE else 1)
        return generation != version.generation or iteration < (first if what else start.iteration)

    delete_files(version.folder, outdated)


def _path(version: Version) -> str:
    return f"{version.path}.{_CHANGE}"

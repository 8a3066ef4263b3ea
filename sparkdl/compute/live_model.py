"""The whole model in a process's memory, brought from version to version by what iterations have changed.

Where all processes update all weights, each does so in the memory of its own module replica, on a GPU too,
and the optimizer's state is beside them; the host gets both when a group has ended. A *change* has
the elements that an iteration has updated (:mod:`sparkdl.wire.touched_rows`): all of them, or the rows of
tables that a batch has touched. Where several processes of an executor take turns, the executor keeps the
last changes as files, and the whole model at the beginning of the group, from which a process starts that
is new or has to compute an earlier iteration again. What an executor lacks, the driver sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from sparkdl.compute.local_store import LocalStore
from sparkdl.compute.problems import LackingState, ProblemError
from sparkdl.compute.spec import FitSpec
from sparkdl.compute.start import ModelVersion, Start
from sparkdl.nn.flat import FlatModule, FlatWeights
from sparkdl.nn.gradient import Gradient
from sparkdl.optim.shard.optimizer import ShardOptimizer
from sparkdl.optim.shard.packed import put_state
from sparkdl.wire import frame
from sparkdl.wire.frame import Array, Frame, Packed, Parts
from sparkdl.wire.held import Shared
from sparkdl.wire.touched_rows import TouchedRows

if TYPE_CHECKING:
    from sparkdl.compute.worker import Worker

_CHANGE = "change"
_MOST_SLOTS = 32  # for the processes of so many task slots changes stay, if these have run no task meanwhile


@dataclass(frozen=True, slots=True)
class WeightChange:
    """What an iteration has changed."""

    rows: TouchedRows  # the elements that are given
    params: Array | None  # their new values, packed; ``None`` where they were updated in place
    buffers: Array  # new floating-point buffers
    counters: Array  # new integer and boolean buffers
    optimizer: ShardOptimizer  # the optimizer of these elements, with its state
    average: torch.Tensor | None  # averaged weights, if there are any
    reports: Sequence[bytes]  # reports of the group's iterations so far, in their order, as JSON
    gradient: Array | None = None  # its combined gradient, if the driver wants it


class LiveModel:
    """The model in this process, whose weights live in the memory of a module.

    ``weights`` is a frame of params, buffers and counters, ``states`` are those of the optimizer's state and
    the averaged weights, if there are any. ``version`` is ``None`` while the model changes.
    """

    def __init__(
        self,
        spec: FitSpec,
        module: FlatModule,
        version: ModelVersion,
        weights: Frame,
        states: Sequence[Frame],
    ) -> None:
        arrays = weights.arrays
        by_kind = {message.meta["kind"]: message for message in states}
        self._module = module
        # A rank's local steps change the module's weights, so that the model then has memory of its own.
        self._shares = spec.inner is None
        if self._shares:
            module.load_params(arrays["params"])
        self.weights = module.params if self._shares else torch.from_numpy(np.array(arrays["params"]))
        self.buffers, self.counters = np.array(arrays["buffers"]), np.array(arrays["counters"])
        state = by_kind.get("state")
        self.optimizer = ShardOptimizer(
            spec.rule.optimizer,
            spec.layout,
            0,
            spec.layout.numel,
            Shared(state) if state is not None else None,
        ).to(self.weights.device)
        average = by_kind.get("average")
        # A copy: the frame that it lies in has all that the driver has sent.
        copied = torch.from_numpy(np.array(average.arrays["params"])) if average else None
        self.average = _beside(self.weights, copied)
        # Of the step that is next to be completed, if its gradient has stayed in this process.
        self.unsent: Gradient | None = None
        self.reports: Sequence[bytes] = []  # of the group's iterations, in their order, as JSON
        self.gradient: Array | None = None  # the last iteration's, combined, if the driver wanted it
        self._set(version)

    def _set(self, version: ModelVersion | None) -> None:
        self.version = version
        if self._shares:
            self._module.holds = version

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Params, buffers and counters, on the host."""
        return {"params": self.params, "buffers": self.buffers, "counters": self.counters}

    @property
    def params(self) -> Array:
        """The flat trainable parameters, on the host."""
        return self.weights.cpu().numpy()

    @property
    def loadable(self) -> Mapping[str, FlatWeights]:
        """Params, buffers and counters, for the module to load; its own params are there already."""
        return {"params": self.weights, "buffers": self.buffers, "counters": self.counters}

    def is_between(self, start: Start, version: ModelVersion) -> bool:
        """Return whether this is a version of a group that some changes lead on from."""
        own = self.version
        if own is None or (own.generation != start.generation and own != start.version):
            return False
        if self._shares and self._module.holds != own:
            return False  # others were loaded since
        if own == start.version:
            self.reports = []  # of the group before
        done = own.iteration - start.version.iteration
        return 0 <= done == len(self.reports) and own.iteration <= version.iteration

    def begin_change(self) -> ModelVersion:
        """Let params and state be overwritten from now on; return the version that they were."""
        version = self.version
        assert version is not None  # it was brought to one
        self._set(None)
        return version

    def give_up_change(self, version: ModelVersion) -> None:
        """Say that nothing was overwritten after all."""
        self._set(version)

    def apply(self, change: WeightChange, version: ModelVersion) -> None:
        """Go on to a version."""
        self._set(None)
        if change.params is not None:
            if change.rows.is_whole and self._shares:
                self._module.load_params(change.params)
            else:
                change.rows.put(change.params, self.weights.numpy())
        if change.optimizer is not self.optimizer:  # else it was updated in place
            put_state(self.optimizer, change.rows, change.optimizer)
            self.optimizer.to(self.weights.device)
        self.buffers, self.counters = np.array(change.buffers), np.array(change.counters)
        self.average = _beside(self.weights, change.average)
        self.reports = change.reports
        self.gradient = change.gradient
        self._set(version)


def bring(worker: Worker, start: Start, version: ModelVersion) -> LiveModel:
    """Return this process's model, brought to a version; raises ProblemError if this executor lacks files."""
    live, spec, module, files = worker.live, worker.spec, worker.replica, worker.files
    if live is not None and live.version == version and live.is_between(start, version):
        return live
    change = read_change(spec, files, version)
    if live is None or not live.is_between(start, version):
        if change is not None and change.rows.is_whole:  # nothing need be known of the version before
            live = _made_of(change, spec, module, version)
            if version == start.version:
                live.reports = []  # they are of the group before
            return live
        base = start.load(files)
        if base is None:
            raise ProblemError(LackingState(start.version.iteration, "the weights"))
        live = LiveModel(spec, module, start.version, *base)
    if change is not None and change.rows.is_whole:
        live.apply(change, version)
    while live.version is not None and live.version != version:
        after = start.after(live.version.iteration - start.version.iteration + 1)
        change = read_change(spec, files, after)
        if change is None:
            raise ProblemError(LackingState(after.iteration, "a change"))
        live.apply(change, after)
    return live


def _made_of(change: WeightChange, spec: FitSpec, module: FlatModule, version: ModelVersion) -> LiveModel:
    """Return the model that a whole change leads to."""
    assert change.params is not None  # it was read
    arrays = {"params": change.params, "buffers": change.buffers, "counters": change.counters}
    live = LiveModel(spec, module, version, Frame({}, arrays), [])
    live.optimizer = change.optimizer.to(live.weights.device)
    live.average = _beside(live.weights, change.average)
    live.reports, live.gradient = change.reports, change.gradient
    return live


def write_change(files: LocalStore, version: ModelVersion, change: WeightChange, live: LiveModel) -> None:
    """Leave the change that leads to a version for this executor's other processes."""
    arrays = {
        "params": live.params if change.params is None else change.params,
        "buffers": change.buffers,
        "counters": change.counters,
        **change.rows.arrays,
    }
    if change.gradient is not None:
        arrays["gradient"] = change.gradient
    frames: list[Parts] = [
        [b"\n".join(change.reports)],
        frame.pack({"kind": _CHANGE}, arrays),
        change.optimizer.state_frame(),
    ]
    if change.average is not None:
        frames.append(_packed_average(change.average))
    files.write(version.part(_CHANGE), frames)


def read_change(spec: FitSpec, files: LocalStore, version: ModelVersion) -> WeightChange | None:
    """Return the change that leads to a version, if this executor has it."""
    frames = files.read(version.part(_CHANGE))
    if frames is None:
        return None
    reports, arrays, state, *average = frames
    found = frame.unpack(arrays).arrays
    rows = TouchedRows.read(spec.layout, found)
    before = Shared(frame.unpack(state))
    return WeightChange(
        rows,
        found["params"],
        found["buffers"],
        found["counters"],
        ShardOptimizer(spec.rule.optimizer, rows.packed, 0, rows.packed.numel, before),
        torch.from_numpy(np.array(frame.unpack(average[0]).arrays["params"])) if average else None,
        frame.join(reports).splitlines(),
        np.array(found["gradient"]) if "gradient" in found else None,
    )


def write_base(live: LiveModel, files: LocalStore) -> None:
    """Leave the whole model for the next group, unless another task of this executor has done so."""
    assert live.version is not None
    if files.read(live.version.name) is None:
        states: list[Packed] = [live.optimizer.state_frame()]
        if live.average is not None:
            states.append(_packed_average(live.average))
        files.write(live.version.name, [frame.pack({"kind": "weights"}, live.arrays), *states])


def changes_to_keep(slots: int, *, rows: bool) -> int:
    """Return how many changes an executor with so many task slots keeps.

    Spark gives a task to the process that has been idle for longest. If changes have some ``rows`` of tables
    alone, it needs all that it missed.
    """
    return min(slots, _MOST_SLOTS) + 1 if rows else 2


def delete_outdated(files: LocalStore, start: Start, version: ModelVersion, changes: int) -> None:
    """Delete files that neither this group nor the next one needs, except the last changes."""

    def outdated(name: str) -> bool:
        which, _, what = name.partition(".")
        generation, iteration = map(int, which.split("-"))
        first = version.iteration - (changes if what == _CHANGE else 1)
        of_group = generation == start.generation or which == start.version.name
        return not of_group or iteration < (first if what else start.version.iteration)

    files.discard(outdated)


def _beside(weights: torch.Tensor, average: torch.Tensor | None) -> torch.Tensor | None:
    return None if average is None else average.to(weights.device)


def _packed_average(average: torch.Tensor) -> Parts:
    return frame.pack({"kind": "average"}, {"params": average.cpu().numpy()})

"""A hook's view of a run: its state, and methods to change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from sparkdl.allreduce.shard_states import Snapshot
from sparkdl.exceptions import ConfigError
from sparkdl.nn.embedding import embedding_variables, fill
from sparkdl.nn.objective import Objective
from sparkdl.optim import OptimizerSpec
from sparkdl.optim.groups import all_names
from sparkdl.saved.identity import Identity, mark
from sparkdl.train import shown
from sparkdl.train.checkpoint.mark import Base
from sparkdl.train.history import History
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.state import TrainState
from sparkdl.wire.frame import Array
from sparkdl.wire.layout import ParamLayout

if TYPE_CHECKING:
    from sparkdl.allreduce.outcome import Outcome
    from sparkdl.data.dataset import Dataset
    from sparkdl.train.checkpoint.resume import ResumePoint
    from sparkdl.train.loop import Loop


@dataclass(slots=True, kw_only=True)
class Run:
    """One call of ``fit``, as its hooks see it.

    Attributes:
        name: name of the run.
        config: the options.
        module: the caller's module: structure and names, not the trained weights.
        data: the rows trained on.
        optimizer: how the optimizer is built; with local steps that of the partitions.
        objective: the loss.
        layout: where each parameter lies in the flat vectors.
        steps: iterations of the current epoch.
        batch_size: rows of one iteration; a change counts from the next epoch on, in ``on_resize`` at once.
        learning_rate_scale: factor of the learning rate, on top of the schedule.
        history: one row per completed iteration.
        previous: state before the last completed iteration.
        state: state now.
        outcome: results of the last iteration; ``None`` before the first, and for iterations
            without a row.
        scores: latest value of each metric, by ``"set/metric"``.
        frozen: names of parameters of the layout that are frozen now.
        monitored: the monitored score, ``"set/metric"``; empty without validation.
        stopped: why the run was stopped before ``end_when`` fired; empty while it goes on.
        begin: where the run took over these rows from others (``rows="new"``); the start otherwise.
        source: the checkpoint from which the run goes on.
        identity: names this start of the run, and those that led to it.
        error: what ended the run with an exception; ``None`` while it goes on.
    """

    name: str
    config: TrainConfig
    module: nn.Module
    data: Dataset
    optimizer: OptimizerSpec
    objective: Objective
    layout: ParamLayout
    steps: int
    history: History
    previous: TrainState
    state: TrainState
    outcome: Outcome | None = None
    scores: dict[str, float] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    monitored: str = ""
    batch_size: int = 0
    learning_rate_scale: float = 1.0
    stopped: str = ""
    begin: TrainState = field(default_factory=TrainState)
    error: BaseException | None = None
    source: Base | None = None
    identity: Identity = field(default_factory=Identity.begin)
    _write_back: Callable[[Snapshot], nn.Module]
    _trained: Loop = field(init=False, repr=False, compare=False)
    _replacement: Snapshot | None = None

    def __post_init__(self) -> None:
        self.batch_size = self.batch_size or self.config.batch_size

    def follow(self, trained: Loop) -> None:
        """Take weights and checkpoints from a loop; for the Trainer, before hooks see the run."""
        self._trained = trained

    def _repr_html_(self) -> str:
        return shown.run(self)

    def counted(self, state: TrainState) -> TrainState:
        """Return a state as ``end_when`` sees it: counted from where the run took over these rows."""
        return state if not self.begin.iteration else state.since(self.begin)

    def snapshot(self) -> Snapshot:
        """Return the weights as they are; cheap, for nothing is copied."""
        return self._replacement or self._trained.current()

    def averaged(self) -> Snapshot:
        """Return the averaged weights (``averaging=``), or the current ones without averaging."""
        return self._replacement or self._trained.averaged()

    def trained_module(self, snapshot: Snapshot | None = None, *, rows: bool = True) -> nn.Module:
        """Return a copy of the module with the given weights, by default the current ones.

        Args:
            snapshot: the weights.
            rows: whether embedding variables get their current rows; all rows come to the driver then.
        """
        module = self._write_back(snapshot or self.snapshot())
        if rows:
            fill(module, self._trained.rows())
        mark(module, self.identity.at(self.state.iteration))
        return module

    def parameters(self, snapshot: Snapshot | None = None) -> dict[str, Array]:
        """Return the trainable parameters by name, as read-only views."""
        return self._by_name((snapshot or self.snapshot()).params)

    def gradients(self) -> dict[str, Array]:
        """Return the gradient of the last iteration by name, before clipping.

        Empty unless the hook's ``gradients`` trigger asked for it.
        """
        if self.outcome is None or self.outcome.gradient is None:
            return {}
        return self._by_name(self.outcome.gradient)

    def _by_name(self, flat: Array) -> dict[str, Array]:
        view = flat.view()
        view.flags.writeable = False
        return {p.name: view[p.offset : p.end].reshape(p.shape) for p in self.layout.params}

    def resume_point(self, *, with_state: bool = True, since: int = 0) -> ResumePoint:
        """Return all that another run needs to go on from here.

        Args:
            with_state: whether to copy the optimizer's state to the driver; without it, see
                :meth:`write_shards`.
            since: of the rows of embedding variables only those that have changed since so many completed
                iterations; 0 for all.

        Raises:
            TaskError: if the state cannot be read from the executors.
        """
        return self._trained.point(with_state, since)

    def write_shards(self, folder: str, since: int = 0) -> dict[str, str]:
        """Let the executors write the optimizer's state into a folder that they all reach.

        Args:
            folder: folder, or its URL.
            since: see :meth:`resume_point`.

        Returns:
            sha256 by file name: one file per shard, and further ones for rows of embedding variables.

        Raises:
            TaskError: if the state cannot be read, or the files cannot be written.
        """
        return self._trained.write_shards(folder, since)

    def stop(self, reason: str) -> None:
        """End the run after the current iteration and its hooks."""
        self.stopped = self.stopped or reason

    def replace(self, snapshot: Snapshot) -> None:
        """Go on with other weights; the optimizer's state stays.

        Raises:
            ConfigError: if the snapshot is not of this run's module.
        """
        if embedding_variables(self.module):
            raise ConfigError("the weights of a module with embedding variables cannot be replaced yet")
        own = self.snapshot()
        parts: dict[str, Array] = {}
        for name in ("params", "buffers", "counters"):
            given, like = np.asarray(getattr(snapshot, name)), getattr(own, name)
            if given.shape != like.shape:
                raise ConfigError(
                    f"the snapshot has {name} of shape {given.shape}, the module of shape {like.shape}; "
                    "a snapshot fits only the module it was taken from"
                )
            parts[name] = given.astype(like.dtype, copy=False)  # arithmetic may have changed it
        self._replacement = Snapshot(**parts)

    def take_replacement(self) -> Snapshot | None:
        """Return what :meth:`replace` was given, once; for the Trainer."""
        replacement, self._replacement = self._replacement, None
        return replacement

    def matching(self, pattern: str) -> list[str]:
        """Return the names of the layout's parameters that match a pattern, a tied one by any of its names.

        Raises:
            ConfigError: if there are none.
        """
        own = all_names(self.module)
        names = [p.name for p in self.layout.params if any(fnmatchcase(n, pattern) for n in own[p.name])]
        if not names:
            known = ", ".join(p.name for p in self.layout.params[:8])
            raise ConfigError(
                f"no trainable parameter matches {pattern!r}; there are {known}"
                f"{', ...' if len(self.layout.params) > 8 else ''}. Parameters that the module freezes "
                "itself can be unfrozen only if the hook names them in `unfreezes`"
            )
        return names

    def freeze(self, pattern: str) -> list[str]:
        """Stop training the parameters whose names match; return their names."""
        names = self.matching(pattern)
        self.frozen |= set(names)
        return names

    def unfreeze(self, pattern: str) -> list[str]:
        """Train the parameters whose names match again; return their names."""
        names = self.matching(pattern)
        self.frozen -= set(names)
        return names

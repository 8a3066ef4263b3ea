"""Trials as distributed fits, one after the other or side by side in pools of a fair scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from threading import Event
from typing import Any

from sparkdl.data.dataset import Dataset
from sparkdl.train.trainer import Trainer
from sparkdl.tune.running.advance import Advanced, advance
from sparkdl.tune.running.journal import Rung
from sparkdl.tune.running.runners import averaged, divided
from sparkdl.wire.frame import Packed

POOL = "sparkdl-trial-{}"
"""Name of a trial's pool; with ``spark.scheduler.mode=FAIR`` pools share the cores in equal parts."""


@dataclass(slots=True, kw_only=True)
class ClusterRunner:
    """Runs each rung as a distributed fit."""

    trainer: Callable[[Mapping[str, Any]], Trainer]  # makes the Trainer of params
    # for each fold the rows to train on, and those to validate on
    folds: Sequence[tuple[Dataset, Dataset | None]]
    validation: Mapping[str, Dataset]  # rows to validate on, by name, where folds have none
    threads: Executor | None  # runs fits side by side; ``None`` to run one after the other
    over: Event  # set when the search ends, so that what has not begun does not

    def start(self, rung: Rung, state: Callable[[], bytes] | None) -> Callable[[], Advanced]:
        """See :class:`sparkdl.tune.running.search.Runner`."""
        trainers = [self.trainer(rung.params) for _ in self.folds]
        begun = state() if state is not None else None
        if self.threads is None:
            found = self._run(rung, trainers, begun)
            return lambda: found

        access = self.folds[0][0].access

        def run_in_pool() -> Advanced:
            with access.in_pool(POOL.format(rung.trial)):
                return self._run(rung, trainers, begun)

        return self.threads.submit(access.inherited(run_in_pool)).result

    def _run(self, rung: Rung, trainers: Sequence[Trainer], state: Packed | None) -> Advanced:
        if self.over.is_set():
            raise RuntimeError("the search is over")
        states: Sequence[Packed | None] = [None] * len(self.folds) if state is None else divided(state)
        found = []
        for (train, held), trainer, own in zip(self.folds, trainers, states, strict=True):
            sets = self.validation if held is None else {"val": held}
            found.append(advance(trainer, train, sets, rung.until, rung.done, own))
        return averaged(found)

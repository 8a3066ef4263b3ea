"""Runners of rungs: Spark jobs of one task each, or distributed fits, in turn or side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np

from sparkdl._spark.errors import is_job_failure, task_error
from sparkdl.access.base import Access, BytesRef, described
from sparkdl.data.dataset import Dataset
from sparkdl.data.streams import RowShare
from sparkdl.exceptions import ConfigError, TaskError
from sparkdl.nn import serialize
from sparkdl.nn.embedding import embedding_variables
from sparkdl.train.trainer import Trainer
from sparkdl.tune.running.advance import Advanced, advance
from sparkdl.tune.running.journal import Rung
from sparkdl.tune.running.shared_rows import SharedRows
from sparkdl.wire import frame
from sparkdl.wire.frame import Packed, Parts
from sparkdl.wire.pieces import cut, joined

Folds = Sequence[tuple[RowShare | None, RowShare | None]]
"""For each fold the rows to train on, and those to validate on; ``None`` for all rows of a Dataset."""

POOL = "sparkdl-trial-{}"
"""Name of a trial's pool; with ``spark.scheduler.mode=FAIR`` pools share the cores in equal parts."""

_ATTEMPTS = 5  # how often a rung's job is run if Spark gives up for lost executors

_START = frame.pack({"kind": "start"})  # a job of one task reads a frame in which nothing is

_CANCELLED = "cancelled"  # in what Spark says of a job that Ctrl-C, or somebody in its UI, has ended


@dataclass(frozen=True, slots=True)
class RungTask:
    """Task that takes one trial some epochs further."""

    trainer: BytesRef  # the trial's Trainer, pickled
    state: BytesRef | None  # what the trial has left, if it has begun
    done: int  # completed epochs
    until: int  # epochs to complete
    rows: SharedRows  # to train on, or to divide into folds
    validation: Mapping[str, SharedRows]  # Datasets to validate on, by name
    folds: Folds  # what of the rows is for training and what for validation

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
        """Yield the result in pieces."""
        for _ in frames:
            pass
        state = self.state.read(once=True) if self.state is not None else None
        states: Sequence[Packed | None] = [None] * len(self.folds) if state is None else divided(state)
        pickled = self.trainer.read(once=True)
        found = []
        for (train, validate), own in zip(self.folds, states, strict=True):
            sets = {name: rows.dataset() for name, rows in self.validation.items()}
            if validate is not None:
                sets = {"val": self.rows.dataset(validate)}
            trainer = serialize.loads(pickled)
            found.append(advance(trainer, self.rows.dataset(train), sets, self.until, self.done, own))
        result = averaged(found)
        meta = {
            "kind": "advanced",
            "reports": result.reports,
            "ending": result.ending,
            "seconds": result.seconds,
        }
        arrays = {} if result.state is None else {"state": np.frombuffer(_joined(result.state), np.uint8)}
        yield from cut(0, [frame.pack(meta, arrays)])


def averaged(found: Sequence[Advanced]) -> Advanced:
    """Return the result of a trial of several folds: the mean of each value, and all states."""
    if len(found) == 1:
        return found[0]
    diverged = any(result.ending == "diverged" for result in found)
    finished = any(result.ending == "finished" for result in found)
    shared = min(len(result.reports) for result in found)
    reports = []
    for rows in zip(*(result.reports[:shared] for result in found), strict=True):
        names = [name for name in rows[0] if all(name in row for row in rows)]
        reports.append({name: float(np.mean([row[name] for row in rows])) for name in names})
    states = {
        f"{n}": np.frombuffer(_joined(r.state), np.uint8) for n, r in enumerate(found) if r.state is not None
    }
    return Advanced(
        reports,
        "diverged" if diverged else "finished" if finished else "",
        None if diverged else frame.pack({"kind": "folds"}, states),
        sum(result.seconds for result in found),
    )


def divided(state: Packed) -> list[Packed | None]:
    """Return the state of each fold."""
    found = frame.unpack(state)
    if found.meta["kind"] != "folds":
        return [state]
    return [found.arrays[f"{n}"].tobytes() for n in range(len(found.arrays))]


def _joined(state: Packed) -> bytes:
    return frame.join(state)


def pool(threads: int) -> Executor:
    """Return what runs the driver's side of so many rungs at a time."""
    return ThreadPoolExecutor(threads, thread_name_prefix="sparkdl-tune")


@dataclass(slots=True, kw_only=True)
class TaskRunner:
    """Runs each rung as a Spark job of one task."""

    access: Access  # the cluster
    trainer: Callable[[Mapping[str, Any]], Trainer]  # makes the Trainer of params
    rows: SharedRows  # to train on
    validation: Mapping[str, SharedRows]  # to validate on, by name
    folds: Folds  # see :class:`RungTask`
    broadcasts: Sequence[Any]  # those that the rows are in
    threads: Executor  # runs jobs side by side
    name: str  # begins the names of jobs in the Spark UI
    # set when the search ends, so that what was cancelled does not run again
    over: Event = field(default_factory=Event)

    def start(self, rung: Rung, state: Callable[[], bytes] | None) -> Callable[[], Advanced]:
        """See :class:`sparkdl.tune.running.search.Runner`."""
        trainer = self.trainer(rung.params)
        trainer.result = None
        pickled = serialize.dumps(trainer, f"the Trainer of trial {rung.trial}")
        return self.threads.submit(self.access.inherited(self._run), rung, pickled, state).result

    def _run(self, rung: Rung, trainer: bytes, read_state: Callable[[], bytes] | None) -> Advanced:
        access = self.access
        doing = f"training trial {rung.trial} from epoch {rung.done} to {rung.until}"
        sent = [access.send(trainer, inline=True)]
        try:
            if read_state is not None:
                sent.append(access.send(read_state(), inline=True))
            task = RungTask(
                sent[0].ref,
                sent[1].ref if len(sent) > 1 else None,
                rung.done,
                rung.until,
                self.rows,
                self.validation,
                self.folds,
            )
            broadcasts = [*self.broadcasts, *(b for published in sent for b in published.broadcasts)]
            for attempt in range(1, _ATTEMPTS + 1):
                name = f"{self.name}: trial {rung.trial}, epochs {rung.done + 1} to {rung.until}"
                try:
                    with described(access, name):
                        frames = access.collect(access.stage(access.one_task(_START), task, broadcasts))
                    return _read(next(iter(joined(frames))))
                except Exception as error:
                    if not is_job_failure(error):
                        raise
                    found = task_error(error, f"{doing}, with {dict(rung.params)!r:.300}")
                    lost = isinstance(found, TaskError) and not found.remote_traceback
                    over = self.over.is_set() or _CANCELLED in str(found) or not access.is_alive()
                    if not lost or over or attempt == _ATTEMPTS:
                        raise found from None
            raise AssertionError
        finally:
            if access.is_alive():
                for published in sent:
                    published.release()


def _read(data: Any) -> Advanced:
    found = frame.unpack(data)
    state = found.arrays.get("state")
    return Advanced(
        found.meta["reports"],
        found.meta["ending"],
        None if state is None else state.tobytes(),
        found.meta["seconds"],
    )


def check_alone(trainer: Trainer) -> None:
    """Check that a Trainer can work in one task."""
    config, keyed = trainer.config, embedding_variables(trainer.module)
    needs = {
        "exchange='driver'": config.exchange == "driver",
        f"num_shards={config.num_shards}": config.num_shards is not None,
        "drop_stragglers": config.drop_stragglers is not None,
        "elastic": config.elastic is not None,
        f"the embedding variable {next(iter(keyed), '')!r}": bool(keyed),
    }
    for option, needed in needs.items():
        if needed:
            raise ConfigError(
                f"per_trial='task': {option} is about several tasks; leave it out or take per_trial='cluster'"
            )


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

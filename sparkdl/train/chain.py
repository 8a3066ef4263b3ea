"""A group of iterations as one Spark job, a chain of stages.

Stage t of the chain is iteration t's forward-backward, preceded by the update of iteration t - 1
(:mod:`sparkdl.train.advance`)::

    tokens ─► forward 1 ══ all to all ══► update 1, forward 2 ══► ... ══► update k ─► driver

The driver schedules one job and hears of the iterations when it ends. Drizzle (Venkataraman et al., SOSP
2017, section 3.1) calls this group scheduling, and changes Spark's scheduler for it; where all stages of a
group can be told beforehand, a job of a stock Spark does the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl import frame
from sparkdl._spark import FrameJobs, JavaObject
from sparkdl.allreduce import update
from sparkdl.allreduce.update import Turn
from sparkdl.data.dataset import Store
from sparkdl.frame import Frame
from sparkdl.train.advance import Advance
from sparkdl.train.forward_backward import ForwardBackward
from sparkdl.train.replica import Start
from sparkdl.train.worker import FitRef


@dataclass(frozen=True, slots=True)
class Link:
    """One iteration of a chain.

    Attributes:
        forward: its forward-backward.
        turn: what its update is told.
    """

    forward: ForwardBackward
    turn: Turn


@dataclass(slots=True)
class Chained:
    """What a chain's job sent to the driver and left on the executors.

    Attributes:
        messages: frames for the driver.
        kept: persisted RDD of what stays with the weights, by slice.
        started: when the job began, in seconds since 1970.
        seconds: how long it took.
    """

    messages: list[Frame]
    kept: JavaObject | None
    started: float
    seconds: float


class Chain:
    """Builds and runs chains.

    Args:
        jobs: Spark access.
        fit: the fixed part of the fit, broadcast.
        keeps: whether anything stays with the weights between iterations.
        profile: resource profile of the tasks.
    """

    def __init__(self, jobs: FrameJobs, fit: FitRef, keeps: bool, profile: JavaObject | None) -> None:
        self._jobs = jobs
        self._fit = fit
        self._keeps = keeps
        self._profile = profile
        self._store: Store | None = None
        self._tokens: JavaObject | None = None

    def run(
        self, store: Store, start: Start, links: Sequence[Link], broadcasts: Sequence[Any], describe: str
    ) -> Chained:
        """Run iterations.

        Args:
            store: the partition store.
            start: the model before them.
            links: the iterations.
            broadcasts: broadcasts that their tasks read.
            describe: the job's name.
        """
        jobs, partitions = self._jobs, len(store.partitions)
        started, begin = time.time(), time.perf_counter()
        tokens = self._padded(store)
        turn: Turn | None = None
        stage = shuffled = None
        for done, link in enumerate([*links, None], start=-1):
            arriving = store.tokens if shuffled is None else jobs.zip(tokens, jobs.values(shuffled))
            forward = link.forward if link is not None else None
            task = Advance(self._fit, partitions, start, done, turn, forward, self._keeps)
            stage = jobs.stage(arriving, task, broadcasts, profile=self._profile)
            if link is not None:
                shuffled, turn = jobs.shuffle(jobs.keyed(stage), partitions), link.turn
        kept = stage if self._keeps else None
        if kept is not None:
            jobs.persist_replicated(kept)
        drop = [update.STATE] if self._keeps else []
        jobs.describe(describe)
        try:
            received = jobs.collect(jobs.select(jobs.keyed(stage), update.RESULT, drop=drop))
        except BaseException:
            if kept is not None:
                jobs.unpersist(kept)
            raise
        finally:
            jobs.describe(None)
            jobs.release_shuffle(shuffled)
        messages = [frame.unpack(data) for data in received]
        return Chained(messages, kept, started, time.perf_counter() - begin)

    def forget(self, store: Store, partition: int) -> None:
        """Forget where a partition is, since its files are not there."""
        for rdd in (store.tokens, self._padded(store)):
            self._jobs.drop_block(rdd.id(), partition)

    def _padded(self, store: Store) -> JavaObject:
        """Return the tokens, each followed by as many empty frames as a chain's stage is to read.

        What arrives at a stage is zipped with them, by which its tasks run where their rows are.
        """
        if self._store is not store:
            self.release()
            pad = _Pad(2 * len(store.partitions))
            self._store, self._tokens = store, self._jobs.stage(store.tokens, pad, profile=self._profile)
            self._jobs.persist(self._tokens)
        return self._tokens

    def release(self) -> None:
        """Delete what is on the executors for the store."""
        if self._tokens is not None:
            self._jobs.unpersist(self._tokens)
            self._store = self._tokens = None


@dataclass(frozen=True, slots=True)
class _Pad:
    """Task that appends empty frames to a token."""

    frames: int

    def __call__(self, _: int, tokens: Iterator[bytes]) -> Iterator[bytes]:
        """Yield them."""
        yield from tokens
        yield from [b""] * (self.frames - 1)

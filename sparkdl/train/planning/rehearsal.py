"""A rehearsal: short fits on a sample, from which a plan is made.

One rank alone, with a few numbers of rows, tells what rows cost in time and memory. All executors together
tell what exchanging costs. Fits of single-step jobs tell what a job costs.
"""

from __future__ import annotations

import logging
import re
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdl.allreduce.choose import Wanted
from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import ConfigError, TaskError
from sparkdl.train.history import History
from sparkdl.train.hooks.base import Hook
from sparkdl.train.leaving import ErrorsCarryResult
from sparkdl.train.options.triggers import MaxIteration
from sparkdl.train.planning.costs import Kind
from sparkdl.train.planning.model import FitTimes, Rehearsal
from sparkdl.train.planning.probe import MemoryWatch
from sparkdl.train.result import FitResult
from sparkdl.train.shipped import threads_per_task

if TYPE_CHECKING:
    from sparkdl.train.trainer import Trainer

_log = logging.getLogger("sparkdl")
_GROUPS = 4  # jobs of a fit, of which the first warms up
_PILOT = 4
_PILOT_GROUP = 10
_SHORT = 0.5  # seconds of a job of one step from which on there is no need to look closer
_MOST_STEPS = 2000
_SINGLES = 10
SAMPLE_STEPS = 8
"""A sample has rows for so many steps: shorter epochs would have other partitions' rows too often."""
_ONE_MACHINE = re.compile(r"local-cluster\[.*")
_WORK = ("weights_in", "data", "compute", "gradient_out")


@dataclass(slots=True)
class Stage:
    """Short fits on samples of a Dataset.

    Hooks, validation and schedule are left out: they are not part of a step, and hooks may write files.
    """

    trainer: Trainer
    data: Dataset
    wanted: Wanted
    seconds: float
    tell: Callable[[str], None]
    _each: float = 0.0  # seconds of a step, as the last pilot found
    _row_bytes: float = 0.0
    _state_bytes: int = 0
    _host_cores: int = 0

    def rehearse(self, compare: bool, kinds: Collection[Kind]) -> Rehearsal:
        """Return what the fits of a plan have taken; ``compare`` is for all exchanges and transports."""
        access, batch = self.data.access, self.trainer.config.batch_size
        there = access.executors()
        most = there.count if there.count > 1 else min(2, there.tasks)
        most = min(most, batch)
        rows = SAMPLE_STEPS * self.trainer.config.rows_per_iteration(batch, 0)
        shares = sorted({max(1, batch // (4 * most)), max(1, batch // most), min(batch, 2 * batch // most)})
        job, together, halved = 0.0, list[FitTimes](), None
        with self.sample(rows, 1) as sample:
            self.pilot(sample, shares[0])
            alone = [self.fit(sample, share, f"1 rank, batches of {share}") for share in shares]
            if most == 1:
                job = self.job(sample, alone[-1], shares[-1], {})
        if most > 1:
            with self.sample(rows, most) as sample:
                self.pilot(sample, batch)
                for name, options in self._candidates(most, compare, kinds):
                    together += self._tried(sample, batch, f"{most} ranks, {name}", options)
                first = self._candidates(most, False, ())[0][1]
                job = self.job(sample, together[0], batch, first)
        if there.count > 1 and there.tasks > 1 and batch >= 2 * there.count:
            with self.sample(rows, 2 * there.count) as sample:
                halved = self.fit(sample, batch, f"{2 * there.count} ranks with half the cores")
        return Rehearsal(
            alone=alone,
            together=together,
            halved=halved,
            job=job,
            nbytes=self.wanted.layout.nbytes,
            state_bytes=self._state_bytes,
            row_bytes=self._row_bytes,
            executors=there.count,
            cores=there.cores,
            host_cores=self._host_cores or there.cores,
            one_host=_ONE_MACHINE.match(access.conf("spark.master")) is not None,
            sample_rows=rows,
            iterations_per_job=self.trainer.config.iterations_per_job,
        )

    def _candidates(
        self, ranks: int, compare: bool, kinds: Collection[Kind]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return exchanges and transports to try; the first is that of the options."""
        own = self.wanted.choose(self.data.access, ranks)
        found: list[tuple[str, dict[str, Any]]] = [(own, {})]
        if own == "driver":
            return found
        other = "sharded" if own == "replicated" else "replicated"
        free = self.trainer.config.exchange == "auto" and not self.wanted.keyed
        if other in kinds or (compare and free):
            found.append((other, {"exchange": other}))
        if compare and self.wanted.exchanges_directly(self.data.access, own):
            found.append((f"{own} by shuffles", {"transport": "shuffle"}))
        return found

    @contextmanager
    def sample(self, rows: int, ranks: int) -> Iterator[Dataset]:
        """Make a Dataset of the first rows for as long as the block runs."""
        self.tell(f"building a sample of {rows} rows in {ranks} partition{'s' * (ranks > 1)}")
        with self.data.sample(rows, ranks) as sample:
            tokens = sample.store().partitions
            self._row_bytes = sum(token.nbytes for token in tokens) / sum(token.rows for token in tokens)
            yield sample

    def pilot(self, sample: Dataset, batch: int) -> None:
        """Let processes and JVM warm up, and find how long a step takes."""
        history, _ = self.run(sample, batch, _PILOT, {"iterations_per_job": 1})
        self._each = min(history.column("seconds")[1:] or history.column("seconds"))
        if self._each < _SHORT:  # most of it is the job
            history, _ = self.run(sample, batch, 2 * _PILOT_GROUP, {"iterations_per_job": _PILOT_GROUP})
            self._each = statistics.fmean(history.column("seconds")[_PILOT_GROUP:])

    def _tried(self, sample: Dataset, batch: int, name: str, options: dict[str, Any]) -> list[FitTimes]:
        """Return a fit; nothing if these options do not suit model or session."""
        if not options:
            return [self.fit(sample, batch, name)]
        try:
            return [self.fit(sample, batch, name, **options)]
        except (ConfigError, TaskError) as error:
            _log.info("%s was not measured: %s", name, error)
            return []

    def fit(
        self, sample: Dataset, batch: int, name: str, hooks: Sequence[Hook] = (), **options: Any
    ) -> FitTimes:
        """Return how long the steps of a short fit take, and how much memory."""
        self.tell(name)
        count = max(_GROUPS, min(int(self.seconds / self._each), _MOST_STEPS))
        group = count // _GROUPS
        history, watch = self.run(
            sample, batch, _GROUPS * group, {"iterations_per_job": group, **options}, hooks
        )
        seconds = history.column("seconds")
        each = [statistics.fmean(seconds[n * group : (n + 1) * group]) for n in range(1, _GROUPS)]
        self._each = statistics.median(each)
        ranks = len(sample.store().partitions)
        work = sum(statistics.fmean(history.column(f"phases.{name}")[group:]) for name in _WORK)
        direct = statistics.fmean(history.column("direct")) > 0.5
        exchange: Any = options.get("exchange") or self.wanted.choose(self.data.access, ranks)
        self._state_bytes = max(self._state_bytes, max(history.column("bytes.state")))
        self._host_cores = min((found.cores for found in watch.executors), default=0)
        return FitTimes(
            ranks=ranks,
            rows=statistics.fmean(history.column("samples")) / ranks,
            threads=threads_per_task(sample.store().executors, ranks),
            exchange=exchange,
            transport="direct" if direct else "shuffle",
            group=group,
            seconds=self._each,
            work=work,
            noise=(max(each) - min(each)) / 2 / self._each,
            python_bytes=max((found.python_bytes for found in watch.executors), default=0),
            jvm_bytes=max((found.jvm_bytes for found in watch.executors), default=0),
            group_seconds=self.wanted.plan(exchange, ranks, 0, directly=direct).traits.group_seconds,
        )

    def job(self, sample: Dataset, known: FitTimes, batch: int, options: dict[str, Any]) -> float:
        """Return the seconds of a job beyond those of its steps, by jobs of one step."""
        if known.group == 1 or known.exchange == "driver":
            return 0.0
        self.tell("jobs of one step")
        history, _ = self.run(sample, batch, _SINGLES, {"iterations_per_job": 1, **options})
        single = statistics.median(history.column("seconds")[_SINGLES // 2 :])
        return float(max(0.0, (single - known.seconds) / (1 - 1 / known.group)))

    def run(
        self, sample: Dataset, batch: int, steps: int, options: dict[str, Any], hooks: Sequence[Hook] = ()
    ) -> tuple[History, MemoryWatch]:
        """Train for so many steps with other options; return the history and the executors' memory."""
        config = self.trainer.config
        watch = MemoryWatch(tuple(pattern for hook in config.hooks for pattern in hook.unfreezes))
        if config.exchange == "driver" or options.get("exchange") == "driver" or config.drop_stragglers:
            options = {**options, "iterations_per_job": None}
        trainer = self.trainer.with_options(
            batch_size=batch,
            hooks=[watch, *hooks],
            end_when=MaxIteration(steps),
            progress=False,
            timeline=None,
            elastic=None,
            schedule=None,
            metrics=None,
            monitor=None,
            **options,
        )
        with ErrorsCarryResult() as carrier:  # not fit(): it may have been asked to rehearse, too
            result: FitResult = trainer._fit(sample, None, False, "same", carrier)
        return result.history, watch

"""The Tuner: checks first, then the rows where trials need them, then the search."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from optuna.pruners import BasePruner
from torch import nn

from sparkdl.compute.worker import MOST_FITS
from sparkdl.data.columns import ColumnLike, Columns
from sparkdl.data.dataset import Dataset
from sparkdl.data.given import Chosen, datasets_of, folds_of, share_of
from sparkdl.exceptions import ConfigError, SparkdlWarning, integer_option, is_number
from sparkdl.metrics import LOSS
from sparkdl.nn.objective import LossObjective, Objective
from sparkdl.saved.digest import class_and_digest, label_of, stable_digest
from sparkdl.train.interrupt import interruptible
from sparkdl.train.passes.validation import validation_sets
from sparkdl.train.trainer import Trainer
from sparkdl.tune.loggers import TrialLogger
from sparkdl.tune.result import BestTrial, SearchResult
from sparkdl.tune.running.described import describe_datasets, describe_trainer
from sparkdl.tune.running.journal import Journal
from sparkdl.tune.running.runners import ClusterRunner, Folds, TaskRunner, check_alone, pool
from sparkdl.tune.running.search import Runner, Search
from sparkdl.tune.running.shared_rows import shared
from sparkdl.tune.running.watch import Retried, SearchWatch
from sparkdl.tune.sampling import Asker, sampler_of
from sparkdl.tune.schedulers.moves import Outline, Scheduler
from sparkdl.tune.schedulers.stopping import FIFO, Pruned
from sparkdl.tune.shown import SearchProgress
from sparkdl.tune.space import Space
from sparkdl.tune.trial import Catch, caught_classes

Train = Callable[[dict[str, Any]], Trainer]
"""From params to a Trainer; called on the driver."""

_TRIALS, _CONCURRENT = 32, 4
_building = threading.Lock()  # torch's generator belongs to all threads


class Tuner:
    """Searches params of a training by short Spark jobs.

    Each trial is a :class:`Trainer` that ``train`` makes of its params. It trains by *rungs* of some epochs;
    a rung is one Spark job, and its result is the trial's whole state, so a lost executor costs a rung. The
    same seed, space and rows give the same trials and the same winner, whatever is lost and how many
    executors there are.

    Args:
        train: from a dict of params to a Trainer; called on the driver with torch's generator seeded by
            ``seed``, so modules begin alike. ``end_when`` of the Trainer is not asked: the search decides how
            far trials go. Its hooks run where the trial does; one that stops the run ends the trial, with the
            weights that it has: no rung goes back to better ones, as ``EarlyStopping`` does.
        space: by name a distribution such as ``tune.loguniform(1e-4, 1e-1)``, a list of values, or a
            constant.
        metric: by which trials are compared: ``"loss"``, the training loss of an epoch, or a validation score
            by set and metric, such as ``"val/accuracy"``.
        mode: ``"max"`` or ``"min"``; only a metric that ends in ``loss`` needs none.
        search: ``"tpe"``, ``"random"``, ``"grid"``, ``"cmaes"``, ``"qmc"``, ``"gp"``, or a sampler of Optuna.
        scheduler: how far trials go: :class:`ASHA`, :class:`SuccessiveHalving`, :class:`Hyperband`,
            :class:`MedianStopping`, :class:`PBT`, a pruner of Optuna, or :class:`FIFO`, the default: each
            trial gets all epochs.
        first: params of the first trials; what a dict leaves out is drawn.
        trials: how many; what the scheduler or the grid asks for by default, or 32.
        max_epochs: most epochs of a trial.
        budget: most epochs of all trials together.
        timeout: seconds after which no further rung begins; the winner depends on the machine then.
        refit: if a fit with the best params follows which is to be over by then, too: how long it takes, in
            multiples of the seconds that the best trial has trained.
        concurrent: how many rungs run at a time; 4 by default, with ``per_trial="cluster"`` 1. The order of
            decisions depends on it, so it is no property of the cluster: more than there are cores is fine,
            they wait.
        per_trial: ``"task"`` for one task of one core each: many small models at once, on rows of which each
            executor has one copy; ``"cluster"`` for distributed fits. Of these, several at a time have a pool
            each, and share the cores if Spark's scheduler is fair (``spark.scheduler.mode``).
        seed: of sampler, scheduler, folds and modules.
        catch: classes of exceptions over which the search goes on, as of ``optimize`` in Optuna. The trial
            has the status ``"failed"`` and the text as ``error``; its rung counts for ``budget``. Errors of
            module and loss arrive as :class:`ModelError`, others of a task as :class:`TaskError`.
        folder: where the search is kept on the driver's machine, to be resumed; by default it is not. The
            next driver of ``sparkdl submit --retries`` goes on with it by itself.
        storage: an Optuna storage or its URL, which gets all trials, for dashboards.
        name: of the search.
        loggers: such as :class:`TensorBoardHParams` and :class:`MLflowTrials`.
        progress: whether to show a table of trials.

    Attributes:
        result: of the last ``fit``, also of one that failed; ``None`` before.

    Raises:
        ConfigError: if an option cannot work.
    """

    def __init__(
        self,
        train: Train,
        space: Mapping[str, Any],
        *,
        metric: str = "loss",
        mode: Literal["max", "min"] | None = None,
        search: Any = "tpe",
        scheduler: Scheduler | BasePruner | None = None,
        first: Sequence[Mapping[str, Any]] = (),
        trials: int | None = None,
        max_epochs: int = 10,
        budget: int | None = None,
        timeout: float | None = None,
        refit: float = 0.0,
        concurrent: int | None = None,
        per_trial: Literal["task", "cluster"] = "task",
        seed: int = 0,
        catch: Catch = (),
        folder: str | os.PathLike[str] | None = None,
        storage: Any = None,
        name: str = "search",
        loggers: Sequence[TrialLogger] = (),
        progress: bool = True,
    ) -> None:
        if not callable(train) or isinstance(train, type):
            raise ConfigError(f"train={train!r:.100}: expected a function from a dict of params to a Trainer")
        self._train = train
        self.space = Space(space)
        if not isinstance(metric, str) or not metric:
            raise ConfigError(f"metric={metric!r:.100}: expected a name such as 'val/accuracy'")
        if mode is None and metric.endswith("loss"):
            mode = "min"
        if mode not in ("max", "min"):
            raise ConfigError(
                f"mode={mode!r:.100}: say whether larger values of {metric!r} are better: 'max' or 'min'"
            )
        if per_trial not in ("task", "cluster"):
            raise ConfigError(f"per_trial={per_trial!r:.100}: expected 'task' or 'cluster'")
        for option, value in (("trials", trials), ("budget", budget)):
            if value is not None:
                integer_option("Tuner", option, value, 1)
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise ConfigError(f"timeout={timeout!r:.100}: expected a positive number of seconds, or None")
        if not is_number(refit) or not refit >= 0:
            raise ConfigError(f"refit={refit!r:.100}: expected a number from 0")
        self.metric, self.mode = metric, mode
        self.max_epochs = integer_option("Tuner", "max_epochs", max_epochs, 1)
        if concurrent is None:
            concurrent = 1 if per_trial == "cluster" else _CONCURRENT
        self.concurrent = integer_option("Tuner", "concurrent", concurrent, 1)
        if per_trial == "cluster" and self.concurrent > MOST_FITS:
            raise ConfigError(
                f"concurrent={self.concurrent}: expected at most {MOST_FITS} distributed fits at a time"
            )
        self.seed = integer_option("Tuner", "seed", seed, 0)
        self.budget, self.timeout, self.refit = budget, timeout, refit
        self.first = [self.space.named(params) for params in first]
        self.per_trial, self.catch = per_trial, caught_classes(catch)
        self.folder, self.storage, self.name = folder, storage, name
        self.loggers, self.progress = list(loggers), progress
        self._search = search
        sampler_of(search, self.space, seed)  # one that cannot be is told now
        if isinstance(scheduler, BasePruner):
            scheduler = Pruned(scheduler)
        if scheduler is not None and not isinstance(scheduler, Scheduler):
            raise ConfigError(
                f"scheduler={scheduler!r:.100}: expected one such as ASHA(), or a pruner of Optuna"
            )
        self.scheduler: Scheduler = scheduler or FIFO()
        self._trials = trials
        self._losses: dict[str, str] = {}
        self._rows: int | None = None  # of a table, see `BestTrial`
        self.result: SearchResult | None = None

    def fit(
        self,
        data: Any,
        validation: Any = None,
        *,
        features: Columns | None = None,
        label: Columns | None = None,
        weight: ColumnLike | None = None,
        folds: int | None = None,
        resume: bool = False,
    ) -> SearchResult:
        """Search until nothing is left to do, budget or time are spent, or Ctrl-C is pressed.

        Args:
            data: rows to train on: a :class:`Dataset`, or a DataFrame of Spark or pandas.
            validation: rows to validate on, or several sets by name; or the share of ``data`` that is kept
                for that, such as ``0.2``.
            features: columns of a DataFrame, as in :meth:`Dataset.from_dataframe`.
            label: likewise.
            weight: likewise.
            folds: cross-validation: each trial trains so many models, on all rows but those of a fold, which
                validate it; its values are their means. Without ``validation``.
            resume: whether to go on with the search in ``folder``, if there is one. Rungs that have run are
                not run again, and the search ends as if it had never stopped. Space, rows, losses and
                options of Trainers must be the same; lambdas and closures are compared by their position
                alone, and rows' values only with equal partitions.

        Returns:
            All trials, and the best.

        Raises:
            ConfigError: if an option does not fit the data, another program searches in ``folder``, or the
                search there was another one.
            ModelError: if a trial's module cannot process the rows.
            TaskError: if a task keeps failing.

        Every exception that leaves a search has a ``result``: what was found until then. One of a trial has
        a note with the trial's number and params.
        """
        retried = Retried(self.folder)
        resume = resume or retried.resumes()
        if resume and self.folder is None:
            raise ConfigError("resume=True: folder= must say where the search is kept", code="config-resume")
        share = validation if isinstance(validation, float) and isinstance(data, Dataset) else None
        if folds is not None:
            integer_option("fit", "folds", folds, 2)
            if validation is not None:
                raise ConfigError("folds and validation are both given; the folds validate each other")
        others = validation if share is None else None
        chosen = Chosen(features, label, weight)
        with datasets_of(data, others, chosen, self.seed) as (dataset, given, _):
            sets = validation_sets(given)
            self._check_metric([*sets, *(["val"] if folds or share is not None else [])])
            divided: Folds = [(None, None)]
            if folds is not None:
                divided = folds_of(folds, self.seed)
            elif share is not None:
                divided = [share_of(share, self.seed)]
            return self._run(dataset, sets, divided, resume, retried)

    def _check_metric(self, sets: Sequence[str]) -> None:
        name, slash, _ = self.metric.partition("/")
        if self.metric != "loss" and (not slash or name not in sets):
            known = ", ".join(f"'{found}/...'" for found in sets)
            more = f", or a score of a validation set: {known}" if known else "; there are no validation rows"
            raise ConfigError(f"metric={self.metric!r}: expected 'loss'{more}")

    def trainer(self, params: Mapping[str, Any]) -> Trainer:
        """Return the Trainer of some params, as trials get it.

        Args:
            params: of a trial, with the texts of objects in lists or the objects themselves.

        Raises:
            ConfigError: if ``train`` returns something else, or the Trainer cannot work in one task.
        """
        found = self._made(self.space.chosen(params))
        if not isinstance(found, Trainer):
            raise ConfigError(f"train returned a {type(found).__name__}; expected a sparkdl.Trainer")
        if self.per_trial == "task":
            check_alone(found)
        self._compare_loss(found.objective)
        return found

    def _compare_loss(self, objective: Objective) -> None:
        """Warn once if trials have several losses, and are compared by them."""
        if self.metric.rpartition("/")[2] != LOSS or not isinstance(objective, LossObjective):
            return
        digest = stable_digest(objective.loss)
        if digest is None or digest in self._losses:
            return
        self._losses[digest] = label_of(objective.loss)
        if len(self._losses) == 2:
            losses = " and ".join(self._losses.values())
            warnings.warn(
                SparkdlWarning(
                    f"metric={self.metric!r}: trials have different losses, {losses}, whose values say "
                    "nothing about each other; compare by one of the Trainer's metrics=",
                    code="config",
                ),
                stacklevel=2,
            )

    def _run(
        self, data: Dataset, sets: Mapping[str, Dataset], divided: Folds, resume: bool, retried: Retried
    ) -> SearchResult:
        data.access.check()
        sampler, sign = sampler_of(self._search, self.space, self.seed), 1 if self.mode == "max" else -1
        shown = {"storage": self.storage, "name": self.name, "sign": sign}
        asker = Asker(self.space, sampler, **shown, resume=resume, first=self.first)
        count = self._trials or asker.count or self.scheduler.trials(self.max_epochs) or _TRIALS
        count = min(count, asker.count or count)
        self.scheduler.begin(Outline(count, self.max_epochs, self.space, self.seed, sign))
        setting = self._setting(count, data, divided)
        before = {**setting, "space": self.space.describe_before()}
        if self.folder is not None:
            setting |= describe_datasets(data, sets, self.per_trial == "cluster")
        self._losses.clear()
        retried.begun()
        with ExitStack() as stack:
            journal = stack.enter_context(Journal(self.folder, setting, resume, before))
            runner = stack.enter_context(self._runner(data, sets, divided))
            interrupted = stack.enter_context(interruptible("the rungs that run"))
            watch = SearchWatch(
                interrupted=interrupted,
                timeout=self.timeout,
                refit=self.refit,
                retried=retried,
                loggers=self.loggers,
                progress=SearchProgress(self.metric, self.mode, self.name) if self.progress else None,
            )
            search = Search(
                asker=asker,
                scheduler=self.scheduler,
                runner=runner,
                journal=journal,
                metric=self.metric,
                sign=sign,
                count=count,
                max_epochs=self.max_epochs,
                budget=self.budget,
                concurrent=self.concurrent,
                stop=watch.stop,
                on_rung=lambda trial, ended: watch.rung(search, trial, ended),
                passes=lambda error: isinstance(error, self.catch) and data.access.is_alive(),
                describe=lambda params: describe_trainer(self.trainer(params)) if journal.is_kept else {},
            )
            for logger in self.loggers:
                logger.begin(self.name, self.metric, setting)
            stopped_by = "error"
            try:
                stopped_by = search.run()
                retried.finished()
            except BaseException as error:
                stopped_by = "interrupt" if isinstance(error, KeyboardInterrupt) else "error"
                self.result = self._result(search, journal, stopped_by)
                error.result = self.result  # type: ignore[attr-defined]
                raise
            finally:
                watch.close(search, stopped_by)
            self.result = self._result(search, journal, stopped_by)
            return self.result

    @contextmanager
    def _runner(self, data: Dataset, sets: Mapping[str, Dataset], divided: Folds) -> Iterator[Runner]:
        """Bring rows where trials need them, and return what runs rungs."""
        if self.per_trial == "cluster":
            with ExitStack() as stack:
                shares = [one for fold in divided for one in fold if one is not None]
                of = {one: stack.enter_context(data.part(one)) for one in shares}
                folds = [
                    (data if train is None else of[train], None if held is None else of[held])
                    for train, held in divided
                ]
                several = self.concurrent > 1
                threads = stack.enter_context(pool(self.concurrent)) if several else None
                over = threading.Event()
                stack.callback(over.set)
                yield ClusterRunner(
                    trainer=self.trainer, folds=folds, validation=sets, threads=threads, over=over
                )
            return
        with ExitStack() as stack:
            parts = {train for train, _ in divided} | {held for _, held in divided if held is not None}
            rows, broadcasts = stack.enter_context(shared(data, parts))
            others = {}
            for name, found in sets.items():
                others[name], more = stack.enter_context(shared(found, [None]))
                broadcasts = [*broadcasts, *more]
            threads = stack.enter_context(pool(self.concurrent))
            runner = TaskRunner(
                access=data.access,
                trainer=self.trainer,
                rows=rows,
                validation=others,
                folds=divided,
                broadcasts=broadcasts,
                threads=threads,
                name=f"sparkdl tune {self.name}",
            )
            try:
                yield runner
            finally:
                runner.over.set()

    def _setting(self, count: int, data: Dataset, divided: Folds) -> dict[str, Any]:
        """Return what must be the same for a search to go on."""
        search = self._search if isinstance(self._search, str) else class_and_digest(self._search)
        return {
            **({"first": self.first} if self.first else {}),
            "space": self.space.describe(),
            "metric": self.metric,
            "mode": self.mode,
            "search": search,
            "scheduler": self.scheduler.describe(),
            "trials": count,
            "max_epochs": self.max_epochs,
            "concurrent": self.concurrent,
            "per_trial": self.per_trial,
            "seed": self.seed,
            "folds": repr(list(divided)),
            "rows": len(data),
        }

    def _result(self, search: Search, journal: Journal, stopped_by: str) -> SearchResult:
        best, found = search.best, None
        if best is not None:
            copies = search.trials[best.trial].copies
            found = BestTrial(
                best.trial,
                self.space.chosen(best.params),
                best.epoch,
                search.sign * best.value,
                tuple(copies),
                self._rows,
            )
        return SearchResult(
            best=found,
            trials=search.trials,
            metric=self.metric,
            mode=self.mode,
            stopped_by=stopped_by,
            epochs=search.spent,
            rungs=search.rungs,
            replayed=min(journal.replayed, search.rungs),
            logarithmic=self.space.logarithmic,
            _state=journal.state(best.rung) if best is not None else None,
            _module=self._module,
        )

    def _module(self, params: Mapping[str, Any]) -> nn.Module:
        return self._made(params).module

    def _made(self, params: Mapping[str, Any]) -> Trainer:
        with _building, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self._train(dict(params))

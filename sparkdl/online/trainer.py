"""Learning from a stream: score a batch, train on it, commit it once, publish now and then."""

from __future__ import annotations

import copy
import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path as LocalPath
from typing import Any

from pyspark.sql import DataFrame
from torch import nn

from sparkdl import redaction
from sparkdl.access import models_in
from sparkdl.data.columns import ColumnLike, Columns
from sparkdl.data.dataset import Dataset
from sparkdl.data.given import Chosen, check_none_chosen
from sparkdl.data.schema import check_dataframe, is_frame, is_pandas, plan_dataframe
from sparkdl.exceptions import ConfigError, DataError, integer_option
from sparkdl.online.absent import explained
from sparkdl.online.commit import Commit, Ledger, begun, continued, ledger_of
from sparkdl.online.publisher import Publisher
from sparkdl.online.query import OnlineQuery
from sparkdl.saved.identity import Identity, identity_of
from sparkdl.train.checkpoint import CheckpointFolder, Path, latest, load_weights, read_point
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.checkpoint.store import CheckpointStore, join
from sparkdl.train.hooks.checkpoint import Checkpoint
from sparkdl.train.options.triggers import MaxEpoch, Trigger, trigger_option
from sparkdl.train.trainer import Trainer

_log = logging.getLogger("sparkdl")

Score = Callable[[nn.Module, Any], Mapping[str, float]]
"""From a module and the rows of a batch, which it has not seen, to scores by name."""

Mix = Callable[[Any, int], Any]
"""From the rows of a batch, and its number, to the rows to train on."""


class OnlineTrainer:
    """Learns from the batches of a stream, each exactly once.

    For each batch it scores the rows with the weights as they are (*prequential* scores: the model has not
    seen these rows), trains on them, and writes a checkpoint with the number of the batch. If the program
    dies before the checkpoint is there, the batch comes again and begins with the checkpoint before it; if it
    dies later, the batch is recognised and passed over. So a stream that died ends with the bits of one that
    did not, if Spark has divided the rows into the same batches: it lists new files before it fixes which of
    them are a batch.

    Args:
        trainer: module, loss, optimizer and options; its metrics are the prequential scores. If it
            has been fitted, the stream begins with these weights. Its Checkpoint hooks are left out.
        folder: for checkpoints and Spark's progress; one stream's own. Start with the same folder to go on.
        per_batch: when training on a batch ends, counted from its beginning (``MaxEpoch(1)``).
        publisher: writes versions for those who serve the model.
        begin: a checkpoint, or a folder of them, to begin with when ``folder`` has none yet: with the
            optimizer's state, schedule and counters, which weights alone have not. Batches that another
            OnlineTrainer has learned there are not in the history; those of a stream with an id do not come
            again.
        score: ``score(module, rows)`` returns scores of the rows of a batch by name, in place of loss and
            metrics; rows are what :meth:`learn` was given.
        mix: ``mix(rows, number)`` returns what to train on in place of a batch's rows: with a sample of
            earlier ones, say. Draw by the batch's number: if it comes again it must get the same rows.
        keep: checkpoints to keep, the newest; those of versions that the publisher keeps stay as well.
        history: of how many of the last batches and iterations checkpoints keep the history.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        *,
        per_batch: Trigger | None = None,
        publisher: Publisher | None = None,
        begin: Path | None = None,
        score: Score | None = None,
        mix: Mix | None = None,
        keep: int = 3,
        history: int = 1000,
    ) -> None:
        if not isinstance(trainer, Trainer):
            raise ConfigError(f"OnlineTrainer(trainer={trainer!r:.100}): expected a sparkdl.Trainer")
        if publisher is not None and not isinstance(publisher, Publisher):
            raise ConfigError(f"OnlineTrainer(publisher={publisher!r:.100}): expected a Publisher(path)")
        if score is not None and not callable(score):
            raise ConfigError(f"OnlineTrainer(score={score!r:.100}): expected a callable score(module, rows)")
        if mix is not None and not callable(mix):
            raise ConfigError(f"OnlineTrainer(mix={mix!r:.100}): expected a callable mix(rows, number)")
        self.publisher = publisher
        self._keep = integer_option("OnlineTrainer", "keep", keep, 1)
        self._history = integer_option("OnlineTrainer", "history", history, 1)
        self._store = CheckpointStore(folder)
        self._commits = self._store.outside(join(self._store.root, "commits"))
        self._commit = Commit(self._commits)
        self._begin, self._given_score, self._mix = begin, score, mix
        fitted = trainer.result.module if trainer.result is not None else None
        self._trainer = trainer.with_options(
            module=fitted,
            end_when=trigger_option("OnlineTrainer", per_batch or MaxEpoch(1)),
            hooks=[*(h for h in trainer.config.hooks if not isinstance(h, Checkpoint)), self._commit],
        )
        self._busy = threading.RLock()
        self._checked = False
        self._loaded: tuple[str | None, nn.Module] | None = None
        self._own: Identity | None = None  # of the last commit of this program

    # -- the stream ---------------------------------------------------------------------------

    def start(
        self,
        stream: DataFrame,
        *,
        features: Columns,
        label: Columns | None = None,
        weight: ColumnLike | None = None,
        trigger: Mapping[str, Any] | None = None,
        progress: str | None = None,
        **options: Any,
    ) -> OnlineQuery:
        """Start to learn from a streaming DataFrame, or to go on with it.

        Args:
            stream: the rows, in a classic session. Duplicates and late rows are its business:
                ``withWatermark`` and ``dropDuplicates``.
            features: columns, as in :meth:`sparkdl.Dataset.from_dataframe`.
            label: likewise, for the loss.
            weight: likewise, for sample weights.
            trigger: when batches begin, as Spark has it: ``{"processingTime": "10 seconds"}``, or
                ``{"availableNow": True}`` for what is there already.
            progress: Spark's ``checkpointLocation``, in ``folder`` by default.
            **options: ``num_partitions``, ``transform`` and ``collate`` of
                :meth:`sparkdl.Dataset.from_dataframe`. The bits depend on the number of partitions: give one
                if executors come and go.

        Raises:
            DataError: if it is no stream, or naming the column that is missing or cannot become a tensor.
            ConfigError: if the session is one of Spark Connect.
            TypeError: if there is no such option.
        """
        check_dataframe(stream, "OnlineTrainer.start")
        if not models_in(stream.sparkSession).runs_batches:
            raise ConfigError(
                "OnlineTrainer.start: Spark Connect runs foreachBatch in the server, without this program; "
                "use a classic session",
                code="config-connect",
            )
        if not stream.isStreaming:
            raise DataError(
                "OnlineTrainer.start: the DataFrame has an end, expected one of spark.readStream; train on "
                "it with Trainer.fit",
                code="data-source",
            )
        plan_dataframe(stream, features, label, weight)
        dataset = partial(Dataset.from_dataframe, features=features, label=label, weight=weight, **options)
        # An option that there is not is told before any batch comes.
        inspect.signature(Dataset.from_dataframe).bind(stream, **dataset.keywords)

        def batch(rows: DataFrame, number: int) -> None:
            self._learn(rows, dataset, number, _query_of(rows))

        where = progress or join(self._store.root, "stream")
        if progress is None:
            # Spark takes a plain path for one of its default file system.
            where = LocalPath(where).absolute().as_uri() if self._store.local else self._store.outside(where)
        writer = stream.writeStream.option("checkpointLocation", where).foreachBatch(batch)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        return OnlineQuery(writer.start(), self)

    def learn(
        self,
        rows: Any,
        batch: int,
        *,
        stream: str = "",
        features: Columns | None = None,
        label: Columns | None = None,
        weight: ColumnLike | None = None,
        **options: Any,
    ) -> bool:
        """Score, learn and commit one batch, as :meth:`start` does with each: for ``foreachBatch`` of yours.

        Args:
            rows: the batch: a Dataset, which has its columns and options; or a DataFrame, with those of
                :meth:`start`.
            batch: its number; later batches have larger ones. One with a smaller number than the last is
                passed over, with a warning.
            stream: whose number it is.
            features: columns of a DataFrame.
            label: likewise.
            weight: likewise.
            **options: likewise.

        Returns:
            Whether the batch was learned: not if that was done already, or it has no rows.

        Raises:
            SparkdlError: as of :meth:`sparkdl.Trainer.fit`; the batch is to come again then.
        """
        if isinstance(rows, Dataset):
            check_none_chosen(Chosen(features, label, weight), options)
            return self._learn(rows, nullcontext, batch, stream)
        if features is None:
            raise ConfigError("features=None: a DataFrame needs the names of its columns")
        dataset = partial(Dataset.from_dataframe, features=features, label=label, weight=weight, **options)
        return self._learn(rows, dataset, batch, stream)

    # -- what was learned ---------------------------------------------------------------------

    @property
    def history(self) -> list[dict[str, Any]]:
        """A dict for each of the last batches: ``batch``, ``rows``, ``iteration``, prequential scores."""
        return self._ledger().rows()

    def scores(self, last: int | None = None) -> dict[str, float]:
        """Return the mean of each prequential score, weighted by rows.

        Args:
            last: over how many of the last batches, at most ``history``; by default all of the stream.

        Raises:
            ConfigError: if ``last`` is no count.
        """
        if last is not None:
            integer_option("scores", "last", last, 1)
        return self._ledger().mean(last)

    @property
    def module(self) -> nn.Module:
        """A copy of the module with the weights of the last commit."""
        with self._busy:
            return copy.deepcopy(self._module(latest(self._commits)))

    def publish(self) -> str:
        """Publish the last commit now; return the version's path.

        Raises:
            ConfigError: if there is no publisher, or nothing was learned yet.
        """
        with self._busy:
            newest = latest(self._commits)
            if self.publisher is None:
                raise ConfigError("publish: OnlineTrainer(publisher=None): give it a Publisher(path)")
            if newest is None:
                raise ConfigError("publish: no batch was learned yet, there is nothing to publish")
            return self._publish(self.publisher, newest, ledger_of(read_point(newest)))

    def rollback(self, iteration: int, *, training: bool = True) -> None:
        """Serve an older version again, and go on learning from it; what came after it is deleted.

        Batches after it were learned by weights that are no longer wanted; they do not come again. Stop the
        stream before.

        Args:
            iteration: of a version, see :meth:`Publisher.versions`.
            training: whether to go on from it as well; ``False`` serves it until the next version is due.

        Raises:
            ConfigError: if there is no such version, or no checkpoint of its iteration.
        """
        with self._busy:
            if self.publisher is None:
                raise ConfigError("OnlineTrainer(publisher=None): there are no versions to go back to")
            folder = CheckpointFolder(self._commits)
            there = folder.complete()
            if training and iteration not in there:
                raise ConfigError(
                    f"rollback({iteration}): {self._commits} has checkpoints of the iterations "
                    f"{', '.join(map(str, there)) or 'none'}; training=False only serves the version"
                )
            learned: int | None = None  # served for a while, it does not hasten the next version
            if training:
                learned = ledger_of(read_point(there[iteration])).batches
            self.publisher.rollback(iteration, learned, delete=training)
            if training:
                folder.delete_after(iteration)
                self._loaded = self._own = None

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        """Wait for the batch that is being learned, and let no other begin inside the block."""
        with self._busy:
            yield

    # -- one batch ----------------------------------------------------------------------------

    def _learn(self, given: Any, dataset: Callable[[Any], Any], batch: int, stream: str) -> bool:
        with self._busy:
            newest = latest(self._commits)
            point = self._point(newest)
            ledger = ledger_of(point) if newest is not None else ledger_of(point).elsewhere()
            learned = False
            if batch <= (last := ledger.last(stream)):
                _tell_passed_over(batch, last, stream)
                _run_through(given)
            else:
                with dataset(given) as rows, explained(given, rows):
                    if learned := _has_rows(rows):
                        found = given if self._mix is None else self._mix(given, batch)
                        mixed: Any = nullcontext(rows)
                        if found is not given:
                            mixed = found if isinstance(found, Dataset) else dataset(found)
                        ledger = self._train(
                            given, rows, mixed, self._module(newest), point, ledger, batch, stream
                        )
            if ledger.batches:
                self._publish_if_due(ledger)
            return learned

    def _train(
        self,
        given: Any,
        rows: Dataset,
        mixed: AbstractContextManager[Dataset],
        module: nn.Module,
        point: ResumePoint | None,
        before: Ledger,
        batch: int,
        stream: str,
    ) -> Ledger:
        """Score a batch, train on it and commit it; return the ledger with it."""
        if self.publisher is not None and not self._checked:
            self.publisher.check(module, rows, begun(module, point))
        self._checked = True
        if self._given_score is not None:
            scores = {name: float(value) for name, value in self._given_score(module, given).items()}
        else:
            scores = self._trainer.evaluate(rows, module=module)
        count = len(rows)
        self._commit.entry = lambda n: before.added(stream, batch, count, n, scores, self._history)
        own, self._own = self._own, None
        with mixed as lesson:
            result = self._trainer.fit(lesson, **continued(point, own))
        if result.stopped_by == "interrupt":
            raise KeyboardInterrupt(f"batch {batch} was not learned to its end; it is to come again")
        self._loaded, self._own = (latest(self._commits), result.module), identity_of(result.module)
        return self._commit.entry(result.state.iteration)

    def _point(self, newest: str | None) -> ResumePoint | None:
        """Return where training goes on; ``None`` for the beginning."""
        if newest is None and self._begin is not None:
            newest = latest(self._begin) or str(self._begin)
        return read_point(newest).shortened(self._history) if newest is not None else None

    def _module(self, newest: str | None) -> nn.Module:
        """Return the module with the weights of a commit, or those to begin with."""
        if self._loaded is None or self._loaded[0] != newest:
            module = copy.deepcopy(self._trainer.module)
            if newest is not None:
                load_weights(newest, module)
            elif self._begin is not None:
                load_weights(latest(self._begin) or self._begin, module)
            self._loaded = newest, module
        return self._loaded[1]

    def _ledger(self) -> Ledger:
        newest = latest(self._commits)
        return ledger_of(read_point(newest)) if newest is not None else Ledger()

    def _publish_if_due(self, ledger: Ledger) -> None:
        """Publish the newest commit if it is time, and delete old ones; a failure is a warning."""
        newest, publisher = latest(self._commits), self.publisher
        try:
            if publisher is None or newest is None or not publisher.ready:
                self._prune()
                return
            own = identity_of(self._module(newest))
            publisher.check_run(own or Identity("", ledger.iteration))  # two may have begun at once
            if publisher.due(ledger.iteration, ledger.batches):
                self._publish(publisher, newest, ledger)
            else:
                self._prune()
        except OSError as error:
            what = "be published, or older ones not be deleted" if publisher is not None else "be deleted"
            warnings.warn(
                redaction.text(
                    f"{newest} could not {what}: {error}; it is tried again after the next batch. Training "
                    "is not affected"
                ),
                UserWarning,
                stacklevel=2,
            )

    def _publish(self, publisher: Publisher, newest: str, ledger: Ledger) -> str:
        path = publisher.publish(self._module(newest), ledger.iteration, ledger.batches, same_run=True)
        _log.info("published %s after %d batches", path, ledger.batches)
        self._prune()
        return path

    def _prune(self) -> None:
        pinned = self.publisher.versions() if self.publisher is not None else ()
        CheckpointFolder(self._commits).prune(self._keep, pinned)


def _tell_passed_over(batch: int, last: int, stream: str) -> None:
    """Say that a batch is not learned; a query whose program has died brings its last one again, no other."""
    if batch == last:
        _log.info("batch %d was learned already", batch)
        return
    _log.warning(
        "batch %d of stream %r is not learned: batch %d of it was, and later batches have larger numbers. A "
        "query with a new checkpointLocation counts from 0 again: give learn() another stream= for it",
        batch,
        stream,
        last,
    )


def _query_of(rows: DataFrame) -> str:
    """Return the id of the query whose batch this is; empty for other rows."""
    return rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""


def _run_through(rows: Any) -> None:
    """Run the plan of a batch that is passed over: with watermarks and state Spark's own commit needs that.

    Without it the query fails when it commits the batch.
    """
    if (
        is_frame(rows)
        and not is_pandas(rows)
        and models_in(rows.sparkSession).runs_batches
        and _query_of(rows)
    ):
        rows.write.format("noop").mode("overwrite").save()


def _has_rows(rows: Dataset) -> bool:
    """Return whether a batch has rows; the first ones are needed anyway."""
    try:
        rows.peek()
    except DataError as error:
        if error.code != "data-empty":
            raise
        return False
    return True

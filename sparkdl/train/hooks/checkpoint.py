"""The hook that writes checkpoints, and finds them for a resumed run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread

from sparkdl import attempts, redaction
from sparkdl.allreduce.shard_files import Merge
from sparkdl.exceptions import CheckpointError, ConfigError, TaskError, integer_option
from sparkdl.nn.embedding import embedding_variables
from sparkdl.train.checkpoint import (
    DAMAGED,
    CheckpointFiles,
    CheckpointFolder,
    Path,
    latest,
    read_point,
    tensors_of,
)
from sparkdl.train.checkpoint.merging import merge
from sparkdl.train.checkpoint.resume import ResumePoint
from sparkdl.train.hooks.base import Hook
from sparkdl.train.options.triggers import EveryEpoch, Trigger, trigger_option
from sparkdl.train.run import Run
from sparkdl.train.state import TrainState

_log = logging.getLogger("sparkdl")

Resume = bool | Path | ResumePoint
"""What ``fit`` takes as ``resume=``: whether to go on, the checkpoint to go on from, or its content."""


class Checkpoint(Hook):
    """Writes all that the run needs to go on to a folder now and then.

    A checkpoint is a folder ``iteration-00000123`` with ``model.safetensors`` (parameters and buffers
    under their state_dict names; with ``averaging=``, the averaged ones), ``training.safetensors``
    (weights, history, state of hooks), one ``shard-*.safetensors`` per shard with the optimizer's state,
    and ``state.json`` (the run's state, latest scores, versions, checksums). It is there completely or
    not at all. ``Trainer.fit(data, resume=True)`` goes on from the newest;
    :func:`sparkdl.train.checkpoint.latest` finds it, and :func:`sparkdl.train.checkpoint.load_weights`
    copies its weights into a module. A checkpoint is written when its iteration is complete, with the
    validation that is due and the end of the epoch. The run's end is one more occasion: after ``end_when``, a
    hook's stop, Ctrl-C or an error, unless it is there already. Only a second Ctrl-C does without. After an
    error ``keep`` does not count: an older checkpoint may be the better one. Each run needs a folder of its
    own: while a run goes on, a second one is refused; on stores that have no locks it takes the folder over,
    and the first one ends before its next checkpoint.

    A write that fails (a full disk, a store that does not answer) is a warning, older checkpoints stay,
    and the next one is tried when it is due; after several in a row the run ends.

    Args:
        path: folder, or its URL: what fsspec opens, such as ``s3://bucket/run`` (with the package for that
            file system installed), or what Spark's own Hadoop does, such as ``hdfs://namenode/run``.
        every: when to write.
        keep: complete checkpoints to keep, the newest; ``None`` for all.
        background: whether files are written while the run goes on. What goes into them is taken down
            before; the next checkpoint, and the end of the run, wait for them, but only the end for one that
            is made of others.
        shared: whether all executors reach ``path``, so that the owners of the shards write the
            optimizer's state themselves, side by side. By default they do on stores that fsspec opens
            by a URL; say ``True`` for a folder that is mounted on all machines.
        max_failures: failed writes in a row that do not end the run.
        at_end: whether to write the last state of a run that ends, too.
        full_every: of so many checkpoints one has all rows of embedding variables; the others have those that
            have changed since the checkpoint before, which they need to be read, and which is kept as long.
            In the background the one with all rows is made, on the driver's machine, of the files of those
            before it and of what has changed; checkpoints that are due meanwhile have changes. 1 for all
            rows in each, which their owners write, or the driver.

    Raises:
        ConfigError: if an argument cannot work; when the run begins, if the folder cannot be made or
            written to, has checkpoints of later iterations, or the module has state that is not a tensor.
        CheckpointError: when writes keep failing, or another run writes to the folder (code
            ``"checkpoint-folder"``); its ``result`` holds what was trained.
    """

    def __init__(
        self,
        path: Path,
        every: Trigger | None = None,
        keep: int | None = 3,
        *,
        background: bool = True,
        shared: bool | None = None,
        max_failures: int = 2,
        at_end: bool = True,
        full_every: int = 8,
    ) -> None:
        self.path = path
        self.every = trigger_option("Checkpoint", every or EveryEpoch())
        self.keep = keep if keep is None else integer_option("Checkpoint", "keep", keep, 1)
        self.background = background
        self.max_failures = integer_option("Checkpoint", "max_failures", max_failures, 0)
        self.at_end = at_end
        self.full_every = integer_option("Checkpoint", "full_every", full_every, 1)
        self._folder = CheckpointFolder(path)
        self.shared = self._folder.reached_by_executors if shared is None else shared
        self._threads: list[Thread] = []
        self._writing: _Begun | None = None
        self._merging: _Begun | None = None
        self._given_up = False
        self._failures = 0
        self._newest = 0
        self._links: list[int] = []  # iterations of the newest checkpoint, and of those that it needs

    def resume_point(self) -> ResumePoint | None:
        """Return the content of the newest sound checkpoint, ``None`` if there is none.

        Newer ones whose checksums differ are set aside, with a warning.

        Raises:
            ConfigError: if the newest cannot be read for another reason; it is not changed.
        """
        for path in reversed(self._folder.complete().values()):
            try:
                return read_point(path)
            except ConfigError as error:
                if error.code != DAMAGED:
                    raise
                aside = self._folder.set_aside(path)
                message = f"{error.args[0]}; it is set aside as {aside}, an older one is tried"
                warnings.warn(message, UserWarning, stacklevel=4)
        return None

    def on_train_begin(self, run: Run) -> None:
        """Make the folder and claim it; refuse one in which new checkpoints would not be the newest."""
        self._failures, self._newest, self._given_up = 0, run.state.iteration, False
        self._writing = self._merging = None
        tensors_of(run.module)
        self._folder.claim(run.name)
        try:
            self._check_folder(run)
            self._links = self._folder.links(run.source)
        except BaseException:
            self._folder.release()
            raise
        if (attempt := self._attempt()) is not None:
            attempt.begun(self.path)

    def _attempt(self) -> attempts.Attempt | None:
        """Return the attempt that is told of checkpoints."""
        return attempts.current()

    def _check_folder(self, run: Run) -> None:
        """Make the folder; check that new checkpoints would be the newest, under names of their own."""
        self._folder.create()
        self._folder.check_writable()
        later = [iteration for iteration in self._folder.complete() if iteration > run.state.iteration]
        if later:
            raise ConfigError(
                f"Checkpoint(path={self.path!r}): has a checkpoint of iteration {later[-1]} already, but "
                f"this run starts at {run.state.iteration}; go on with fit(..., resume=True), choose "
                "another folder, or delete the old ones",
                code="config-resume",
            )
        foreign = [
            path for iteration, path in self._folder.foreign().items() if iteration > run.state.iteration
        ]
        if foreign:
            raise ConfigError(
                f"Checkpoint(path={self.path!r}): {foreign[0]} is no checkpoint, and one of that name would "
                "be written; move it elsewhere, or choose another folder"
            )

    def looks(self, previous: TrainState, current: TrainState) -> bool:
        """Return whether a checkpoint is due."""
        return self.every.foresees(previous, current)

    def on_boundary(self, run: Run, last: bool) -> None:
        """Write if a checkpoint is due, and at the end of the run."""
        if last:
            self._wait(run, last=True)
            if self.at_end and run.state.iteration > self._newest and self._failures <= self.max_failures:
                self._write(run, last=True)
        # A resumed run may come once more to the boundary at which its checkpoint was written.
        elif self.every(run.previous, run.state) and run.state.iteration > self._newest:
            self._write(run, last=False)

    def on_train_end(self, run: Run) -> None:
        """Wait for the last files, and let other runs write to the folder."""
        self._given_up = self._given_up or isinstance(run.error, KeyboardInterrupt)
        try:
            self._wait(run, last=True)
        finally:
            self._writing = self._merging = None
            try:
                self._join()
            finally:
                self._folder.release()
        if run.error is None and (attempt := self._attempt()) is not None:
            attempt.finished(self.path)

    def _join(self) -> None:
        """Wait for all threads; who does not want to wait for large files gets others to end."""
        try:
            while self._threads:
                self._threads[-1].join()
                self._threads.pop()
        except BaseException:
            self._given_up = True
            self._join()
            raise

    def _write(self, run: Run, *, last: bool) -> None:
        self._wait(run, last=last)
        whole, merges = not embedding_variables(run.module), False
        if self._merging is None and len(self._links) >= self.full_every:
            merges = self.background and not last and self.full_every > 1
            whole = not merges
        try:
            begun = self._begin(run, [] if whole else self._links, merges=merges)
        except (OSError, TaskError) as error:
            if isinstance(error, TaskError) and not self.shared and not last:
                raise  # the state itself cannot be read, which is not about files
            self._failed(error, run)
            return
        if merges:
            self._merging = begun
        else:
            self._writing = begun
        if last or not self.background:
            self._wait(run, last=last)

    def _begin(self, run: Run, below: list[int], *, merges: bool) -> _Begun:
        """Take down what goes into a checkpoint, and begin to write it."""
        iteration, since = run.state.iteration, below[-1] if below else 0
        place = self._folder.begin(iteration)
        try:
            digests = run.write_shards(place, since) if self.shared else {}
            point = run.resume_point(with_state=not self.shared, since=since)
            module = run.trained_module(run.averaged(), rows=False)  # they are with the shards
            base = 0 if merges else since
            files = CheckpointFiles.of(module, run.state, run.scores, point, base)
        except BaseException:
            self._folder.discard(place)
            raise
        merge_rows = self._merge(since) if merges else None
        prunes = run.error is None and not merges  # not beside a write of which it knows nothing
        pinned = self._merging.needs if self._merging is not None else []

        def write() -> None:
            written = self._folder.finish(place, files, digests, merge_rows)
            self._newest = max(self._newest, iteration)
            if prunes:
                self._prune(pinned)
            _log.info("Checkpoint: wrote %s", written)
            if (attempt := self._attempt()) is not None:
                attempt.written(self.path, iteration)

        written: Future[None] = Future()
        thread = Thread(target=_run, args=(write, written), name="sparkdl-checkpoint")
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        thread.start()
        links = [iteration] if merges else [*below, iteration]
        return _Begun(links, [*below, iteration] if merges else [], written)

    def _prune(self, pinned: Sequence[int] = ()) -> None:
        if self.keep is not None:
            self._folder.prune(self.keep, pinned)

    def _merge(self, since: int) -> Merge:
        """Return what puts the rows of a checkpoint, and of those that it needs, below changes."""
        base = self._folder.path_of(since)
        return lambda place, digests, write: merge(base, place, digests, write, self._check_wanted)

    def _check_wanted(self) -> None:
        """Let a second Ctrl-C end what takes long."""
        if self._given_up:
            raise OSError("interrupted")

    def _wait(self, run: Run, *, last: bool) -> None:
        """Wait for files that are being written, and see whether all went well."""
        writing, self._writing = self._writing, None
        self._settle(writing, run, last=last)
        long = len(self._links) >= 2 * self.full_every  # who reads a chain has all of it in memory
        if last or long or (self._merging is not None and self._merging.written.done()):
            merging, self._merging = self._merging, None
            self._settle(merging, run, last=last)

    def _settle(self, begun: _Begun | None, run: Run, *, last: bool) -> None:
        """Wait for a checkpoint, after which others have what has changed."""
        if begun is None:
            return
        try:
            begun.written.result()
            if begun.needs and last and run.error is None:
                self._prune()
        except Exception as error:
            self._links = []
            self._failed(error, run)
            return
        except BaseException:  # Ctrl-C
            self._given_up = True
            raise
        self._failures, self._links = 0, begun.links

    def _failed(self, error: Exception, run: Run) -> None:
        if isinstance(error, CheckpointError):
            raise error  # another run writes there now, and the next write would fail likewise
        self._failures += 1
        latest = self._folder.latest()
        standing = f"the newest is {latest}" if latest else "there is none yet"
        message = f"a checkpoint could not be written to {self.path}: {error}; {standing}"
        if run.error is not None:
            raise CheckpointError(message) from error  # a note of the error that ends the run
        if self._failures > self.max_failures:
            raise CheckpointError(f"{message}. {self._failures} writes in a row have failed") from error
        warnings.warn(redaction.text(f"{message}. Training is not affected"), UserWarning, stacklevel=2)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A checkpoint that is being written."""

    links: list[int]  # iterations of those that it needs when it is there, itself the last
    needs: list[int]  # of those that may not be deleted until then, and itself, if it is made of others
    written: Future[None]  # done when it is there


def _run(work: Callable[[], None], done: Future[None]) -> None:
    """Do some work, and tell when it is done."""
    try:
        work()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(None)


def of_attempt(resume: Resume, rows: str, hooks: Sequence[Hook]) -> tuple[Resume, str]:
    """Return what ``fit`` is to take as ``resume`` and ``rows``.

    This is what the script says, unless an earlier driver of the same job (``sparkdl submit --retries``) has
    written to the folder of the :class:`Checkpoint` hook. The fit then goes on from there. If that driver's
    run did not come to its end, this is the same run, so its rows are not new any more. A caller who has read
    a checkpoint knows better: :class:`sparkdl.online.OnlineTrainer` goes on from it with other rows.
    """
    if isinstance(resume, ResumePoint):
        return resume, rows
    attempt = attempts.current()
    first = next((hook for hook in hooks if isinstance(hook, Checkpoint)), None)
    if attempt is None or first is None or (before := attempt.earlier(first.path)) is None:
        return resume, rows
    _log.info("attempt %d goes on from iteration %d of %s", attempt.number, before.newest, first.path)
    return True, rows if before.ended else "same"


def find_resume_point(resume: Resume, hooks: Sequence[Hook]) -> ResumePoint | None:
    """Return where ``fit(..., resume=)`` is to go on, ``None`` for the beginning.

    Raises ConfigError if no :class:`Checkpoint` hook or no readable checkpoint is there.
    """
    if resume is False:
        return None
    if isinstance(resume, ResumePoint):
        return resume
    if resume is not True:
        return read_point(latest(resume) or resume)
    checkpoints = [hook for hook in hooks if isinstance(hook, Checkpoint)]
    if not checkpoints:
        raise ConfigError(
            "resume=True needs a Checkpoint(path) among the hooks, whose newest checkpoint it goes on from; "
            "or give the path of a checkpoint",
            code="config-resume",
        )
    return checkpoints[0].resume_point()

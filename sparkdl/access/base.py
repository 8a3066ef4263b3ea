"""The interface to a cluster: run tasks where rows are, send bytes, bring frames back, keep frames.

All of sparkdl reaches a cluster by an :class:`Access`. There are three: RDDs of raw frames, for classic
sessions (:mod:`sparkdl.access.classic`), DataFrames of frames, for Spark Connect
(:mod:`sparkdl.access.connect`), and calls in this process (:mod:`sparkdl.access.alone`). Nothing else knows
which kind of session it has. What :class:`Access` does by itself is right for sessions without RDDs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from pyspark.sql import DataFrame

from sparkdl._spark.frames import Task, do_once
from sparkdl._spark.tasks import broadcast_value
from sparkdl.access.in_pieces import ChainTask
from sparkdl.exceptions import ConfigError
from sparkdl.session import Executors
from sparkdl.wire.frame import Buffer, Parts

if TYPE_CHECKING:
    from sparkdl._spark.jobs import SubmittedJob
    from sparkdl.access.stages import GatheredStages, ShuffledSync

T = TypeVar("T")

DYNAMIC = "spark.dynamicAllocation.enabled"
"""Conf of sessions in which Spark asks for executors when tasks wait."""

LOCALITY = "spark.shuffle.reduceLocality.enabled"
"""Conf by which Spark places tasks of a shuffle by the bytes that they fetch."""

Frames = Any
"""Frames on the executors, partition by partition: what :meth:`Access.stage` returns. Opaque to others."""

Persisted = Any
"""Frames that a chain has left on the executors. Opaque to others."""


@dataclass(frozen=True, slots=True)
class BytesRef:
    """Bytes that the driver has sent: inside the task itself, or by a Spark broadcast."""

    inline: bytes | bytearray | None  # the bytes, or ``None`` if they are broadcast
    broadcast_id: int = -1  # id of the broadcast, -1 if they are inline

    def read(self, *, once: bool = False) -> Any:
        """Return the bytes, in a task; if ``once``, its process keeps none, for it can read them again."""
        return self.inline if self.inline is not None else broadcast_value(self.broadcast_id, once=once)


@dataclass(frozen=True, slots=True)
class Published:
    """Bytes that tasks can read."""

    ref: BytesRef  # by which a task finds them
    broadcast: Any = None  # the PySpark broadcast behind it, if any
    delete: Callable[[], None] | None = None  # deletes what else is behind it

    @property
    def broadcasts(self) -> list[Any]:
        """The broadcasts that a stage must name to use them."""
        return [] if self.broadcast is None else [self.broadcast]

    def release(self) -> None:
        """Delete them everywhere; only when no task can need them again."""
        if self.broadcast is not None:
            self.broadcast.destroy()
        if self.delete is not None:
            self.delete()


class Chain(Protocol):
    """Runs chains of stages over a partition store, with an exchange of all with all between them."""

    @property
    def stays(self) -> bool:
        """Whether each stage of a rank runs where its rows are."""

    @property
    def gathering(self) -> GatheredStages | None:
        """Runs tasks of several ranks; ``None`` where each rank has a task of its own."""

    def run(
        self,
        tasks: Sequence[ChainTask],
        broadcasts: Sequence[Any],
        name: str,
        frame_bytes: int,
        *,
        persisted_bytes: int | None = None,
    ) -> tuple[list[Buffer], Persisted | None]:
        """Run the stages.

        Args:
            tasks: the task of each stage. All but the last yield two keyed frames for each partition; its
                frames go to the driver and stay, by their keys. The first one gets a partition's token,
                the others what has arrived for it too.
            broadcasts: broadcasts that the tasks read.
            name: names the job in the Spark UI.
            frame_bytes: bytes of the first frame that a task sends to a partition, about; the second one is
                small.
            persisted_bytes: length of a frame that stays after the last stage, about; ``None`` if none does.
        """

    def forget(self, partition: int) -> None:
        """Forget where a partition's rows are, since its files are not there."""

    def release(self) -> None:
        """Delete all files on the executors for the store."""


class Access(Protocol):
    """A session's cluster, as sparkdl sees it."""

    has_sync: ClassVar[bool] = False
    """Whether an iteration may be jobs of its own: see :meth:`sync`."""

    tells_executors: ClassVar[bool] = False
    """Whether it is known at any time, without a job, which executors take tasks."""

    @property
    def moves_tasks(self) -> bool:
        """Whether tasks of a chain's later stages may run away from the rows of their ranks."""
        return False

    @property
    def longest_chain(self) -> int:
        """How many steps may be one chain of stages."""

    @property
    def driver_host(self) -> str:
        """Name or address of the machine that executors know as the driver's."""
        return self.conf("spark.driver.host", "localhost")

    # -- the session ----------------------------------------------------------------------------

    def check(self) -> None:
        """Warn once about confs that the session lacks; ConfigError if it was stopped."""
        self.check_alive()

    def check_alive(self) -> None:
        """Check that the session can still run jobs; ConfigError if it was stopped."""
        return

    def check_files(self) -> None:
        """Check that sparkdl's own files on the executors need not be encrypted; ConfigError if they must."""
        return

    def is_alive(self) -> bool:
        """Return whether the session can run jobs."""
        return True

    def conf(self, name: str, default: str = "") -> str:
        """Return a conf of the session."""

    def executors(self) -> Executors:
        """Return what the cluster offers, after waiting for executors that are still starting."""

    def count_executors(self, *, look: bool = False) -> int:
        """Return how many executors there are now; in local mode the driver is one.

        Where counting takes a job, it is the number of the last look, unless ``look`` says that some may have
        come or gone.
        """

    def ask_for_executors(self, total: int) -> bool:
        """Ask the cluster for so many executors; return whether it takes such wishes."""
        return False

    def profile(self, threads: int) -> Any:
        """Return the resource profile of tasks of so many threads; ``None`` where there can be none."""
        return None

    # -- sending --------------------------------------------------------------------------------

    def send(self, data: bytes | bytearray, *, inline: bool = False) -> Published:
        """Make bytes available to all tasks; few ones inside the tasks themselves if ``inline``."""

    # -- rows -----------------------------------------------------------------------------------

    def planned_once(self, df: DataFrame) -> DataFrame:
        """Return a DataFrame whose rows do not change their partitions while it is used."""

    def written(self, df: DataFrame, write: Any, rows_per_batch: int) -> Frames:
        """Return the frames that a ``mapInArrow`` function makes of a DataFrame's rows."""

    def scattered(self, pieces: Iterable[tuple[int, bytes | Parts]], partitions: int) -> Frames:
        """Return frames of the driver in so many partitions."""

    def one_task(self, data: bytes | Parts) -> Frames:
        """Return a small frame of the driver's, for a job of one task."""
        return self.scattered([(0, data)], 1)

    # -- tasks ----------------------------------------------------------------------------------

    def inherited(self, run: Callable[..., T]) -> Callable[..., T]:
        """Return a function that runs in another thread with the confs of jobs of this one."""
        return run

    def in_pool(self, name: str) -> AbstractContextManager[None]:
        """Let the jobs of this thread run in a pool of a fair scheduler, where the session has one."""
        return nullcontext()

    def describe(self, description: str | None) -> None:
        """Name the jobs that follow in the Spark UI."""
        return

    def stage(
        self, parent: Frames, task: Task, broadcasts: Sequence[Any] = (), *, profile: Any = None
    ) -> Frames:
        """Return the frames that a pure ``task`` makes of each partition of ``parent``; nothing runs yet."""

    def collect(self, frames: Frames) -> list[bytes]:
        """Run a job and return its frames, partition by partition."""

    def run_on_executors(self, work: Callable[[], None], *, profile: Any = None) -> None:
        """Do some work at least once on each executor that there is now."""
        self.run_everywhere(partial(do_once, work), profile=profile)

    def run_everywhere(
        self, task: Task, broadcasts: Sequence[Any] = (), *, times: int = 1, profile: Any = None
    ) -> list[bytes]:
        """Run a task, which gets no frames, on each executor that there is now, and return its frames."""

    def begin_everywhere(self, task: Task, *, times: int = 1, profile: Any = None) -> SubmittedJob | None:
        """Begin to run a task without frames on each executor; ``None`` where a job must end first."""
        return None

    def chain(self, tokens: Frames, ranks: int, profile: Any) -> Chain:
        """Return what runs chains of stages over a partition store."""

    def sync(
        self,
        tokens: Frames,
        task: ChainTask,
        shards: int,
        state: Persisted | None,
        broadcasts: Sequence[Any],
        profile: Any,
    ) -> ShuffledSync:
        """Return what runs an iteration as jobs of its own; ConfigError if this session has none.

        ``task`` gets a partition's token, and yields keyed frames for the shards; ``state`` is what stays
        with the shards from the iteration before, ``profile`` that of the tasks that read tokens.
        """
        raise ConfigError(
            "exchange='driver' needs RDDs, which this session has not; take another exchange, or fit in a "
            "classic session",
            code="config-connect",
        )

    # -- keeping --------------------------------------------------------------------------------

    def persist(self, frames: Frames) -> None:
        """Keep frames on the executors that compute them, where tasks over them will run."""

    def unpersist(self, frames: Frames | Persisted, *, wait: bool = False) -> None:
        """Stop keeping frames; ``wait`` until they are deleted."""

    def forget(self, frames: Frames, partition: int) -> None:
        """Let the next job compute a partition of persisted frames again, and what stages have made it of."""

    def run_on_persisted(self, persisted: Persisted, task: Task) -> list[bytes]:
        """Run a task over the pieces that a chain has left, shard by shard, and return its frames."""

    def keep(self, pieces: Iterable[tuple[int, bytes | Parts]], shards: int, shard_bytes: int) -> Persisted:
        """Let pieces of the driver's, each after its shard, stay as if a chain had left them."""


@contextmanager
def described(access: Access, description: str) -> Iterator[None]:
    """Name the jobs of a block in the Spark UI."""
    access.describe(description)
    try:
        yield
    finally:
        access.describe(None)

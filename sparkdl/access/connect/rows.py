"""DataFrames of frames on Spark Connect, and how they stay on the executors, as far as a session allows.

A cached DataFrame is best: what is lost of it is computed again. Some sessions, such as serverless ones,
refuse that. There a local checkpoint does the same, but after a loss all of it has to be made again. Where
this is refused as well, each job computes the frames anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from sparkdl._spark.errors import is_job_failure
from sparkdl.exceptions import ConfigError

_log = logging.getLogger("sparkdl")

_NOT_SUPPORTED = "0A000"  # SQLSTATE of what a server does not have

_IN_WORDS = ("not supported", "unsupported", "not available", "not allowed", "not implemented")

_LOST = ("checkpoint block", "checkpoint_rdd_block_id_not_found")

_CHECKPOINT = (
    "this session does not cache DataFrames (%s): rows stay on the executors by DataFrame.localCheckpoint(); "
    "if an executor is lost, all of them are read again"
)

_NOTHING = (
    "this session neither caches DataFrames (%s) nor keeps local checkpoints (%s): each Spark job reads all "
    "rows of the Dataset again, and the optimizer's state passes through the client after each job. Let a "
    "job have more steps (iterations_per_job), or train where DataFrame.cache() is allowed"
)


def by_key(df: DataFrame, partitions: int) -> DataFrame:
    """Return rows in the partitions that their keys name."""
    if not hasattr(type(df), "repartitionById"):  # of a DataFrame any name might be a column's
        import pyspark

        raise ConfigError(
            f"the client has PySpark {pyspark.__version__}; on Spark Connect arrays of the client, and tasks "
            "that cannot exchange directly, need 4.1 or later, on the server as well",
            code="config-connect",
        )
    return df.repartitionById(partitions, "key")


@dataclass(eq=False, slots=True)
class ConnectFrames:
    """Frames on the executors."""

    make: Callable[[], DataFrame]  # makes the DataFrame
    # rows of the source that a task gets at a time; ``None`` for what the session says
    rows_per_batch: int | None = None
    parent: ConnectFrames | None = None  # the frames of which it makes the DataFrame, if it does
    persisted: bool = False  # whether the frames are to stay on the executors
    cached: bool = False  # whether the DataFrame is cached
    stays: bool = False  # whether tasks over the frames run where the frames were made
    # its frames, when they were last brought to the driver; by partition if each has one
    collected: list[bytes] = field(default_factory=list)
    _df: DataFrame | None = None

    @property
    def df(self) -> DataFrame:
        """The DataFrame."""
        if self._df is None:
            self._df = self.make()
        return self._df

    @property
    def line(self) -> list[ConnectFrames]:
        """These frames, and all that they are made of."""
        found, rows = [self], self.parent
        while rows is not None:
            found.append(rows)
            rows = rows.parent
        return found

    @property
    def batch(self) -> int | None:
        """Rows of the source that a task gets at a time, in a job that makes these frames."""
        for rows in self.line:
            if rows.stays and rows is not self:
                return None
            if rows.rows_per_batch is not None:
                return rows.rows_per_batch
        return None

    def replace(self, df: DataFrame | None) -> None:
        """Use another DataFrame with the same frames; ``None`` to make it again."""
        self._df = df


def is_refused(error: BaseException) -> bool:
    """Return whether an error says that the server does not have, or allow, what it was asked for."""
    if not is_job_failure(error):
        return isinstance(error, NotImplementedError)
    state = getattr(error, "getSqlState", None)
    text = str(error)
    if (state is not None and state() == _NOT_SUPPORTED) or _NOT_SUPPORTED in text:
        return True
    return any(words in text.lower() for words in _IN_WORDS)


def is_lost(error: BaseException) -> bool:
    """Return whether a job has failed because an executor has taken a local checkpoint along."""
    return is_job_failure(error) and any(words in str(error).lower() for words in _LOST)


@dataclass(slots=True)
class Keeping:
    """Keeps frames on the executors of a session, and says once what that costs there."""

    _told: set[str] = field(default_factory=set)

    def keep(self, frames: ConnectFrames) -> None:
        """Keep frames on the executors that compute them; raises Spark's error if they cannot be computed."""
        frames.persisted = frames.stays = True
        try:
            frames.df.persist()
            frames.cached = True
        except Exception as error:
            if not is_refused(error):
                frames.persisted = frames.stays = False
                raise
            kept, refused = self._checkpoint(frames.df)
            if kept is None:
                frames.stays = False
                self._tell(_NOTHING, error, refused)
            else:
                frames.replace(kept)
                self._tell(_CHECKPOINT, error)

    def let_go(self, frames: ConnectFrames, *, wait: bool = False) -> None:
        """Stop keeping frames; a local checkpoint goes when nobody refers to its DataFrame."""
        if not frames.persisted:
            return
        cached, frames.persisted, frames.cached, frames.stays = frames.cached, False, False, False
        if cached:
            frames.df.unpersist(blocking=wait)
        else:
            frames.replace(None)

    def renew(self, frames: ConnectFrames) -> None:
        """Let frames, and all that they are made of, be computed again, and what of them was kept be kept."""
        kept = [rows for rows in frames.line if rows.persisted]
        for rows in frames.line:
            self.let_go(rows)
            rows.replace(None)
        for rows in reversed(kept):
            self.keep(rows)

    def sent(self, df: DataFrame) -> DataFrame:
        """Return rows of the client that stay on the executors, for they would travel with each job."""
        kept, refused = self._checkpoint(df)
        if kept is None:
            self._tell(
                "this session keeps no local checkpoints (%s): arrays of the client travel to the server "
                "with each job; write them to a table",
                refused,
            )
        return df if kept is None else kept

    def _checkpoint(self, df: DataFrame) -> tuple[DataFrame | None, BaseException | None]:
        """Return the DataFrame from a local checkpoint, or why there can be none."""
        try:
            return df.localCheckpoint(), None
        except Exception as error:
            if not is_refused(error):
                raise
            return None, error

    def _tell(self, news: str, *reasons: BaseException | None) -> None:
        if news not in self._told:
            self._told.add(news)
            _log.warning(news, *(str(reason).strip().split("\n")[0] for reason in reasons))

"""A DataFrame of frames on Spark Connect, which can be made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from sparkdl.exceptions import ConfigError


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

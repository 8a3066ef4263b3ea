"""A DataFrame of frames on Spark Connect, which can be made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(eq=False, slots=True)
class Rows:
    """Frames on the executors.

    Attributes:
        make: makes the DataFrame.
        rows_per_batch: rows of the source that a task gets at a time; ``None`` for what the session says.
        persisted: whether it is cached.
        collected: its frames, when they were last brought to the driver; by partition if each has one.
    """

    make: Callable[[], DataFrame]
    rows_per_batch: int | None = None
    persisted: bool = False
    collected: list[bytes] = field(default_factory=list)
    _df: DataFrame | None = None

    @property
    def df(self) -> DataFrame:
        """The DataFrame."""
        if self._df is None:
            self._df = self.make()
        return self._df

    def drop(self) -> None:
        """Forget the DataFrame, to be made again."""
        self._df = None

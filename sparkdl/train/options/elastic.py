"""Following the cluster (``elastic=``): another number of partitions, as many as it has executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from sparkdl.data.streams import STREAMS
from sparkdl.exceptions import ConfigError, integer_option, is_number

_POLL = 1.0  # seconds between two looks at the cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Keeps one partition per executor while executors come and go.

    Without it a run keeps its partitions. Partitions of a lost executor move to other executors and wait for
    a free slot; a new executor takes over some partitions. This costs time but changes no bit. With it the
    rows move to new partitions, and the same rows share a batch as before. Windows of series, whose batches
    depend on their partitions, move between two epochs only.

    Attributes:
        min_partitions: never fewer than this.
        max_partitions: never more than this.
        settle: seconds for which a number of executors must have lasted to count between two epochs.
        patience: seconds for which it must have lasted to count in the middle of an epoch; ``None``
            to change between epochs only.
        asks: whether the run also asks the cluster for executors, one more as long as that pays, and gives
            back one that does not: the meaning of ``elastic="plan"``. An executor pays if it brings at least
            half of what ideal scaling would.

    Raises:
        ConfigError: if a value cannot work.
    """

    min_partitions: int = 1
    max_partitions: int | None = None
    settle: float = 5.0
    patience: float | None = 60.0
    asks: bool = False

    def __post_init__(self) -> None:
        most = self.min_partitions if self.max_partitions is None else self.max_partitions
        for name, value in (("min_partitions", self.min_partitions), ("max_partitions", most)):
            integer_option("Elastic", name, value, 1)
        if self.min_partitions > STREAMS:
            raise ConfigError(f"Elastic(min_partitions={self.min_partitions}): expected at most {STREAMS}")
        if most < self.min_partitions:
            raise ConfigError(
                f"Elastic(min_partitions={self.min_partitions}, max_partitions={self.max_partitions}): "
                "expected the lesser one first"
            )
        for name, seconds in (("settle", self.settle), ("patience", self.patience)):
            if seconds is None and name == "patience":
                continue
            if not is_number(seconds) or not seconds >= 0:
                raise ConfigError(f"Elastic({name}={seconds!r}): expected a number of seconds, at least 0")

    @classmethod
    def of(cls, value: object) -> Elastic | None:
        """Return what the option ``elastic`` means.

        Raises:
            ConfigError: if it means nothing.
        """
        if value == "plan":
            return cls(asks=True, patience=5.0)
        if value is None or isinstance(value, cls):
            return value
        raise ConfigError(f"elastic={value!r}: expected Elastic(...), 'plan' or None")

    def partitions(self, executors: int) -> int:
        """Return the number of partitions for a number of executors."""
        most = min(STREAMS, self.max_partitions if self.max_partitions is not None else executors)
        return max(self.min_partitions, min(executors, most))


@dataclass(slots=True)
class PartitionWatch:
    """Decides when a run's partitions change."""

    elastic: Elastic  # the rules
    count: Callable[[], int]  # asks the cluster for its number of executors
    clock: Callable[[], float] = monotonic  # seconds that only grow
    most: int = STREAMS  # how many partitions the rows can have
    _seen: int = field(default=0, init=False)
    _since: float = field(default=0.0, init=False)
    _looked: float = field(default=float("-inf"), init=False)

    def decide(self, partitions: int, *, between_epochs: bool) -> int | None:
        """Return the new number of partitions, ``None`` to keep the current one."""
        now = self.clock()
        if between_epochs or now - self._looked >= _POLL:
            self._looked = now
            executors = self.count()
            if executors != self._seen:
                self._seen, self._since = executors, now
        if not self._seen:  # all are gone: some will come
            return None
        wanted = min(self.most, self.elastic.partitions(self._seen))
        needed = self.elastic.settle if between_epochs else self.elastic.patience
        if wanted == partitions or needed is None or now - self._since < needed:
            return None
        return wanted

    def wait(self) -> None:
        """Start to wait again, after a move that failed."""
        self._since = self.clock()

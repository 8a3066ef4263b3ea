"""``elastic="plan"``: how many executors a run asks for, from its own steps."""

from __future__ import annotations

import logging
import statistics
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from sparkdl.train.options.elastic import Elastic
from sparkdl.train.planning.costs import Carrier, Kind, Surroundings, exchange_seconds, moves, worth
from sparkdl.train.planning.model import Line

_log = logging.getLogger("sparkdl")
_STEPS = 8
"""Steps with a number of partitions before anything is decided, beyond the first half, which warms up."""
_LASTING = 64
_UNSHARED = 0.01
"""Up to so many seconds of a rank's work may not shrink with its rows: calls of Python, small kernels. Nobody
knows while a run has had one number of executors only; with one fewer it is measured."""
_GRANTED = 60.0  # seconds after which executors that have not come are not expected any more


@dataclass(slots=True)
class Demand:
    """Decides how many executors to ask for: more while they pay, fewer when the last ones do not.

    A number of executors that the run has had counts by its measured steps, any other by the cost model. What
    a rank does with its rows shrinks with their number, but for a fixed part that two numbers of executors
    tell. Until then, a forecast for fewer executors takes some milliseconds as fixed: runs with short steps
    try them.
    """

    elastic: Elastic  # the rules
    # asks the cluster for a number of executors; returns whether it takes such wishes
    ask: Callable[[int], bool]
    nbytes: int  # of the weights
    kind: Kind = "replicated"  # how gradients become weights
    clock: Callable[[], float] = monotonic  # seconds that only grow
    _steps: dict[int, deque[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_LASTING)), init=False
    )
    _seen: int = field(default=0, init=False)
    _count: int = field(default=0, init=False)
    _asked: int = field(default=0, init=False)
    _since: float = field(default=0.0, init=False)
    _most: int | None = field(default=None, init=False)

    def add(self, partitions: int, seconds: float, work: float) -> None:
        """Take note of a step; ``work``, seconds of the slowest rank's rows, is what more ranks share."""
        if partitions != self._seen:
            if self._most is not None and partitions > self._most:
                self._most = None  # they have come after all
            self._seen, self._count = partitions, 0
            self._since = self.clock()
            self._steps[partitions].clear()
        self._count += 1
        if self._count > _STEPS:
            self._steps[partitions].append((seconds, work))

    def decide(self) -> int | None:
        """Ask for another number of executors if that pays; return it, or ``None``."""
        now = self._seen
        if len(self._steps[now]) < _STEPS or self.clock() - self._since < self.elastic.settle:
            return None
        if self._asked > now and self._most is None:
            if self.clock() - self._since < _GRANTED:
                return None
            self._most = now  # the cluster has no more
            _log.info("the cluster gave %d executors of %d: staying there", now, self._asked)
        wanted = self._wanted(now)
        if wanted in (now, self._asked):
            return None
        self._asked, self._since = wanted, self.clock()
        if not self.ask(wanted):
            self._most = now
            _log.warning("this cluster takes no wishes for executors: elastic='plan' only follows it")
            return None
        _log.info("asked for %d executors in place of %d: %s", wanted, now, self._told(now, wanted))
        return wanted

    def seconds(self, executors: int) -> float:
        """Return the seconds of a step with so many executors: measured ones, or a forecast."""
        measured = self._steps.get(executors)
        if measured and len(measured) >= _STEPS:
            return statistics.median(seconds for seconds, _ in measured)
        now = self._seen
        seconds = statistics.median(seconds for seconds, _ in self._steps[now])
        known = {n: steps for n, steps in self._steps.items() if len(steps) >= _STEPS}
        works = {n: statistics.median(work for _, work in steps) for n, steps in known.items()}
        line = Line.through([1 / n for n in works], [*works.values()])
        work = min(seconds, works[now])
        growth = self._exchange(executors) - self._exchange(now)
        share = line.at(1 / executors) / line.at(1 / now)
        if executors < now and len(works) == 1:
            share = 1 + (share - 1) * max(0.0, work - _UNSHARED) / work if work else 1.0
        return max(1e-9, work * share + max(0.0, seconds - work + growth))

    def _wanted(self, now: int) -> int:
        least = self.elastic.min_partitions
        limits = [n for n in (self.elastic.max_partitions, self._most) if n is not None]
        if now > least and not worth(self.seconds(now - 1), self.seconds(now), now - 1, now):
            return now - 1
        if (not limits or now < min(limits)) and worth(
            self.seconds(now), self.seconds(now + 1), now, now + 1
        ):
            return now + 1
        return now

    def _exchange(self, ranks: int) -> float:
        return exchange_seconds(moves(self.kind, self.nbytes, ranks), "direct", Carrier(), Surroundings())

    def _told(self, now: int, wanted: int) -> str:
        return f"a step takes {self.seconds(now):.3g} s, then {self.seconds(wanted):.3g} s"

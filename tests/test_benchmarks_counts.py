"""What the benchmarks count by Spark's status store, also when it has forgotten stages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import spark_counts
from py4j.protocol import Py4JJavaError


class Scala(list[Any]):
    """A list as Scala's are read by Py4J."""

    def size(self) -> int:
        return len(self)

    def apply(self, index: int) -> Any:
        return self[index]


def of(**values: Any) -> Any:
    """Return an object of getters."""
    return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


class Store:
    """A status store of one job: stage 1 is skipped, 2 and 3 have run."""

    def __init__(self, forgotten: set[int], kind: str = "NoSuchElementException") -> None:
        self.forgotten, self.kind = forgotten, kind

    def jobsList(self, _: Any) -> Scala:  # noqa: N802
        job = of(jobId=5, stageIds=Scala([1, 2, 3]), numCompletedStages=2, numCompletedTasks=4)
        return Scala([of(jobId=4), job])

    def lastStageAttempt(self, number: int) -> Any:  # noqa: N802
        if number in self.forgotten:
            raised = SimpleNamespace(
                _target_id="o1", _gateway_client=None, getClass=lambda: of(getSimpleName=self.kind)
            )
            raise Py4JJavaError("", raised)
        status = of(toString="SKIPPED" if number == 1 else "COMPLETE")
        return of(status=status, shuffleReadBytes=10, shuffleWriteBytes=7)


def counted(store: Store) -> spark_counts.Counts:
    bus = of(waitUntilEmpty=None)
    context = SimpleNamespace(statusStore=lambda: store, listenerBus=lambda: bus)
    return spark_counts.counts_after(SimpleNamespace(_jsc=of(sc=context)), 4)


@pytest.mark.parametrize("forgotten", [set(), {1}])
def test_skipped_stages_may_be_forgotten(forgotten: set[int]) -> None:
    assert counted(Store(forgotten)) == spark_counts.Counts(1, 2, 4, 20, 14)


def test_a_forgotten_stage_that_ran_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="forgotten 1 of 2 stages"):
        counted(Store({3}))


def test_other_errors_of_the_store_are_not_taken_for_that() -> None:
    with pytest.raises(Py4JJavaError):
        counted(Store({1}, "IllegalStateException"))

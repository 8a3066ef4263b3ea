"""Exceptions of any class carry what was trained; an undone group runs again; a second Ctrl-C counts."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from sparkdl.exceptions import DataError, TaskError
from sparkdl.train import FitResult, History, TrainState
from sparkdl.train.groups import Ahead
from sparkdl.train.leaving import ErrorsCarryResult, unless_under_way

RESULT = FitResult(nn.Identity(), History(), TrainState(iteration=3), "error")


class SlotsError(Exception):
    __slots__ = ("other",)


@dataclass(frozen=True)
class FrozenError(Exception):
    reason: str


class ReadOnlyError(Exception):
    @property
    def result(self) -> None:
        return None


class RaisingError(Exception):
    @property
    def result(self) -> None:
        raise ValueError("not yet")


class OwnError(Exception):
    result = "its own"


def leave_with(error: BaseException, result: FitResult | None = RESULT) -> BaseException:
    def leave() -> None:
        with ErrorsCarryResult() as kept:
            kept.result = result
            raise error

    with pytest.raises(type(error)) as caught:
        leave()
    assert caught.value is error
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "disk full"),
        KeyboardInterrupt(),
        SystemExit(1),
        StopIteration(),
        DataError("x"),
        SlotsError(),
        FrozenError("x"),
    ],
    ids=repr,
)
def test_exceptions_of_any_class_carry_the_result(error: BaseException) -> None:
    assert leave_with(error).result is RESULT  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [ReadOnlyError(), RaisingError(), OwnError()], ids=repr)
def test_those_that_refuse_say_where_it_is(error: BaseException) -> None:
    assert "Trainer.result holds what was trained" in leave_with(error).__notes__[0]
    assert OwnError.result == OwnError().result == "its own"


def test_an_exception_that_is_raised_again_has_the_result_of_the_last_fit() -> None:
    error = OSError()
    leave_with(error, FitResult(nn.Identity(), History(), TrainState(), "error"))
    assert leave_with(error).result is RESULT  # type: ignore[attr-defined]


def test_nothing_trained_nothing_carried() -> None:
    assert not hasattr(leave_with(OSError(), None), "result")


def test_the_first_error_wins() -> None:
    first = OSError("disk full")
    with unless_under_way(first, "the weights are gone"):
        raise ValueError("x")
    assert first.__notes__ == ["the weights are gone: x"]
    with pytest.raises(ValueError, match="x"), unless_under_way(None, "the weights are gone"):
        raise ValueError("x")


class Shaky:
    """Runs one iteration at a time, and fails when it is told to."""

    class engine:  # noqa: N801
        longest_group = 50

        class plan:  # noqa: N801
            traits = SimpleNamespace(group_seconds=1.0)

    def __init__(self) -> None:
        self.model = 0
        self.failures = 0
        self.most = 50

    def run(self, group: list[Any]) -> list[Any]:
        if self.failures:
            self.failures -= 1
            raise TaskError("lost")
        done = group[: self.most]
        assert done[0] == self.model
        self.model += len(done)
        return done

    def undo(self, group: list[Any]) -> None:
        self.model = group[0]


class Item(int):
    tasks = ()

    def same_as(self, other: int) -> bool:
        return self == other


def test_what_an_undone_group_owes_is_run_until_it_is_done() -> None:
    """An executor without files ends a run early; a failure leaves the rest for the next call."""
    recovery = Shaky()
    ahead = Ahead(recovery, 4)  # type: ignore[arg-type]
    for n in range(3):
        ahead.run(Item(n), lambda most, n=n: [Item(n + 1 + i) for i in range(most)])  # type: ignore
    assert recovery.model == 4
    recovery.most, recovery.failures = 1, 2
    for _ in range(2):
        with pytest.raises(TaskError):
            ahead.settle()
        assert recovery.model == 0
    ahead.settle()
    assert recovery.model == 3


def test_an_iteration_after_a_failed_settle_begins_where_it_should() -> None:
    recovery = Shaky()
    ahead = Ahead(recovery, 4)  # type: ignore[arg-type]
    for n in range(3):
        ahead.run(Item(n), lambda most, n=n: [Item(n + 1 + i) for i in range(most)])  # type: ignore
    recovery.failures = 1
    with pytest.raises(TaskError):
        ahead.settle()
    assert ahead.run(Item(3), lambda most: []) == 3
    assert recovery.model == 4

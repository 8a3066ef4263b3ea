import math
from itertools import product

import pytest

from sparkdl.exceptions import ConfigError
from sparkdl.train import MaxEpoch, MaxIteration, MinLoss, TrainState, Trigger


class Constant(Trigger):
    def __init__(self, value):
        self.value = value

    def __call__(self, previous, current):
        return self.value


def fires(trigger, **state):
    return trigger(TrainState(), TrainState(**state))


@pytest.mark.parametrize(
    ("trigger", "state", "expected"),
    [
        (MaxEpoch(2), {"epoch": 1}, False),
        (MaxEpoch(2), {"epoch": 2}, True),
        (MaxEpoch(2), {"epoch": 3}, True),
        (MaxEpoch(0), {}, True),
        (MaxIteration(5), {"iteration": 4, "epoch": 9}, False),
        (MaxIteration(5), {"iteration": 5}, True),
        (MinLoss(0.5), {}, False),
        (MinLoss(0.5), {"loss": 0.5}, False),
        (MinLoss(0.5), {"loss": 0.4}, True),
        (MinLoss(0.5), {"loss": math.nan}, False),
        (MaxEpoch(2) | MinLoss(0.5), {"loss": 0.4}, True),
        (MaxEpoch(2) & MinLoss(0.5), {"loss": 0.4}, False),
        (MaxEpoch(2) & MinLoss(0.5), {"loss": 0.4, "epoch": 2}, True),
        (~MaxEpoch(2), {"epoch": 1}, True),
    ],
    ids=repr,
)
def test_when_triggers_fire(trigger, state, expected):
    assert fires(trigger, **state) is expected


@pytest.mark.parametrize(("a", "b"), list(product([False, True], repeat=2)))
def test_combinations_follow_boolean_logic(a, b):
    first, second = Constant(a), Constant(b)
    assert fires(first & second) is (a and b)
    assert fires(first | second) is (a or b)
    assert fires(~first) is (not a)
    assert fires(~(first & second) | second) is (not (a and b) or b)


@pytest.mark.parametrize("cls", [MaxEpoch, MaxIteration])
@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True])
def test_counts_must_be_integers(cls, value):
    with pytest.raises(ConfigError, match=rf"{cls.__name__}\({value!r}\): expected an integer of at least 0"):
        cls(value)


def test_triggers_are_values():
    assert MaxEpoch(3) | MinLoss(0.1) == MaxEpoch(3) | MinLoss(0.1)
    assert hash(~MaxEpoch(3)) == hash(~MaxEpoch(3))


def test_the_base_class_decides_nothing():
    with pytest.raises(NotImplementedError):
        fires(Trigger())

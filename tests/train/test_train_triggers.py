import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.exceptions import ConfigError
from sparkdl.train.options.triggers import (
    EveryEpoch,
    EveryIterations,
    EverySeconds,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MaxSeconds,
    MinLoss,
    MinScore,
    Plateaued,
    Trigger,
)
from sparkdl.train.state import TrainState

EVERY = [EveryEpoch(), EveryIterations(1), EveryIterations(3), EverySeconds(0.5)]


class Constant(Trigger):
    def __init__(self, value):
        self.value = value

    def __call__(self, previous, current):
        return self.value


def fires(trigger, **state):
    return trigger(TrainState(), TrainState(**state))


def fired_after(trigger, iterations, steps, seconds=1.0, start=None):
    """Return the iterations of a run after which a trigger fires."""
    states = [start or TrainState()]
    for _ in range(iterations):
        states.append(states[-1].advance(steps, 1, 1.0, seconds))
    return [current.iteration for previous, current in pairwise(states) if trigger(previous, current)]


@pytest.mark.parametrize(
    ("trigger", "state", "expected"),
    [
        (MaxEpoch(2), {"epoch": 1}, False),
        (MaxEpoch(2), {"epoch": 2}, True),
        (MaxEpoch(2), {"epoch": 3}, True),
        (MaxEpoch(0), {}, True),
        (MaxIteration(5), {"iteration": 4, "epoch": 9}, False),
        (MaxIteration(5), {"iteration": 5}, True),
        (MaxSeconds(5), {"seconds": 4.9}, False),
        (MaxSeconds(5), {"seconds": 5.0}, True),
        (MaxSeconds(0), {}, True),
        (MinLoss(0.5), {}, False),
        (MinLoss(0.5), {"loss": 0.5}, False),
        (MinLoss(0.5), {"loss": 0.4}, True),
        (MinLoss(0.5), {"loss": math.nan}, False),
        (MaxScore(0.9), {}, False),
        (MaxScore(0.9), {"score": 0.89, "best_score": 0.95}, False),
        (MaxScore(0.9), {"score": 0.9}, True),
        (MaxScore(0.9), {"score": math.nan}, False),
        (MinScore(-1), {}, False),
        (MinScore(-1), {"score": -0.9}, False),
        (MinScore(-1), {"score": -1.0}, True),
        (MinScore(-1), {"score": math.nan}, False),
        (Plateaued(2), {"stale": 1}, False),
        (Plateaued(2), {"stale": 2}, True),
        (Plateaued(2), {"stale": 3}, True),
        (MaxEpoch(2) | MinLoss(0.5), {"loss": 0.4}, True),
        (MaxEpoch(2) & MinLoss(0.5), {"loss": 0.4}, False),
        (MaxEpoch(2) & MinLoss(0.5), {"loss": 0.4, "epoch": 2}, True),
        (~MaxEpoch(2), {"epoch": 1}, True),
    ],
    ids=repr,
)
def test_when_triggers_fire(trigger, state, expected):
    assert fires(trigger, **state) is expected


@pytest.mark.parametrize(
    ("trigger", "steps", "expected"),
    [
        (EveryEpoch(), 1, [1, 2, 3, 4, 5, 6, 7]),
        (EveryEpoch(), 3, [3, 6]),
        (EveryEpoch(), 7, [7]),
        (EveryEpoch(), 8, []),
        (EveryIterations(1), 3, [1, 2, 3, 4, 5, 6, 7]),
        (EveryIterations(3), 1, [3, 6]),
        (EveryIterations(3), 5, [3, 6]),
        (EveryIterations(8), 1, []),
        (EverySeconds(2), 3, [2, 4, 6]),
        (EverySeconds(2.5), 3, [3, 5]),
        (EverySeconds(0.3), 3, [1, 2, 3, 4, 5, 6, 7]),
        (EverySeconds(100), 3, []),
        (EveryEpoch() | EveryIterations(2), 3, [2, 3, 4, 6]),
        (EveryEpoch() & EveryIterations(2), 3, [6]),
    ],
    ids=repr,
)
def test_when_recurring_triggers_fire(trigger, steps, expected):
    assert fired_after(trigger, 7, steps) == expected


@pytest.mark.parametrize("trigger", EVERY, ids=repr)
@pytest.mark.parametrize(
    "state", [TrainState(), TrainState(epoch=2, iteration=6, seconds=1.5)], ids=["start", "later"]
)
def test_recurring_triggers_do_not_fire_where_nothing_happened(trigger, state):
    assert trigger(state, state) is False
    validated = state.validated(0.5, higher_is_better=True)
    assert trigger(state, validated) is False


@pytest.mark.parametrize("trigger", [*EVERY, MaxEpoch(3), MaxIteration(9), MaxSeconds(2)], ids=repr)
@settings(deadline=None, max_examples=30)
@given(steps=st.integers(1, 6), begin=st.integers(0, 20))
def test_a_resumed_run_fires_where_the_whole_one_does(trigger, steps, begin):
    state = TrainState()
    for _ in range(begin):
        state = state.advance(steps, 1, 1.0, 0.125)
    whole = fired_after(trigger, begin + 12, steps, 0.125)
    assert fired_after(trigger, 12, steps, 0.125, start=state) == [i for i in whole if i > begin]


@settings(deadline=None)
@given(steps=st.integers(1, 9), every=st.integers(1, 9), iterations=st.integers(0, 60))
def test_recurring_triggers_fire_the_right_number_of_times(steps, every, iterations):
    assert len(fired_after(EveryEpoch(), iterations, steps)) == iterations // steps
    assert fired_after(EveryIterations(every), iterations, steps) == list(range(every, iterations + 1, every))


@settings(deadline=None)
@given(
    every=st.floats(1e-3, 1e3),
    times=st.lists(st.floats(0, 1e4), min_size=2, max_size=20).map(sorted),
)
def test_seconds_fire_if_and_only_if_a_multiple_has_passed(every, times):
    for before, after in pairwise(times):
        passed = Fraction(after) // Fraction(every) - Fraction(before) // Fraction(every)
        fired = EverySeconds(every)(TrainState(seconds=before), TrainState(seconds=after))
        assert fired is (passed > 0)


@settings(deadline=None)
@given(scores=st.lists(st.floats(-5, 5) | st.just(math.nan), max_size=20), patience=st.integers(1, 4))
def test_plateaued_is_patient(scores, patience):
    state = TrainState()
    best, since = -math.inf, 0
    for score in scores:
        state = state.validated(score, higher_is_better=True)
        best, since = (score, 0) if score > best else (best, since + 1)
        assert Plateaued(patience)(state, state) is (since >= patience)


@pytest.mark.parametrize(("a", "b"), list(product([False, True], repeat=2)))
def test_combinations_follow_boolean_logic(a, b):
    first, second = Constant(a), Constant(b)
    assert fires(first & second) is (a and b)
    assert fires(first | second) is (a or b)
    assert fires(~first) is (not a)
    assert fires(~(first & second) | second) is (not (a and b) or b)


@pytest.mark.parametrize(
    ("cls", "least"), [(MaxEpoch, 0), (MaxIteration, 0), (EveryIterations, 1), (Plateaued, 1)]
)
@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True])
def test_counts_must_be_integers(cls, least, value):
    expected = rf"{cls.__name__}\({value!r}\): expected an integer of at least {least}"
    with pytest.raises(ConfigError, match=expected):
        cls(value)
    assert fires(cls(5)) is False


@pytest.mark.parametrize("cls", [EveryIterations, Plateaued])
def test_a_count_that_would_always_fire_is_refused(cls):
    with pytest.raises(ConfigError, match=rf"{cls.__name__}\(0\): expected an integer of at least 1"):
        cls(0)


@pytest.mark.parametrize("cls", [EverySeconds, MaxSeconds, MinLoss, MaxScore, MinScore])
@pytest.mark.parametrize("value", [math.nan, math.inf, "3", None, True])
def test_numbers_must_be_finite(cls, value):
    with pytest.raises(ConfigError, match=rf"{cls.__name__}\({value!r}\): expected a finite number"):
        cls(value)


@pytest.mark.parametrize("value", [0, -1, -0.5])
def test_seconds_must_be_positive(value):
    with pytest.raises(ConfigError, match=rf"EverySeconds\({value!r}\): expected a number above 0"):
        EverySeconds(value)


def test_triggers_are_values():
    assert MaxEpoch(3) | MinLoss(0.1) == MaxEpoch(3) | MinLoss(0.1)
    assert hash(~MaxEpoch(3)) == hash(~MaxEpoch(3))
    assert EveryEpoch() == EveryEpoch()


def test_the_base_class_decides_nothing():
    with pytest.raises(NotImplementedError):
        fires(Trigger())


def test_triggers_do_not_remember():
    trigger = EveryIterations(2) | EveryEpoch() | EverySeconds(3)
    before = TrainState(epoch=1, iteration=3, seconds=2)
    after = replace(before, iteration=4)
    assert [trigger(before, after) for _ in range(3)] == [True, True, True]


@pytest.mark.parametrize(
    ("trigger", "needs"),
    [
        (MaxEpoch(3), False),
        (MinLoss(0.1), False),
        (MaxScore(0.9), True),
        (MinScore(0.1), True),
        (Plateaued(2), True),
        (Plateaued(2) | MaxEpoch(3), False),
        (Plateaued(2) | MaxScore(0.9), True),
        (Plateaued(2) & MaxEpoch(3), True),
        (~Plateaued(2), False),
    ],
)
def test_a_trigger_says_whether_it_waits_for_scores(trigger, needs):
    assert trigger.needs_score is needs

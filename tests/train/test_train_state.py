import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.train import TrainState


def test_a_run_starts_at_zero_without_a_loss():
    state = TrainState()
    assert (state.epoch, state.iteration, state.step, state.samples) == (0, 0, 0, 0)
    assert math.isnan(state.loss)


@settings(deadline=None)
@given(st.integers(1, 7), st.lists(st.integers(0, 5), max_size=30))
def test_counters_add_up(steps, samples):
    state = TrainState()
    for count in samples:
        state = state.advance(steps, count, 1.0)
    assert state.iteration == len(samples)
    assert (state.epoch, state.step) == divmod(len(samples), steps)
    assert state.samples == sum(samples)


@pytest.mark.parametrize(("samples", "loss"), [(3, 0.5), (0, 2.0)])
def test_an_iteration_without_samples_keeps_the_loss(samples, loss):
    assert TrainState(loss=2.0).advance(4, samples, 0.5).loss == loss


def test_the_first_iteration_without_samples_has_no_loss():
    assert math.isnan(TrainState().advance(4, 0, 0.0).loss)

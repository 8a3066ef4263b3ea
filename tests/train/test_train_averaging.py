import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sparkdl.exceptions import ConfigError
from sparkdl.train.options.averaging import EMA, SWA, Averaging
from sparkdl.train.options.triggers import EveryEpoch, EveryIterations, EverySeconds, MaxSeconds, MinLoss
from sparkdl.train.state import TrainState


def weights_of(averaging, iterations, steps):
    """Return the weight of each iteration, asked as the Trainer asks."""
    state, count, found = TrainState(), 0, []
    for _ in range(iterations):
        after = state.advance(steps, 1, math.nan)
        found.append(averaging.weight(state, after, count))
        count += found[-1] > 0
        state = after
    return found


def simulate(averaging, iterations, steps, chosen, **options):
    """Average a series of random weights in both ways; ``chosen`` says when torch's is updated."""
    torch.manual_seed(0)
    module = nn.Linear(3, 2).double()
    reference = AveragedModel(copy.deepcopy(module), **options)
    average = torch.zeros(8, dtype=torch.float64)
    for iteration, weight in enumerate(weights_of(averaging, iterations, steps), 1):
        with torch.no_grad():
            for p in module.parameters():
                p += torch.randn_like(p)
        if chosen(iteration):
            reference.update_parameters(module)
        current = nn.utils.parameters_to_vector(module.parameters()).detach()
        average += weight * (current - average)
        if reference.n_averaged:
            expected = nn.utils.parameters_to_vector(reference.module.parameters()).detach()
            torch.testing.assert_close(average, expected, rtol=1e-12, atol=1e-12)
    return int(reference.n_averaged)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99, 0.999])
def test_ema_equals_torch(decay):
    updates = simulate(EMA(decay), 50, 7, lambda _: True, multi_avg_fn=get_ema_multi_avg_fn(decay))
    assert updates == 50


@pytest.mark.parametrize(
    ("averaging", "chosen", "count"),
    [
        (SWA(start_epoch=0), lambda i: i % 4 == 0, 10),
        (SWA(start_epoch=3), lambda i: i % 4 == 0 and i >= 12, 8),
        (SWA(start_epoch=3, every=EveryIterations(1)), lambda i: i >= 12, 29),
        (SWA(start_epoch=2, every=EveryIterations(3)), lambda i: i % 3 == 0 and i >= 8, 11),
        (SWA(start_epoch=0, every=EveryEpoch() | EveryIterations(3)), lambda i: i % 4 == 0 or i % 3 == 0, 20),
        (SWA(start_epoch=11), lambda i: False, 0),
    ],
    ids=lambda value: None if callable(value) else repr(value),
)
def test_swa_equals_torch(averaging, chosen, count):
    assert simulate(averaging, 40, 4, chosen) == count


def test_swa_starts_with_the_weights_that_the_start_epoch_ends_with():
    assert weights_of(SWA(start_epoch=2), 8, 2) == [0, 0, 0, 1, 0, 1 / 2, 0, 1 / 3]


def test_warmup_raises_the_decay():
    found = weights_of(EMA(0.9, warmup=True), 200, 5)
    assert found[:3] == pytest.approx([1, 9 / 11, 9 / 12])
    assert found[-1] == pytest.approx(0.1)
    assert sorted(found, reverse=True) == found


@settings(deadline=None)
@given(
    st.builds(EMA, st.floats(0, 0.9999), st.booleans())
    | st.builds(SWA, start_epoch=st.integers(0, 5), every=st.builds(EveryIterations, st.integers(1, 5))),
    st.integers(1, 6),
)
def test_weights_are_shares_and_the_first_is_a_copy(averaging, steps):
    found = weights_of(averaging, 30, steps)
    assert all(0 <= weight <= 1 for weight in found)
    assert next((weight for weight in found if weight), 1) == 1


@pytest.mark.parametrize("decay", [1, 1.5, -0.1, math.nan, "0.9", None, True])
def test_decay_is_checked(decay):
    with pytest.raises(ConfigError, match=r"EMA\(decay=.*: expected a number of at least 0 and below 1"):
        EMA(decay)


@pytest.mark.parametrize("epoch", [-1, 1.5, "2", None, True])
def test_start_epoch_is_checked(epoch):
    with pytest.raises(ConfigError, match=r"SWA\(start_epoch=.*: expected an integer of at least 0"):
        SWA(start_epoch=epoch)


def test_every_is_checked():
    with pytest.raises(ConfigError, match=r"SWA\(every=5\): expected a trigger such as EveryEpoch\(\)"):
        SWA(start_epoch=0, every=5)
    for every in (EverySeconds(60), EveryEpoch() & MinLoss(0.5), ~MaxSeconds(9)):
        with pytest.raises(ConfigError, match=r"SWA\(every=.*a trigger of epochs and iterations"):
            SWA(start_epoch=0, every=every)


def test_the_base_class_decides_nothing():
    with pytest.raises(NotImplementedError):
        Averaging().weight(TrainState(), TrainState(), 0)

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.contract import check_model, size, train

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.models.tcn import TCN


def adding(rows, steps=20):
    """The adding problem of section 4.1: the sum of the two values that are marked."""
    values, marks = torch.rand(rows, steps), torch.zeros(rows, steps)
    half = steps // 2
    at = torch.stack([torch.randint(half, (rows,)), half + torch.randint(half, (rows,))], 1)
    marks.scatter_(1, at, 1.0)
    return Batch(torch.stack([values, marks], 2), values.gather(1, at).sum(1, keepdim=True), None, rows)


def test_size_is_that_of_the_paper():
    assert size(TCN(horizon=10)) == 66_910  # "70K" for sequential MNIST in table 1


def test_size_is_that_of_the_formula():
    model = TCN(3, 4, 2, channels=(5, 5, 6), kernel=2)
    levels = 5 * (2 * 3 + 2) + 5 * 12 + 5 * 4, 2 * 5 * 12, 6 * 12 + 6 * 14 + 6 * 6
    assert size(model) == sum(levels) + 7 * 8


def test_contract():
    check_model(partial(TCN, channels=(4, 4), kernel=3), torch.randn(4, 12))
    check_model(partial(TCN, 3, 4, 2, (4, 5), 2, 0.2), torch.randn(4, 12, 3))


def test_shapes():
    series = torch.randn(5, 12)
    model = TCN(horizon=4, channels=(3, 3), kernel=3)
    assert model(series).shape == (5, 4)
    assert torch.equal(model(series.unsqueeze(2)), model(series))
    assert TCN(2, 4, 3, (3, 3), 3)(torch.randn(5, 12, 2)).shape == (5, 4, 3)


def test_sees_as_far_as_it_says_and_no_further():
    torch.manual_seed(0)
    model = TCN(channels=(4, 4, 4), kernel=3)
    assert model.receptive_field == 1 + 2 * 2 * (1 + 2 + 4)
    with torch.no_grad():  # nothing that ReLU could hide
        for parameter in model.parameters():
            parameter.abs_()
    series = torch.rand(1, 40, requires_grad=True)
    model(series).sum().backward()
    seen = series.grad[0] != 0
    assert torch.equal(seen, torch.arange(40) >= 40 - model.receptive_field)


def test_weights_are_normalised():
    torch.manual_seed(0)
    model = TCN(channels=(4,), kernel=3)
    series = torch.randn(3, 10)
    before = model(series)
    with torch.no_grad():
        model.levels[0].first.direction.mul_(5)
    assert torch.allclose(model(series), before, atol=1e-6)


@pytest.mark.slow
def test_learns_the_adding_problem():
    torch.manual_seed(0)
    model = TCN(2, channels=(24,) * 3, kernel=4)
    train(
        model,
        lambda module, batch: F.mse_loss(module(batch.inputs), batch.label),
        partial(adding, 100),
        steps=600,
        lr=4e-3,
    )
    test = adding(1000)
    with torch.no_grad():
        assert F.mse_loss(model(test.inputs), test.label) < 0.02  # always saying 1 gives 0.167


@pytest.mark.parametrize("shape", [(3,), (3, 10, 2), (3, 1, 10)])
def test_rejects_other_shapes(shape):
    with pytest.raises(ModelError, match=r"expected \(rows, steps, 1\) or \(rows, steps\)"):
        TCN(channels=(2,))(torch.zeros(shape))


@pytest.mark.parametrize("arguments", [{"features": 0}, {"channels": (3, 0)}, {"kernel": 1}, {"dropout": 1}])
def test_rejects_what_cannot_be(arguments):
    (name,) = arguments
    with pytest.raises(ConfigError, match=f"TCN: {name}="):
        TCN(**arguments)

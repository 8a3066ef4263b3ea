import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.contract import check_model, size, train

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.models.nbeats import InterpretableNBeats, NBeats
from sparkdl.train import MaxEpoch

STEPS, HORIZON = 36, 12


def monthly(rows):
    """A line and a yearly wave, both with random strength and phase: past, trend and season to come."""
    time = torch.arange(-STEPS, HORIZON) / HORIZON
    slope, height, phase = 0.5 * torch.randn(rows, 1), 1 + torch.rand(rows, 1), torch.rand(rows, 1)
    trend, season = slope * time, height * (2 * math.pi * (time + phase)).sin()
    series = trend + season
    return series[:, :STEPS], trend[:, STEPS:], season[:, STEPS:]


def batch_of(rows):
    past, trend, season = monthly(rows)
    return Batch(past, trend + season, None, rows)


def mse(module, batch):
    return F.mse_loss(module(batch.inputs), batch.label)


def relative_error(model, batch):
    """Squared error over that of the value one season ago."""
    with torch.no_grad():
        return float(mse(model, batch) / F.mse_loss(batch.inputs[:, -HORIZON:], batch.label))


def layers(steps, width):
    return width * (steps + 1) + 3 * width * (width + 1)


def test_sizes_with_the_defaults_of_the_paper():
    assert size(NBeats(90, 18)) == 30 * (layers(90, 512) + 513 * 108)
    trend, season = layers(90, 256) + 257 * 2 * 3, layers(90, 2048) + 2049 * 2 * 17
    assert size(InterpretableNBeats(90, 18)) == trend + season


def test_contract():
    series = torch.randn(4, STEPS)
    check_model(partial(NBeats, STEPS, HORIZON, 3, 16), series)
    check_model(partial(InterpretableNBeats, STEPS, HORIZON, 3, 4, 2, 16, 32), series)


def test_parts_of_the_basis_are_polynomials_and_waves():
    model = InterpretableNBeats(STEPS, HORIZON, degree=3)
    time = torch.arange(HORIZON) / HORIZON
    assert torch.allclose(model.trend.future, torch.stack([time**p for p in range(4)]))
    waves = model.seasonality
    assert waves.future.shape == (11, HORIZON)
    assert waves.past.shape == (11, STEPS)
    assert torch.allclose(waves.future[3], (2 * math.pi * 3 * time).cos(), atol=1e-5)
    assert torch.allclose(waves.future[-1], (2 * math.pi * 5 * time).sin(), atol=1e-5)
    assert torch.allclose(waves.past[:, :HORIZON], waves.future, atol=1e-4)  # three seasons before


def test_forecast_is_the_sum_of_its_components():
    torch.manual_seed(0)
    model = InterpretableNBeats(STEPS, HORIZON, trend_width=16, seasonality_width=16)
    series = torch.randn(3, STEPS)
    components = model.components(series)
    assert components.shape == (3, 2, HORIZON)
    assert torch.allclose(components.sum(1), model(series))


@pytest.mark.whole
def test_interpretable_model_tells_trend_from_season():
    torch.manual_seed(0)
    model = InterpretableNBeats(STEPS, HORIZON, blocks=2, trend_width=32, seasonality_width=64)
    train(model, mse, partial(batch_of, 100), steps=300, lr=3e-3)
    past, _, season = monthly(500)
    assert relative_error(model, batch_of(500)) < 0.1
    with torch.no_grad():
        found = model.components(past)[:, 1]
    assert F.mse_loss(found - found.mean(1, keepdim=True), season) < 0.1 * season.square().mean()


def test_generic_model_trains_with_spark(spark):
    torch.manual_seed(0)
    train_rows = batch_of(2000)
    trainer = Trainer(
        NBeats(STEPS, HORIZON, blocks=3, width=32),
        loss=torch.nn.MSELoss(),
        optimizer=partial(torch.optim.Adam, lr=1e-2),
        batch_size=250,
        end_when=MaxEpoch(2),
        progress=False,
    )
    arrays = (np.asarray(train_rows.inputs), np.asarray(train_rows.label))
    with Dataset.from_numpy(*arrays, spark=spark) as data:
        model = trainer.fit(data).module.eval()
    assert relative_error(model, batch_of(500)) < 0.5


@pytest.mark.parametrize("make", [NBeats, partial(InterpretableNBeats, trend_width=8, seasonality_width=8)])
def test_rejects_other_lengths(make):
    with pytest.raises(ModelError, match=r"shape \(2, 30\); expected \(rows, 36\)"):
        make(STEPS, HORIZON)(torch.zeros(2, 30))


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (NBeats, {"blocks": 0}),
        (NBeats, {"width": 0}),
        (InterpretableNBeats, {"degree": -1}),
        (InterpretableNBeats, {"horizon": 3}),
        (InterpretableNBeats, {"harmonics": 6}),
    ],
)
def test_rejects_what_cannot_be(make, arguments):
    (name,) = arguments
    with pytest.raises(ConfigError, match=f"{make.__name__}: {name}="):
        make(**{"steps": STEPS, "horizon": HORIZON, **arguments})

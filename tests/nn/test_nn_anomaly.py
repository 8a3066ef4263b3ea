import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.contract import check_model, size, train

from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.models.anomaly import AnomalyDetector

STEPS = 20


def windows(series):
    rows = series.unfold(0, STEPS + 1, 1)
    return rows[:, :-1], rows[:, -1]


def test_size():
    layers = 4 * 8 * (1 + 8 + 2) + 4 * 32 * (8 + 32 + 2) + 4 * 15 * (32 + 15 + 2)
    assert size(AnomalyDetector()) == layers + 16 == 8_684


def test_contract():
    check_model(AnomalyDetector, torch.randn(4, 10))
    check_model(partial(AnomalyDetector, 3, (6,), 0.0), torch.randn(4, 10, 3))


def test_threshold_leaves_the_share_above_it():
    model = AnomalyDetector()
    value = torch.arange(200.0)
    forecast = torch.zeros(200)
    assert not model.detect(forecast, value).any()
    for share, anomalies in [(0.0, 0), (0.01, 2), (0.29, 58), (0.25, 50)]:
        model.set_threshold(forecast, -value, share)
        assert model.detect(forecast, value).sum() == anomalies
    assert model.state_dict()["threshold"] == 149


def test_finds_the_values_that_break_a_rhythm():
    torch.manual_seed(0)
    series = (2 * math.pi * torch.arange(1500) / 25).sin() + 0.05 * torch.randn(1500)
    past, value = windows(series[:1000])
    model = AnomalyDetector(hidden=(16,), dropout=0.0)

    def batch():
        rows = torch.randint(len(past), (100,))
        return Batch(past[rows], value[rows], None, 100)

    train(model, lambda m, b: F.mse_loss(m(b.inputs), b.label), batch, steps=200, lr=2e-2)
    with torch.no_grad():
        model.set_threshold(model(past), value, share=0.0)
        past, value = windows(series[1000:])
        broken = torch.zeros(len(value), dtype=torch.bool)
        broken[::40] = True
        found = model.detect(model(past), torch.where(broken, value + 1, value))
    assert found[broken].all()
    assert found[~broken].float().mean() < 0.02


@pytest.mark.parametrize("shape", [(3,), (3, 10, 2)])
def test_rejects_other_shapes(shape):
    with pytest.raises(ModelError, match=r"expected \(rows, steps, 1\) or \(rows, steps\)"):
        AnomalyDetector()(torch.zeros(shape))


@pytest.mark.parametrize("arguments", [{"features": 0}, {"hidden": ()}, {"hidden": (0,)}, {"dropout": 1}])
def test_rejects_what_cannot_be(arguments):
    (name,) = arguments
    with pytest.raises(ConfigError, match=f"AnomalyDetector: {name}="):
        AnomalyDetector(**arguments)


@pytest.mark.parametrize(("rows", "share"), [(5, 1.0), (5, -0.1), (0, 0.1)])
def test_rejects_thresholds_that_cannot_be(rows, share):
    with pytest.raises(ConfigError, match=f"share={share} of {rows} errors"):
        AnomalyDetector().set_threshold(torch.zeros(rows), torch.zeros(rows), share)


def test_a_threshold_of_missing_values_is_refused():
    value = torch.tensor([1.0, torch.nan, 3.0])
    with pytest.raises(DataError, match="1 of 3 errors are NaN or infinite"):
        AnomalyDetector().set_threshold(torch.zeros(3), value, share=0.0)


@pytest.mark.parametrize(("forecast", "value"), [(0.0, torch.nan), (torch.nan, 0.0), (torch.inf, torch.inf)])
def test_what_is_missing_is_neither_normal_nor_an_anomaly(forecast, value):
    model = AnomalyDetector()
    model.set_threshold(torch.zeros(3), torch.ones(3), share=0.0)
    assert model.detect(torch.zeros(2), torch.tensor([torch.inf, 1.0])).tolist() == [True, False]
    with pytest.raises(DataError, match="1 of 2 errors are NaN, which are neither normal nor anomalies"):
        model.detect(torch.tensor([0.0, forecast]), torch.tensor([2.0, value]))

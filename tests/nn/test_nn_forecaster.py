"""Models of series with covariates and quantiles, the patch transformer, the pinball loss."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.contract import check_model

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.models.forecaster import Forecaster, Pinball
from sparkdl.nn.models.patch_transformer import PatchTransformer

STEPS, HORIZON = 10, 3
SMALL = {
    "nbeats": {"blocks": 2, "width": 8},
    "tcn": {"channels": (4, 4)},
    "patch": {"patch": 4, "width": 8, "heads": 2, "layers": 1, "feed_forward": 8, "dropout": 0.0},
}


def inputs(rows=4):
    torch.manual_seed(0)
    return {
        "target": torch.randn(rows, STEPS),
        "past": torch.randn(rows, STEPS, 2),
        "known": torch.randn(rows, STEPS + HORIZON, 1),
        "static": torch.randn(rows, 3),
    }


def forecaster(architecture, **more):
    torch.manual_seed(1)
    widths = {"past": 2, "known": 1, "static": 3}
    return Forecaster(STEPS, HORIZON, architecture, **{**widths, **SMALL[architecture], **more}).eval()


def test_contract_of_the_patch_transformer():
    check_model(partial(PatchTransformer, 9, 3, patch=4, width=8, heads=2, layers=2), torch.randn(4, 9))
    check_model(partial(PatchTransformer, 9, 3, 2, 2, patch=4, width=8, heads=2), torch.randn(4, 9, 2))


def test_patches_overlap_by_half_and_end_with_the_last_value_again():
    model = PatchTransformer(9, 2, patch=4, width=8, heads=2)
    assert (model.stride, model.tokens) == (2, (9 - 4) // 2 + 2)
    assert model(torch.randn(2, 9)).shape == (2, 2)
    with pytest.raises(ConfigError, match="patch=10: expected at most steps=9"):
        PatchTransformer(9, 2, patch=10)
    with pytest.raises(ModelError, match=r"expected \(rows, 9, 1\) or \(rows, 9\)"):
        model(torch.randn(2, 8))


@pytest.mark.parametrize("architecture", SMALL)
def test_each_input_matters_and_quantiles_never_cross(architecture):
    given = inputs()
    points = forecaster(architecture)
    assert points(**given).shape == (4, HORIZON)
    quantiles = forecaster(architecture, quantiles=(0.1, 0.5, 0.9))
    found = quantiles(**given)
    assert found.shape == (4, HORIZON, 3)
    assert (found.diff(dim=2) >= 0).all()
    for name, values in given.items():
        changed = {**given, name: values + torch.randn_like(values)}
        assert not torch.equal(points(**changed), points(**given)), name
    with pytest.raises(ModelError, match=r"past has shape None; expected \(4, 10, 2\)"):
        points(**{**given, "past": None})


@pytest.mark.parametrize("level", ["last", "mean"])
def test_a_level_that_is_taken_off_is_added_again(level):
    model = Forecaster(STEPS, HORIZON, level=level, **SMALL["nbeats"]).eval()
    target = torch.randn(4, STEPS)
    torch.testing.assert_close(model(target + 100) - 100, model(target), rtol=0, atol=1e-4)


def test_a_standard_level_takes_the_scale_of_a_window_off_and_a_constant_one_stays_finite():
    model = Forecaster(STEPS, HORIZON, level="standard", **SMALL["nbeats"]).eval()
    target = torch.randn(4, STEPS)
    found, expected = model(3 * target + 50), 3 * model(target) + 50
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    naive = Forecaster(STEPS, HORIZON, "naive", level="standard", season=2)
    torch.testing.assert_close(naive(target)[:, :2], target[:, -2:])
    constant = torch.full((1, STEPS), 5.0, requires_grad=True)
    model(constant).sum().backward()
    assert torch.isfinite(constant.grad).all()


def test_the_naive_forecast_is_the_value_of_a_season_ago():
    model = Forecaster(6, 5, "naive", season=3)
    assert model(torch.tensor([[0.0, 1, 2, 3, 4, 5]])).tolist() == [[3, 4, 5, 3, 4]]
    assert not list(model.parameters())
    several = Forecaster(6, 2, "naive", quantiles=(0.1, 0.5), season=1)
    assert several(torch.tensor([[0.0, 1, 2, 3, 4, 5]])).tolist() == [[[5, 5], [5, 5]]]


def test_the_linear_map_begins_halfway_between_level_and_last_value_and_is_linear():
    model = Forecaster(4, 2, "linear")
    target = torch.tensor([[1.0, 2, 3, 6]])
    assert model(target).tolist() == [[pytest.approx((3 + 6) / 2)] * 2]
    covariates = Forecaster(4, 2, "linear", past=1, level="none")
    weights = torch.arange(16.0).view(2, 8)
    covariates.core.weight.data.copy_(weights)  # target and covariate of a step side by side
    past = torch.randn(3, 4, 1)
    target = torch.randn(3, 4)
    expected = torch.stack([target, past.squeeze(2)], 2).flatten(1) @ weights.T
    torch.testing.assert_close(covariates(target, past), expected)
    quantiles = Forecaster(4, 2, "linear", quantiles=(0.1, 0.5))(target)
    assert quantiles.shape == (3, 2, 2)
    with pytest.raises(ConfigError, match="width"):
        Forecaster(4, 2, "linear", width=3)


def test_pinball_is_half_the_absolute_error_for_the_median_and_least_at_the_quantile():
    output, label = torch.tensor([[[1.0], [4.0]]]), torch.tensor([[3.0, 3.0]])
    assert Pinball([0.5])(output, label).tolist() == [0.75]
    assert Pinball([0.9])(output, label).tolist() == pytest.approx([(0.9 * 2 + 0.1 * 1) / 2])
    values = torch.arange(1.0, 101.0).unsqueeze(1)
    losses = [float(Pinball([0.8])(torch.full((100, 1, 1), q), values).mean()) for q in range(70, 91)]
    assert 70 + losses.index(min(losses)) in (80, 81)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"architecture": "lstm"}, "architecture='lstm': expected one of linear, nbeats, tcn, patch, naive"),
        ({"level": "first"}, "level='first': expected one of last, mean, none"),
        ({"quantiles": (0.5, 0.1)}, "expected ascending numbers between 0 and 1"),
        ({"blokcs": 3}, "blokcs"),
        ({"horizon": 0}, "horizon"),
        ({"architecture": "naive", "season": 11}, "season=11: expected a number from 1 to steps=10"),
    ],
)
def test_arguments_that_cannot_work(more, message):
    with pytest.raises(ConfigError, match=message):
        Forecaster(**{"steps": STEPS, "horizon": HORIZON, **more})

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn, optim

from sparkdl.exceptions import ConfigError
from sparkdl.optim import LAMB, ClipByNorm, ClipByValue, OptimizerSpec, ShardOptimizer
from sparkdl.optim.reduction import drive
from sparkdl.optim.regularize import Penalty, regularize
from sparkdl.optim.shard.optimizer import UpdateRule
from sparkdl.wire.layout import ParamLayout, lay_out

SHAPES = [(30, 7), (7,), (), (0,), (2, 3, 2), (1000,)]
LAYOUT = ParamLayout(lay_out([(f"p{i}", shape, i % 2) for i, shape in enumerate(SHAPES)]))
ALL = np.ones(len(SHAPES), np.bool_)
SOME = np.array([True, False, True, True, False, True])
CUTS = {
    "1 shard": (0, LAYOUT.numel),
    "3 shards": (0, 100, 217, LAYOUT.numel),
    "empty shards": (0, 0, 500, LAYOUT.numel, LAYOUT.numel),
}


def draw(seed, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(LAYOUT.numel, generator=generator, dtype=dtype) * scale


def parameters(flat, used):
    """The parameters that torch would see, with gradients; those that are not used have none."""
    params = []
    for spec, has_gradient in zip(LAYOUT.params, used, strict=True):
        p = nn.Parameter(torch.zeros(spec.shape, dtype=flat.dtype))
        p.grad = flat[spec.offset : spec.end].clone().view(spec.shape) if has_gradient else None
        params.append(p)
    return params


def clip_shards(clip, flat, cuts, used):
    found = flat.clone()
    drive([clip.clip(found[lo:hi], LAYOUT, lo, hi, used) for lo, hi in pairwise(cuts)])
    return found


def compare(found, params, rtol):
    for spec, p in zip(LAYOUT.params, params, strict=True):
        if p.grad is not None:
            own = found[spec.offset : spec.end].view(spec.shape)
            if rtol:
                torch.testing.assert_close(own, p.grad, rtol=rtol, atol=0)
            else:
                assert torch.equal(own, p.grad), spec.name


@pytest.mark.parametrize("used", [ALL, SOME], ids=["all used", "some used"])
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("max_norm", [0.5, 1000.0])
@pytest.mark.parametrize("scale", [1.0, 1e-20, 3e37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_by_norm_as_torch(dtype, scale, max_norm, cuts, used):
    flat = draw(0, dtype, scale)
    params = parameters(flat, used)
    nn.utils.clip_grad_norm_(params, max_norm)
    clip = ClipByNorm(max_norm)
    assert clip.reductions == 1
    compare(clip_shards(clip, flat, CUTS[cuts], used), params, 0 if cuts == "1 shard" else 1e-6)


@pytest.mark.parametrize("used", [ALL, SOME], ids=["all used", "some used"])
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_by_norm_per_layer_as_torch(dtype, cuts, used):
    flat = draw(1, dtype)
    params = parameters(flat, used)
    for p in params:
        nn.utils.clip_grad_norm_([p], 2.0)
    found = clip_shards(ClipByNorm(2.0, per_layer=True), flat, CUTS[cuts], used)
    compare(found, params, 0 if cuts == "1 shard" else 1e-6)
    assert torch.linalg.vector_norm(params[5].grad) < 2.01


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("per_layer", [False, True])
def test_a_cut_between_parameters_changes_no_bit(seed, per_layer):
    flat = draw(seed)
    ends = [0, *(p.end for p in LAYOUT.params if p.numel)]
    clip = ClipByNorm(1.0, per_layer)
    assert torch.equal(clip_shards(clip, flat, ends, ALL), clip_shards(clip, flat, CUTS["1 shard"], ALL))


def test_by_norm_without_any_gradient():
    flat = torch.zeros(LAYOUT.numel)
    for per_layer in (False, True):
        clip = ClipByNorm(1.0, per_layer)
        assert not clip_shards(clip, flat, CUTS["3 shards"], np.zeros_like(ALL)).any()
        assert not clip_shards(clip, flat, CUTS["3 shards"], ALL).any()


def test_only_used_parameters_count():
    flat = draw(2)
    dirty = flat.clone()
    unused = LAYOUT.params[4]
    dirty[unused.offset : unused.end] = 1e6
    clip = ClipByNorm(1.0)
    found, expected = (clip_shards(clip, f, CUTS["3 shards"], SOME) for f in (dirty, flat))
    used = torch.ones(LAYOUT.numel, dtype=torch.bool)
    used[unused.offset : unused.end] = False
    assert torch.equal(found[used], expected[used])


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_by_value_as_torch(cuts):
    flat = draw(3)
    params = parameters(flat, ALL)
    nn.utils.clip_grad_value_(params, 0.3)
    assert ClipByValue(0.3).reductions == 0
    compare(clip_shards(ClipByValue(0.3), flat, cuts, ALL), params, 0)


def test_by_value_with_two_limits():
    flat = draw(4)
    assert torch.equal(
        clip_shards(ClipByValue(-0.1, 0.5), flat, CUTS["3 shards"], ALL), flat.clamp(-0.1, 0.5)
    )
    assert ClipByValue(2) == ClipByValue(-2.0, 2.0)


WRONG = {
    "value 0": (lambda: ClipByValue(0), r"ClipByValue\(0\): expected a positive limit"),
    "value nan": (lambda: ClipByValue(float("nan")), "positive limit"),
    "value text": (lambda: ClipByValue("1"), "positive limit"),
    "order": (
        lambda: ClipByValue(1, -1),
        r"ClipByValue\(1, -1\): expected two numbers, the lesser one first",
    ),
    "equal": (lambda: ClipByValue(1, 1), "two numbers"),
    "norm 0": (lambda: ClipByNorm(0), r"ClipByNorm\(0\): expected a positive number"),
    "norm nan": (lambda: ClipByNorm(float("nan")), "positive number"),
    "norm bool": (lambda: ClipByNorm(True), "positive number"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_limits_are_checked(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


# -- penalties ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_penalties_are_the_gradients_of_the_loss_that_they_add(cuts):
    weights, flat = draw(5, torch.float64), draw(6, torch.float64)
    penalties = (Penalty(l1=0.1), Penalty(l1=0.2, l2=0.3))
    for lo, hi in pairwise(cuts):
        regularize(flat[lo:hi], weights[lo:hi], penalties, LAYOUT, lo, hi, SOME)
    before = draw(6, torch.float64)
    for spec, used in zip(LAYOUT.params, SOME, strict=True):
        own = weights[spec.offset : spec.end].clone().requires_grad_()
        loss = penalties[spec.group].l1 * own.abs().sum() + penalties[spec.group].l2 / 2 * own.square().sum()
        loss.backward()
        expected = before[spec.offset : spec.end] + (own.grad if used else 0)
        torch.testing.assert_close(flat[spec.offset : spec.end], expected)


def test_l2_is_torchs_weight_decay_to_the_bit():
    flat, weights = draw(7), draw(8)
    regularize(flat, weights, (Penalty(l2=0.3),) * 2, LAYOUT, 0, LAYOUT.numel, ALL)
    assert torch.equal(flat, draw(7).add(weights, alpha=0.3))


# -- the whole rule -----------------------------------------------------------------------------


def train(rule, cuts, steps=4):
    weights = draw(9)
    shards = [ShardOptimizer(rule.optimizer, LAYOUT, lo, hi) for lo, hi in pairwise(cuts)]
    for t in range(steps):
        flat = draw(10 + t)
        drive([rule.update(s, weights[s.start : s.stop], flat[s.start : s.stop], SOME) for s in shards])
    return weights


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_regularise_then_clip_then_step(cuts):
    spec = OptimizerSpec(
        partial(optim.SGD, lr=0.1, momentum=0.9), ({}, {"lr": 0.2}), (Penalty(l2=1.0), Penalty())
    )
    rule = UpdateRule(spec, ClipByNorm(1.0))
    assert rule.reductions == 1
    params = parameters(draw(9), ALL)
    for p in params:
        p.data.copy_(p.grad)
    groups = [{"params": params[::2]}, {"params": params[1::2], "lr": 0.2}]
    reference = optim.SGD(groups, lr=0.1, momentum=0.9)
    for t in range(4):
        for i, (p, own) in enumerate(zip(params, parameters(draw(10 + t), SOME), strict=True)):
            p.grad = None if own.grad is None else own.grad.add(p.detach(), alpha=float(i % 2 == 0))
        nn.utils.clip_grad_norm_(params, 1.0)
        reference.step()
    expected = torch.cat([p.detach().flatten() for p in params])
    found = train(rule, cuts)
    if len(cuts) == 2:
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_rule_may_reduce_twice():
    rule = UpdateRule(OptimizerSpec(LAMB, ({}, {})), ClipByNorm(1.0))
    assert rule.reductions == 2
    found, expected = (train(rule, CUTS[name]) for name in ("3 shards", "1 shard"))
    torch.testing.assert_close(found, expected)
    assert UpdateRule(OptimizerSpec(optim.SGD), ClipByValue(1)).reductions == 0
    assert UpdateRule(OptimizerSpec(optim.SGD)).reductions == 0


def test_the_number_of_yields_is_the_number_of_reductions():
    for factory in (optim.SGD, LAMB):
        for clip in (None, ClipByValue(1.0), ClipByNorm(1.0), ClipByNorm(1.0, per_layer=True)):
            rule = UpdateRule(OptimizerSpec(factory, ({}, {})), clip)
            for lo, hi in ((0, 100), (100, 100)):
                part = ShardOptimizer(rule.optimizer, LAYOUT, lo, hi)
                used = np.zeros_like(ALL)
                steps = rule.update(part, torch.ones(hi - lo), torch.ones(hi - lo), used)
                yields, sums = 0, None
                try:
                    while True:
                        sums = steps.send(sums)
                        assert sums.dtype == np.float64
                        yields += 1
                except StopIteration:
                    assert yields == rule.reductions

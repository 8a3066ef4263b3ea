from functools import partial

import pytest
import torch
from torch import nn, optim

from sparkdl.exceptions import ConfigError
from sparkdl.nn.serialize import dumps, loads
from sparkdl.optim import LARS, OptimizerSpec, optimizer_spec


def make_adam(params):
    return optim.Adam(params)


@pytest.mark.parametrize(
    ("factory", "name"),
    [
        (optim.SGD, "SGD"),
        (partial(optim.SGD, lr=1), "SGD"),
        (make_adam, "make_adam"),
        (lambda p: optim.SGD(p), "<lambda>"),
    ],
)
def test_name(factory, name):
    assert OptimizerSpec(factory).name == name


@pytest.mark.parametrize("factory", [partial(optim.Adam, lr=0.5), make_adam, lambda p: optim.SGD(p, lr=2)])
def test_a_factory_has_one_group(factory):
    module = nn.Linear(2, 1)
    spec, group_of = optimizer_spec(factory, module)
    assert spec == OptimizerSpec(factory)
    assert [group_of(p) for p in module.parameters()] == [0, 0]
    assert spec.shadow()[0].param_groups[0]["lr"] == factory(module.parameters()).param_groups[0]["lr"]


HYPER = {
    "SGD": (optim.SGD, {"lr": 0.3, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    "Adam": (optim.Adam, {"lr": 0.3, "betas": (0.5, 0.6), "amsgrad": True}),
    "AdamW": (optim.AdamW, {"eps": 1e-3, "weight_decay": 0.5}),
    "Rprop": (optim.Rprop, {"etas": (0.4, 1.3)}),
    "NAdam": (optim.NAdam, {"momentum_decay": 0.1}),
    "ASGD": (optim.ASGD, {"t0": 3}),
    "Adagrad": pytest.param(
        optim.Adagrad,
        {"initial_accumulator_value": 0.5},
    ),
}


@pytest.mark.parametrize(
    ("cls", "hyper"), [v if hasattr(v, "marks") else pytest.param(*v) for v in HYPER.values()], ids=HYPER
)
def test_an_instance_is_rebuilt_with_its_hyper_parameters(cls, hyper):
    module = nn.Linear(2, 1)
    original = cls(module.parameters(), **hyper)
    spec, _ = optimizer_spec(original, module)
    rebuilt = loads(dumps(spec, "optimizer")).build([(torch.zeros(3), 0)])
    assert type(rebuilt) is cls
    assert {k: v for k, v in rebuilt.param_groups[0].items() if k != "params"} == {
        k: v for k, v in original.param_groups[0].items() if k != "params"
    }
    for kept, fresh in zip(original.state.values(), rebuilt.state.values(), strict=False):
        assert {k: float(v.max()) for k, v in kept.items()} == {k: float(v.max()) for k, v in fresh.items()}


def test_groups_of_an_instance():
    module = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
    groups = [{"params": module[1].parameters(), "lr": 0.1}, {"params": module[0].parameters()}]
    spec, group_of = optimizer_spec(optim.SGD(groups, lr=0.7), module)
    assert [group_of(p) for p in module.parameters()] == [1, 1, 0, 0]
    assert [g["lr"] for g in spec.groups] == [0.1, 0.7]
    assert spec.shadow()[0].param_groups[0]["lr"] == 0.1
    only_second = spec.build([(torch.zeros(1), 1)])
    assert [g["lr"] for g in only_second.param_groups] == [0.7]


def test_frozen_parameters_need_no_group():
    module = nn.Linear(2, 1)
    module.bias.requires_grad_(False)
    optimizer_spec(optim.SGD([module.weight]), module)


class Opaque(optim.Optimizer):
    """Does not keep its argument as a hyper-parameter."""

    def __init__(self, params, schedule, **options):
        super().__init__(params, {"lr": 1.0})


def used_optimizer(module):
    optimizer = optim.Adam(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer


REJECTED = {
    "name": (lambda m: "adam", r"optimizer='adam': expected a factory such as partial\(torch.optim.Adam"),
    "none": (lambda m: None, "optimizer=None"),
    "used": (used_optimizer, "the Adam has made steps already"),
    "partial cover": (lambda m: optim.SGD([m.weight]), "the SGD does not hold parameter 'bias'"),
    "foreign": (lambda m: optim.SGD(nn.Linear(2, 1).parameters()), "does not hold parameter 'weight'"),
    "opaque": (lambda m: Opaque(m.parameters(), schedule=3), r"arguments \['schedule'\] that the Opaque"),
}


@pytest.mark.parametrize(("make", "message"), REJECTED.values(), ids=REJECTED)
def test_what_cannot_be_an_optimizer(make, message):
    module = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match=message):
        optimizer_spec(make(module), module)


# -- schedulers ---------------------------------------------------------------------------------


def test_what_a_scheduler_changes_and_nothing_else():
    spec = OptimizerSpec(partial(optim.AdamW, lr=0.1), ({}, {"lr": 1.0}))
    shadows = spec.shadow()
    assert spec.hyper_of(shadows) == ({}, {})
    scheduler = optim.lr_scheduler.OneCycleLR(shadows[0], max_lr=[0.4, 0.8], total_steps=4)
    shadows[0].step()
    scheduler.step()
    first, second = spec.hyper_of(shadows)
    assert set(first) == {"lr", "betas"}
    assert first == {name: shadows[0].param_groups[0][name] for name in first}
    assert second["lr"] == shadows[0].param_groups[1]["lr"]


def test_a_learning_rate_that_is_a_tensor_stays_the_factorys():
    rate = torch.tensor(0.5)
    spec = OptimizerSpec(partial(optim.Adam, lr=rate))
    shadows = spec.shadow()
    scheduler = optim.lr_scheduler.StepLR(shadows[0], 1, 0.5)
    shadows[0].step()
    scheduler.step()
    assert float(rate) == 0.5
    assert spec.hyper_of(shadows) == ({"lr": 0.25},)
    assert type(spec.hyper_of(shadows)[0]["lr"]) is float


def test_reductions_are_known_without_building_an_optimizer():
    assert OptimizerSpec(partial(LARS)).reductions == 1
    assert OptimizerSpec(lambda p: LARS(p, lr=0.1)).reductions == 1
    assert OptimizerSpec(optim.SGD).reductions == 0
    assert OptimizerSpec(optim.SGD, others=(OptimizerSpec(LARS),)).reductions == 1

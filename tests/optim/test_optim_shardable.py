from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn, optim

from sparkdl.exceptions import OptimizerError
from sparkdl.optim import (
    LAMB,
    LARS,
    LBFGS,
    AdagradDecay,
    Ftrl,
    OptimizerSpec,
    check_shardable,
    optimizer_spec,
)

STATEFUL = {
    "SGD": (optim.SGD, False),
    "SGD weight decay": (partial(optim.SGD, weight_decay=0.1), False),
    "SGD momentum": (partial(optim.SGD, momentum=0.9), True),
    **{
        name: (getattr(optim, name), True)
        for name in (
            *("Adam", "AdamW", "Adamax", "NAdam", "RAdam"),
            *("RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD", "SparseAdam"),
        )
    },
    **{cls.__name__: (cls, True) for cls in (Ftrl, AdagradDecay, LAMB, LBFGS)},
    "LARS": (partial(LARS, lr=0.1), True),
}


class Lion(optim.Optimizer):
    """A third-party elementwise optimizer."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    average.lerp_(p.grad, 1 - group["beta"])
                    p.add_(average.sign(), alpha=-group["lr"])


class NormalizedSGD(Lion):
    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad / p.grad.norm())


class Forgetful(Lion):
    """Counts its steps outside of the state."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad / self.count)


class ListKeeper(Lion):
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["past"] = [1, 2]


@pytest.mark.parametrize(("factory", "stateful"), STATEFUL.values(), ids=STATEFUL)
def test_elementwise_optimizers_pass(factory, stateful):
    assert check_shardable(OptimizerSpec(factory)) is stateful


def test_a_third_party_elementwise_optimizer_passes():
    assert check_shardable(OptimizerSpec(Lion)) is True
    assert check_shardable(OptimizerSpec(partial(Lion, lr=0.5))) is True


REJECTED = {
    "Adafactor": (optim.Adafactor, "differs from its result on the whole"),
    "LBFGS": (optim.LBFGS, "closure"),
    "NormalizedSGD": (NormalizedSGD, "differs from its result on the whole"),
    "Forgetful": (Forgetful, "differs from its result on the whole"),
}
if hasattr(optim, "Muon"):
    REJECTED["Muon"] = (optim.Muon, "2D")


@pytest.mark.parametrize("name", REJECTED)
def test_others_are_rejected_by_name(name):
    factory, why = REJECTED[name]
    for made in (factory, partial(factory, lr=0.1)):
        with pytest.raises(OptimizerError, match=f"optimizer {name} cannot be applied to shards.*{why}") as e:
            check_shardable(OptimizerSpec(made))
        assert "Elementwise optimizers can: SGD, Adam" in str(e.value)


def test_state_that_no_frame_can_hold_is_rejected():
    with pytest.raises(OptimizerError, match="ListKeeper keeps a list as state 'past'"):
        check_shardable(OptimizerSpec(ListKeeper))


def test_one_group_with_state_makes_the_optimizer_stateful():
    module = nn.Linear(2, 1)
    groups = [{"params": [module.weight]}, {"params": [module.bias], "momentum": 0.9}]
    spec, _ = optimizer_spec(optim.SGD(groups, lr=0.1), module)
    assert check_shardable(spec) is True


def test_one_of_several_optimizers_with_state_makes_them_stateful():
    plain, momentum = OptimizerSpec(optim.SGD), OptimizerSpec(partial(optim.SGD, momentum=0.9))
    assert check_shardable(replace(plain, others=(momentum,))) is True
    assert check_shardable(replace(plain, others=(plain,))) is False
    with pytest.raises(OptimizerError, match="optimizer NormalizedSGD cannot be applied"):
        check_shardable(replace(plain, others=(OptimizerSpec(NormalizedSGD),)))


def test_wrong_arguments_are_reported_with_the_name():
    with pytest.raises(OptimizerError, match=r"Adam cannot be applied.*Invalid learning rate: -1"):
        check_shardable(OptimizerSpec(partial(optim.Adam, lr=-1)))


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    check_shardable(OptimizerSpec(optim.Adam))
    assert torch.equal(torch.get_rng_state(), state)

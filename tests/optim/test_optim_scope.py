"""What the step of an optimizer needs to see is found by trying it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from support.optimizers import Coupled, HalfMomentum, Langevin, LargeMatrices, Shampoo
from torch import nn, optim

from sparkdl.exceptions import ConfigError, OptimizerError
from sparkdl.optim import LAMB, LBFGS, OptimizerSpec, optimizer_spec
from sparkdl.optim.shard.shardable import tried_optimizer
from sparkdl.wire.layout import ParamLayout, lay_out

SHAPES = [(18, 20), (18,), (2, 3, 2)]


def layout(*shapes: tuple[int, ...]) -> ParamLayout:
    return ParamLayout(lay_out([(f"p{i}", shape, 0) for i, shape in enumerate(shapes or SHAPES)]))


class Prodigal(optim.Optimizer):
    """Keeps what it has learned where nobody looks."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        memory = [0.0]
        self.remember = lambda: memory

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.remember()[0] += 1.0
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad / p.grad.norm(), alpha=1 / self.remember()[0])


SCOPES: dict[str, tuple[Any, str]] = {
    "SGD": (optim.SGD, "element"),
    "Adam": (optim.Adam, "element"),
    "LAMB": (LAMB, "element"),
    "LBFGS of ours": (LBFGS, "element"),
    "Adafactor": (optim.Adafactor, "tensor"),
    "Shampoo": (Shampoo, "tensor"),
    "bfloat16": (HalfMomentum, "tensor"),
    "large matrices alone": (LargeMatrices, "tensor"),
    "values of all tensors": (Coupled, "model"),
    "noise": (Langevin, "model"),
}


@pytest.mark.parametrize(("factory", "scope"), SCOPES.values(), ids=SCOPES)
def test_the_scope_is_found(factory: Any, scope: str) -> None:
    assert tried_optimizer(OptimizerSpec(factory), layout()).spec.scope == scope


def test_shards_end_where_the_optimizer_lets_them() -> None:
    assert tried_optimizer(OptimizerSpec(optim.Adam), layout()).layout.uncut == ()
    assert tried_optimizer(OptimizerSpec(Shampoo), layout()).layout.uncut == (
        (0, 360),
        (360, 378),
        (378, 390),
    )
    assert tried_optimizer(OptimizerSpec(Coupled), layout()).layout.uncut == ((0, 390),)


def test_muon_takes_matrices_only() -> None:
    tried = tried_optimizer(OptimizerSpec(optim.Muon), layout((18, 20), (2, 3)))
    assert tried.spec.scope == "tensor"
    assert tried.stateful
    assert tried.spec.shadow()[0].param_groups[0]["params"][0].shape == (2, 3)
    with pytest.raises(OptimizerError, match="Muon fails: ValueError: Muon only supports 2D"):
        tried_optimizer(OptimizerSpec(optim.Muon), layout())


class Sharp(optim.Optimizer):
    """Evaluates the loss a second time, as SAM does."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is not None, "needs a closure"
        closure()


@pytest.mark.parametrize("factory", [optim.LBFGS, Sharp])
def test_optimizers_that_need_a_closure_are_refused_with_the_remedy(factory: Any) -> None:
    with pytest.raises(OptimizerError, match=rf"{factory.__name__} .*needs a closure.*sparkdl\.optim\.LBFGS"):
        tried_optimizer(OptimizerSpec(factory), layout())


def test_what_is_kept_elsewhere_is_refused() -> None:
    with pytest.raises(OptimizerError, match="Prodigal cannot be trained with: .* another result than torch"):
        tried_optimizer(OptimizerSpec(Prodigal), layout())


class Wrapper(Coupled):
    """Changes an object that no frame can hold."""

    def step(self, closure: Any = None) -> None:
        super().step()
        self.log = {math.inf, float(self.steps)}


def test_an_attribute_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(OptimizerError, match=r"Wrapper changes its attribute 'log' \(set\)"):
        tried_optimizer(OptimizerSpec(Wrapper), layout())


# -- instances ------------------------------------------------------------------------------------


class Ranked(optim.Optimizer):
    """Reads an entry of its groups that is no argument, and an argument that is no entry."""

    def __init__(self, params: Any, lr: float = 0.1, block: int = 4) -> None:
        super().__init__(params, {"lr": lr})
        self.block = block

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"] * group.get("rank", 1))


def test_entries_of_groups_that_are_no_arguments_are_kept() -> None:
    module = nn.Linear(3, 2)
    groups = [{"params": [module.weight], "rank": 3}, {"params": [module.bias]}]
    spec, _ = optimizer_spec(Ranked(groups), module)
    assert [group.get("rank") for group in spec.groups] == [3, None]
    optimizer = spec.build([(module.weight, 0), (module.bias, 1)])
    assert optimizer.param_groups[0]["rank"] == 3


def test_arguments_that_an_instance_does_not_tell_are_refused() -> None:
    module = nn.Linear(3, 2)
    assert optimizer_spec(Ranked(module.parameters()), module)[0].name == "Ranked"
    with pytest.raises(
        ConfigError, match="Ranked was built with: its block is 8, and 4 if .* pass a factory"
    ):
        optimizer_spec(Ranked(module.parameters(), block=8), module)


def test_hooks_of_an_instance_are_refused() -> None:
    module = nn.Linear(3, 2)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="the SGD has hooks around its step"):
        optimizer_spec(optimizer, module)


def test_a_closure_s_factory_may_be_partial() -> None:
    with pytest.raises(OptimizerError, match="needs a closure"):
        tried_optimizer(OptimizerSpec(partial(optim.LBFGS, lr=0.5)), layout())

"""Every optimizer, on every problem, whole and in shards, against a reference on the whole model."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import optim
from torch.nn.functional import mse_loss

from sparkdl.optim import LAMB, LARS, LBFGS, AdagradDecay, Ftrl, OptimizerSpec, ShardOptimizer
from sparkdl.optim.reduction import drive
from sparkdl.wire import frame
from sparkdl.wire.held import Shared
from sparkdl.wire.layout import ParamLayout, lay_out

STEPS = 15


class SignMomentum(optim.Optimizer):
    """A user's own: the sign of a running mean."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                state["mean"].lerp_(p.grad, 0.3)
                p.sub_(state["mean"].sign(), alpha=group["lr"])


@dataclass
class Case:
    """An optimizer, and what it is compared with.

    Elementwise ones are equal to the bit. Others add in another order than the whole: they are compared in
    double precision, where 15 steps let rounding grow to far less than the tolerance.
    """

    factory: Callable
    reference: Callable | None = None
    dtype: torch.dtype = torch.float32
    tolerance: float = 0.0


def reducing(factory, reference=None):
    return Case(factory, reference, torch.float64, 1e-9)


CASES = {
    "SGD": Case(partial(optim.SGD, lr=1e-3)),
    "SGD momentum": Case(partial(optim.SGD, lr=1e-3, momentum=0.5, dampening=0.1)),
    "SGD nesterov": Case(partial(optim.SGD, lr=1e-3, momentum=0.5, nesterov=True, weight_decay=0.01)),
    "Adam": Case(partial(optim.Adam, lr=0.01, weight_decay=0.01)),
    "Adam amsgrad": Case(partial(optim.Adam, lr=0.01, amsgrad=True)),
    "AdamW": Case(partial(optim.AdamW, lr=0.01, weight_decay=0.1)),
    "Adamax": Case(partial(optim.Adamax, lr=0.01, weight_decay=0.01)),
    "NAdam": Case(partial(optim.NAdam, lr=0.01, weight_decay=0.01)),
    "RAdam": Case(partial(optim.RAdam, lr=0.001, weight_decay=0.01)),
    "RMSprop": Case(partial(optim.RMSprop, lr=0.001, weight_decay=0.01)),
    "RMSprop momentum": Case(partial(optim.RMSprop, lr=0.001, momentum=0.5)),
    "RMSprop centered": Case(partial(optim.RMSprop, lr=0.001, centered=True, momentum=0.5)),
    "Rprop": Case(partial(optim.Rprop, lr=0.01)),
    "Adagrad": Case(
        partial(optim.Adagrad, lr=0.01, lr_decay=0.1, initial_accumulator_value=0.1, weight_decay=0.01)
    ),
    "Adadelta": Case(partial(optim.Adadelta, lr=1.0, weight_decay=0.01)),
    "ASGD": Case(partial(optim.ASGD, lr=1e-3, t0=2, weight_decay=0.01)),
    "Ftrl": Case(partial(Ftrl, lr=0.01, l1=0.01, l2=0.1, l2_shrinkage=0.01)),
    "AdagradDecay": Case(partial(AdagradDecay, lr=0.01, decay_step=4, decay_rate=0.5)),
    "a user's own": Case(partial(SignMomentum, lr=0.005)),
    "LARS": reducing(partial(LARS, lr=1.0, weight_decay=0.01)),
    "LARS nesterov": reducing(partial(LARS, lr=1.0, nesterov=True)),
    "LAMB": reducing(partial(LAMB, lr=0.01, weight_decay=0.01)),
    "LBFGS": reducing(
        partial(LBFGS, lr=0.3, history_size=4), partial(optim.LBFGS, lr=0.3, history_size=4, max_iter=1)
    ),
}


@dataclass
class Problem:
    """A loss of some parameters; cuts go through parameters and between them."""

    shapes: list[tuple[int, ...]]
    loss: Callable[[list[torch.Tensor]], torch.Tensor]
    cuts: tuple[int, ...]

    def layout(self, dtype):
        entries = [(f"p{i}", shape, 0) for i, shape in enumerate(self.shapes)]
        return ParamLayout(lay_out(entries), dtype=str(dtype).removeprefix("torch."))

    def start(self, dtype):
        generator = torch.Generator().manual_seed(3)
        return [0.5 * torch.randn(shape, generator=generator, dtype=dtype) for shape in self.shapes]


def quadratic(params):
    x = torch.cat([p.flatten() for p in params])
    return 0.5 * (torch.logspace(-1, 1, len(x), dtype=x.dtype) * (x - 1) ** 2).sum()


def rosenbrock(params):
    x = torch.cat([p.flatten() for p in params])
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def mlp(params):
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(20, 3, generator=generator, dtype=torch.float64).to(params[0].dtype)
    targets = features.sin().sum(dim=1, keepdim=True)
    hidden = torch.tanh(features @ params[0].T + params[1])
    return mse_loss(hidden @ params[2].T + params[3], targets)


PROBLEMS = {
    "quadratic": Problem([(4, 5), (7,)], quadratic, (0, 9, 22, 27)),
    "Rosenbrock": Problem([(2,), (), (2, 2)], rosenbrock, (0, 1, 5, 7)),
    "MLP": Problem([(6, 3), (6,), (1, 6), (1,)], mlp, (0, 7, 26, 31)),
}


def gradients(problem, values):
    """Gradients of leaves of their own: what a view's place in memory is must not tell."""
    params = [value.detach().clone().requires_grad_() for value in values]
    loss = problem.loss(params)
    return loss.item(), torch.autograd.grad(loss, params)


def train_whole(case, problem):
    params = [torch.nn.Parameter(value) for value in problem.start(case.dtype)]
    optimizer = (case.reference or case.factory)(params)
    for _ in range(STEPS):
        for p, gradient in zip(params, gradients(problem, params)[1], strict=True):
            p.grad = gradient
        optimizer.step(lambda: torch.zeros(()))
    return torch.cat([p.detach().flatten() for p in params])


def train_shards(case, problem, cuts):
    """As tasks do: every shard is built again in every step, from the bytes of its state."""
    spec, layout = OptimizerSpec(case.factory), problem.layout(case.dtype)
    used = np.ones(len(layout.params), np.bool_)
    flat = torch.cat([value.flatten() for value in problem.start(case.dtype)])
    states = [None] * (len(cuts) - 1)
    losses = []
    for _ in range(STEPS):
        views = [flat[p.offset : p.end].view(p.shape) for p in layout.params]
        loss, parts = gradients(problem, views)
        losses.append(loss)
        gradient = torch.cat([part.flatten() for part in parts])
        shards = [
            ShardOptimizer(spec, layout, lo, hi, None if state is None else Shared(state))
            for (lo, hi), state in zip(pairwise(cuts), states, strict=True)
        ]
        drive([s.update(flat[s.start : s.stop], gradient[s.start : s.stop].clone(), used) for s in shards])
        states = [frame.unpack(frame.join(s.state_frame())) for s in shards]
    return flat, losses


@pytest.mark.parametrize("shards", [1, 3], ids=["1 shard", "3 shards"])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_shards_against_the_whole(case, problem, shards):
    cuts = problem.cuts if shards > 1 else (0, problem.cuts[-1])
    found, losses = train_shards(case, problem, cuts)
    expected = train_whole(case, problem)
    if case.tolerance:
        torch.testing.assert_close(found, expected, rtol=case.tolerance, atol=case.tolerance)
    else:
        assert torch.equal(found, expected)
    assert losses[-1] < losses[0]

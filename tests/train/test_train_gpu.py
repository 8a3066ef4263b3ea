"""Fits on a GPU against the same training in plain torch there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.gpus import one_gpu
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import SparkdlError
from sparkdl.optim import LAMB, LARS, LBFGS, AdagradDecay, ClipByNorm, Ftrl
from sparkdl.train import EMA, Checkpoint, MaxIteration

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
STEPS, ROWS = 9, 64
random = np.random.default_rng(0)
X = random.standard_normal((ROWS, 6), dtype=np.float32)
Y = random.integers(0, 3, ROWS)
WORDS = random.integers(0, 50, (ROWS, 4))

Factory = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Factory] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "amsgrad": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "rprop": partial(torch.optim.Rprop, lr=0.01),
    "asgd": partial(torch.optim.ASGD, lr=0.1),
    "adafactor": partial(torch.optim.Adafactor, lr=0.01),
    "ftrl": partial(Ftrl, lr=0.1),
}
OURS: dict[str, Factory] = {
    "lamb": partial(LAMB, lr=0.01),
    "lars": partial(LARS, lr=0.1),
    "lbfgs": partial(LBFGS, lr=0.1),
    "decay": partial(AdagradDecay, lr=0.1),
}


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        layers = [
            nn.Linear(6, 16, bias=False),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(16, 3),
        ]
        self.net = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.net(x)


class Bag(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8, sparse=sparse)
        self.out = nn.Linear(8, 3)

    def forward(self, words: Any) -> Any:
        return self.out(self.table(words).mean(1))


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return make()


def by_torch(module: nn.Module, factory: Any, x: Any, clip: float | None = None, steps: int = STEPS) -> Any:
    module, inputs, label = module.to("cuda"), torch.from_numpy(x).to("cuda"), torch.from_numpy(Y).to("cuda")
    optimizers = factory(module) if isinstance(factory, Split) else [factory(module.parameters())]
    losses = []
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), label)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return {name: values.cpu() for name, values in module.state_dict().items()}, losses


class Split:
    """Several optimizers for plain torch."""

    def __init__(self, **factories: Factory) -> None:
        self.factories = factories

    def __call__(self, module: nn.Module) -> list[torch.optim.Optimizer]:
        return [make(getattr(module, name).parameters()) for name, make in self.factories.items()]


@pytest.fixture(scope="module")
def spark(sessions: Any, tmp_path_factory: Any) -> Any:
    return sessions.get("local-cluster[1,2,4096]", **one_gpu(tmp_path_factory.mktemp("gpu")))


def fit(
    spark: Any, module: nn.Module, optimizer: Any, x: Any = X, partitions: int = 1, **options: Any
) -> Any:
    steps, resume = options.pop("steps", STEPS), options.pop("resume", False)
    with Dataset.from_numpy([x], Y, spark=spark, num_partitions=partitions) as data:
        many = options.get("exchange") != "driver"
        given: dict[str, Any] = {"iterations_per_job": 4 if many else 1, "progress": False, **options}
        trainer = Trainer(
            module,
            loss=nn.CrossEntropyLoss(),
            optimizer=optimizer,
            batch_size=ROWS,
            end_when=MaxIteration(steps),
            shuffle=False,
            **given,
        )
        return trainer.fit(data, resume=resume)


def assert_equal(result: Any, expected: Any, tolerance: float = 1e-5) -> None:
    weights, losses = expected
    found = [row["loss"] for row in result.history]
    assert found == pytest.approx(losses, rel=tolerance, abs=tolerance)
    for name, values in result.module.state_dict().items():
        torch.testing.assert_close(values, weights[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [*OPTIMIZERS])
def test_weights_are_those_of_torch(spark: Any, name: str) -> None:
    result = fit(spark, made(Net), OPTIMIZERS[name])
    assert result.history[-1]["direct"] == 1
    assert_equal(result, by_torch(made(Net), OPTIMIZERS[name], X))


@pytest.mark.parametrize("name", [*OURS])
def test_optimizers_with_sums_over_all_weights_do_what_they_do_on_cpus(spark: Any, name: str) -> None:
    result = fit(spark, made(Net), OURS[name], steps=6)
    module = made(Net)
    optimizer = OURS[name](module.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
        optimizer.step()
    for key, values in result.module.state_dict().items():
        torch.testing.assert_close(values, module.state_dict()[key], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    "options", [{}, {"exchange": "sharded"}, {"exchange": "driver"}, {"transport": "shuffle"}]
)
def test_two_partitions_exchange_what_they_have_computed(spark: Any, options: Any) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    result = fit(spark, made(make), OPTIMIZERS["adam"], partitions=2, **options)
    assert_equal(result, by_torch(made(make), OPTIMIZERS["adam"], X))


def test_clipping_and_averages(spark: Any) -> None:
    result = fit(spark, made(Net), OPTIMIZERS["momentum"], clip=ClipByNorm(0.1), averaging=EMA(decay=0.5))
    _, losses = by_torch(made(Net), OPTIMIZERS["momentum"], X, clip=0.1)
    assert [row["loss"] for row in result.history] == pytest.approx(losses, rel=1e-5)


def test_shards_and_whole_weights_lead_to_the_same(spark: Any) -> None:
    found = [fit(spark, made(Net), OPTIMIZERS["adam"], exchange=how) for how in ("auto", "sharded", "driver")]
    for other in found[1:]:
        for a, b in zip(
            found[0].module.state_dict().values(), other.module.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_tables(spark: Any, sparse: bool) -> None:
    adam = OPTIMIZERS["adam"]
    lazy: Any = partial(torch.optim.SparseAdam, lr=0.01) if sparse else partial(torch.optim.Adagrad, lr=0.1)
    make = partial(Bag, sparse)
    expected = by_torch(made(make), Split(table=lazy, out=adam), WORDS)
    for partitions in (1, 2):
        result = fit(spark, made(make), {"table.*": lazy, "*": adam}, x=WORDS, partitions=partitions)
        assert_equal(result, expected)


def test_local_steps(spark: Any) -> None:
    results = [fit(spark, made(Net), OPTIMIZERS["adam"], local_steps=3, steps=3) for _ in range(2)]
    for a, b in zip(*(result.module.state_dict().values() for result in results), strict=True):
        assert torch.equal(a, b)


def test_the_first_task_of_a_process_draws_what_later_ones_draw(spark: Any) -> None:
    make = partial(Net, 0.5)
    found = []
    for _ in range(2):
        result = fit(spark, made(make), OPTIMIZERS["adam"], steps=4)
        found.append([row["loss"] for row in result.history])
    single = fit(spark, made(make), OPTIMIZERS["adam"], steps=4, iterations_per_job=1)
    found.append([row["loss"] for row in single.history])
    assert found[0] == found[1] == found[2]


def test_a_run_goes_on_from_a_checkpoint_with_the_state_on_the_device(spark: Any, tmp_path: Path) -> None:
    for name in ("adam", "fused"):
        folder = tmp_path / name
        whole = fit(spark, made(Net), OPTIMIZERS[name], steps=8)
        hooks = [Checkpoint(str(folder))]
        fit(spark, made(Net), OPTIMIZERS[name], steps=4, hooks=hooks)
        rest = fit(spark, made(Net), OPTIMIZERS[name], steps=8, hooks=hooks, resume=True)
        for a, b in zip(whole.module.state_dict().values(), rest.module.state_dict().values(), strict=True):
            assert torch.equal(a, b), name


def test_a_nan_is_refused_by_name_on_a_device(spark: Any) -> None:
    x = X.copy()
    x[3, 2] = np.nan
    with pytest.raises(SparkdlError, match=r"NaN|finite"):
        fit(spark, made(Net), OPTIMIZERS["adam"], x=x)

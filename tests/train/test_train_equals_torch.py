"""What torch's users write in modules trains as in torch, or is refused by name."""

from __future__ import annotations

import copy
import random
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.data import as_dataset
from support.reference import Partition, iteration_rows
from torch import nn
from torch.nn.utils import parametrizations, prune

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import ModelError, SparkdlWarning
from sparkdl.train import Hook, MaxIteration, Run

X = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
Y = (X @ np.ones((4, 1)) + 0.1).astype(np.float32)
SIZES = {"1": [48], "2": [32, 16]}
STEPS, BATCH, SEED = 6, 12, 3
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def parts_of(sizes: list[int]) -> list[Partition]:
    bounds = np.cumsum([0, *sizes])
    return [Partition(X[a:b], Y[a:b]) for a, b in pairwise(bounds)]


def fit(spark: Any, module: nn.Module, sizes: list[int], loss: Any = None, **options: Any) -> Any:
    with as_dataset(spark, parts_of(sizes)) as data:
        settings = {"batch_size": BATCH, "seed": SEED, "end_when": MaxIteration(STEPS), "progress": False}
        loss = nn.MSELoss() if loss is None and "step" not in options else loss
        return Trainer(module, loss=loss, optimizer=SGD, **(settings | options)).fit(data)


def in_torch(module: nn.Module, sizes: list[int], loss: Any = None) -> tuple[nn.Module, list[float]]:
    """Train in place, on whole batches."""
    loss, parts, losses = loss or nn.MSELoss(), parts_of(sizes), []
    optimizer = SGD([p for p in module.parameters() if p.requires_grad])
    for iteration in range(STEPS):
        _, rows = iteration_rows(parts, BATCH, iteration, SEED)
        x, y = (
            torch.from_numpy(np.concatenate([getattr(p, n)[r] for p, r in zip(parts, rows, strict=True)]))
            for n in "xy"
        )
        optimizer.zero_grad()
        value = loss(module(x), y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return module, losses


def assert_equal(found: nn.Module, expected: nn.Module, sizes: list[int]) -> None:
    state = found.state_dict()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=0 if len(sizes) == 1 else 1e-4, atol=1e-6)


class Byol(nn.Module):
    """A target network that follows by a moving average; ``write`` is how it is moved."""

    def __init__(self, write: str = "in place") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.online = nn.Linear(4, 1)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.write = write

    def forward(self, x: Any) -> Any:
        if self.training:
            with torch.no_grad():
                for a, b in zip(self.online.parameters(), self.target.parameters(), strict=True):
                    if self.write == "in place":
                        b.mul_(0.5).add_(a, alpha=0.5)
                    elif self.write == "data":
                        b.data.mul_(0.5).add_(a.data, alpha=0.5)
                    else:
                        b.data = b.data * 0.5 + a.data * 0.5
        return self.online(x) + 0.5 * self.target(x)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"iterations_per_job": 1},
        {"exchange": "sharded"},
        {"exchange": "driver"},
        {"transport": "shuffle"},
    ],
    ids=str,
)
def test_frozen_parameters_that_forward_moves(spark: Any, sizes: list[int], options: Any) -> None:
    expected, losses = in_torch(Byol(), sizes)
    result = fit(spark, Byol(), sizes, **options)
    assert not torch.equal(expected.target.weight, Byol().target.weight)
    assert_equal(result.module, expected, sizes)
    np.testing.assert_allclose([row["loss"] for row in result.history], losses, rtol=1e-5)


def test_frozen_parameters_that_are_replaced(spark: Any) -> None:
    expected, _ = in_torch(Byol("replaced"), [48])
    assert_equal(fit(spark, Byol("replaced"), [48]).module, expected, [48])


class Counting(nn.Module):
    def __init__(self, use: Any = lambda self, y: y) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.steps, self.cache, self.use = nn.Linear(4, 1), 0, {}, use

    def forward(self, x: Any) -> Any:
        self.steps += 1
        scale = self.cache.setdefault(x.shape[1], torch.full((1,), 2.0))
        return self.use(self, self.layer(x) * scale)


def test_counters_and_caches_that_nothing_reads_work(spark: Any) -> None:
    expected, _ = in_torch(Counting(), [48])
    assert_equal(fit(spark, Counting(), [48]).module, expected, [48])


def test_a_counter_that_the_loss_depends_on_is_refused(spark: Any) -> None:
    with pytest.raises(ModelError, match=r"forward changes 'steps'.*register_buffer"):
        fit(spark, Counting(lambda m, y: y * 0.9**m.steps), [48])


class Standardized(nn.Module):
    """Takes the mean of all rows so far; ``of_rows`` says whether it counts rows or batches."""

    def __init__(self, of_rows: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.of_rows = nn.Linear(4, 1), of_rows
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("sum", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.count += len(x) if self.of_rows else 1
        self.sum += x.detach().sum(0) if self.of_rows else x.detach().mean(0)
        return self.layer(x - self.sum / self.count)


def test_a_buffer_that_counts_rows_is_told_of(spark: Any) -> None:
    """With two partitions it counts those of the larger one."""
    with Dataset.from_numpy(X, Y, spark=spark, num_partitions=1) as data:  # which counts all
        Trainer(Standardized(of_rows=True), loss=nn.MSELoss(), optimizer=SGD, progress=False).fit(data)
    fit(spark, Standardized(of_rows=False), [32, 16])
    with pytest.warns(SparkdlWarning, match="forward counts the rows of a batch in buffer 'count'"):
        fit(spark, Standardized(of_rows=True), [32, 16])


class Adds(nn.Module):
    """Has a buffer of floats that each batch changes."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.change = nn.Linear(4, 1), change
        self.register_buffer("seen", torch.full((4,), 2.0))

    def forward(self, x: Any) -> Any:
        self.seen += self.change(x.detach(), self.seen)
        return self.layer(x)


ADDED: dict[str, Any] = {
    "rows": lambda x, _: float(len(x)),
    "sums": lambda x, _: x.sum(0),
    "sums that fade": lambda x, seen: 0.1 * ((x > 0).float().sum(0) - seen),
}
RIGHT: dict[str, Any] = {
    "batches": lambda x, _: 1.0,
    "means": lambda x, seen: 0.1 * (x.mean(0) - seen),
    "variances": lambda x, seen: 0.1 * (x.var(0) - seen),
    "largest": lambda x, seen: torch.maximum(seen, x.amax(0)) - seen,
}


@pytest.mark.parametrize("change", ADDED.values(), ids=ADDED)
def test_a_buffer_of_floats_that_adds_up_rows_is_told_of(spark: Any, change: Any) -> None:
    """In torch it has the sum over all rows, and with two partitions the mean of both sums."""
    with pytest.warns(SparkdlWarning, match=r"forward adds up the rows of a batch in buffer 'seen'"):
        found = fit(spark, Adds(change), [32, 16]).module
    expected, _ = in_torch(Adds(change), [32, 16])
    assert not torch.allclose(found.seen, expected.seen, rtol=0.1)


@pytest.mark.parametrize("change", RIGHT.values(), ids=RIGHT)
def test_other_buffers_of_floats_are_not(spark: Any, change: Any) -> None:
    fit(spark, Adds(change), [32, 16])


class Remembers(nn.Module):
    """Has state that begins as a buffer of a type or size that it does not keep, or as none."""

    def __init__(self, first: Any, then: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.then = nn.Linear(4, 1), then
        self.register_buffer("state", first)

    def forward(self, x: Any) -> Any:
        self.state = self.then(self.state, x.detach())
        return self.layer(x + self.state.float().mean(0))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (None, lambda state, x: x.mean(0) if state is None else state, "forward changes 'state'.*None"),
        (torch.zeros(0, 4), lambda state, x: torch.cat([state, x]), "forward changes 'state'.*another size"),
        (torch.tensor(0), lambda state, x: 0.5 * state + x.mean(), "torch.int64 .*torch.float32.*Register"),
        (torch.tensor(False), lambda state, x: state + 1, "torch.bool .*torch.int64.*Register it as"),
    ],
    ids=["lazy", "grows", "integer", "bool"],
)
def test_buffers_that_cannot_travel_are_refused(
    spark: Any, sizes: list[int], first: Any, then: Any, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        fit(spark, Remembers(first, then), sizes, end_when=MaxIteration(20))


def test_a_cache_in_a_buffer_that_was_none_works(spark: Any) -> None:
    def then(state: Any, x: Any) -> Any:
        return state if state is not None and len(state) >= len(x) else torch.ones(len(x), x.shape[1])

    expected, _ = in_torch(Remembers(torch.ones(1, 4), lambda state, _: state), [48])
    found = fit(spark, Remembers(None, then), [48], end_when=MaxIteration(STEPS)).module
    assert torch.equal(found.layer.weight, expected.layer.weight)


@pytest.mark.parametrize("make", [torch.Generator, np.random.default_rng, random.Random])
def test_a_generator_that_only_forward_knows_is_refused(spark: Any, make: Any) -> None:
    """Each process would have a copy: the same numbers in all partitions, others for another job size."""
    found = make()

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: Any) -> Any:
            drawn = torch.rand((), generator=found) if make is torch.Generator else found.random()
            return self.layer(x + drawn)

    with pytest.raises(ModelError, match=r"forward changes 'forward\.found'.*torch's global generator"):
        fit(spark, Noisy(), [48])


class Alias(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        if kind == "buffer":
            self.register_buffer("other", self.layer.weight.detach())
        elif kind == "parameter":
            self.register_buffer("other", self.layer.weight)
        else:
            self.other = self.layer.weight.t() if kind == "view" else self.layer.weight.data[1:]

    def forward(self, x: Any) -> Any:
        return (self.layer(x) @ self.other.T).sum(1, keepdim=True)


@pytest.mark.parametrize("kind", ["buffer", "parameter", "view", "part"])
def test_a_tensor_in_the_memory_of_a_parameter_is_refused(spark: Any, kind: str) -> None:
    """In torch it follows the parameter, which it could not in tasks."""
    with pytest.raises(ModelError, match=r"'other' of Alias lies in the memory of parameter 'layer\.weight'"):
        fit(spark, Alias(kind), [48])


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        self.layer.weight.data.clamp_(-0.1, 0.1)
        return self.layer(x)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_counter_that_the_loss_depends_on_later_is_refused(spark: Any, sizes: list[int]) -> None:
    module = Counting(lambda self, y: y * (0.5 if self.steps > 5 else 1.0))
    with pytest.raises(ModelError, match="forward changes 'steps'.*and the loss or its gradient depends"):
        fit(spark, module, sizes, end_when=MaxIteration(20))


def test_a_counter_that_nothing_reads_beside_layers_that_are_frozen_later(spark: Any) -> None:
    class Freezes(Hook):
        def on_iteration_begin(self, run: Run) -> None:
            if run.state.iteration == 2:
                run.freeze("layer.bias")

    class Plain(Counting):
        def forward(self, x: Any) -> Any:
            return self.layer(x) * 2.0

    counting, plain = (
        fit(spark, module, [48], end_when=MaxIteration(20), hooks=[Freezes()]).module
        for module in (Counting(), Plain())
    )
    assert torch.equal(counting.layer.bias, plain.layer.bias)
    assert torch.equal(counting.layer.weight, plain.layer.weight)


class LateByol(Byol):
    """The target network moves from the third forward pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Any) -> Any:
        self.seen += 1
        return super().forward(x) if self.seen > 3 else self.online(x) + 0.5 * self.target(x)


def test_frozen_parameters_that_begin_to_move_later_are_refused(spark: Any) -> None:
    with pytest.raises(ModelError, match="forward has begun to change 'target.weight', 'target.bias'"):
        fit(spark, LateByol(), [48], end_when=MaxIteration(9))


def test_a_forward_pass_that_writes_to_trained_weights_is_refused(spark: Any) -> None:
    with pytest.raises(ModelError, match=r"writes to 'layer.weight'.*parametrize"):
        fit(spark, Clamped(), [48])


def _mask(mask: Any, parameter: Any) -> None:
    parameter.grad.mul_(mask)


def masked(method: str) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0]).unsqueeze(1)
    weight = module[0].weight
    if method == "hook":
        weight.register_hook(lambda gradient: gradient * mask)
    elif method == "in place":
        weight.register_post_accumulate_grad_hook(partial(_mask, mask))
    elif method == "replaced":
        weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad * mask))
    elif method == "of module":
        module[0].register_forward_hook(lambda _, __, output: output * 2)
    else:
        prune.random_unstructured(module[0], "weight", 0.5)
    return module


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("method", ["hook", "in place", "replaced", "of module", "pruned"])
def test_hooks(spark: Any, method: str, sizes: list[int]) -> None:
    expected, _ = in_torch(masked(method), sizes)
    found = fit(spark, masked(method), sizes).module
    assert_equal(found, expected, sizes)
    if method in ("hook", "in place", "replaced"):
        assert torch.equal(found[0].weight[1], masked(method)[0].weight[1])
        assert not torch.equal(found[0].weight[0], masked(method)[0].weight[0])


class Centres(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(1))

    def forward(self, output: Any, label: Any) -> Any:
        return ((output - label - self.centre) ** 2).mean()


def test_a_loss_with_parameters_is_refused(spark: Any) -> None:
    with pytest.raises(ModelError, match=r"'Centres.centre' of the loss.*step="):
        fit(spark, nn.Linear(4, 1), [48], Centres())
    loss = Centres()
    with pytest.raises(ModelError, match="centre"):
        fit(spark, nn.Linear(4, 1), [48], step=lambda m, b: loss(m(b.inputs), b.label))
    fit(spark, nn.Linear(4, 1), [48], Centres().requires_grad_(False))


PARAMETRIZATIONS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_parametrizations(spark: Any, name: str, sizes: list[int]) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(PARAMETRIZATIONS[name](nn.Linear(4, 4)), nn.Linear(4, 1))

    expected, _ = in_torch(make(), sizes)
    assert_equal(fit(spark, make(), sizes).module, expected, sizes)

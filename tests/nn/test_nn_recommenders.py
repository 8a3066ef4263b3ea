"""Models of recommenders on embedding variables, beside torch's tables and plain torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.contract import check_model
from support.reference import threads
from torch import Tensor, nn

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import ConfigError, ModelError, SparkdlWarning
from sparkdl.keyed.mix import initial_rows
from sparkdl.nn import DIN, DLRM, DeepFM, NeuralCF, TwoTower, WideAndDeep
from sparkdl.nn.batch import Batch
from sparkdl.nn.embedding import embedding_variables
from sparkdl.nn.losses import binary_cross_entropy
from sparkdl.nn.models.two_tower import in_batch_softmax, in_batch_step
from sparkdl.train import MaxIteration

ROWS, SIZE = 48, 9
GENERATOR = np.random.default_rng(0)
IDS = GENERATOR.integers(0, SIZE, (ROWS, 2))
ITEM, HISTORY = IDS[:, 0], GENERATOR.integers(0, SIZE, (ROWS, 4))
LENGTH = GENERATOR.integers(0, 5, ROWS)
NUMBERS = GENERATOR.normal(size=(ROWS, 3)).astype(np.float32)
LABEL = GENERATOR.integers(0, 2, ROWS).astype(np.float32)
SHARE = (np.bincount(ITEM, minlength=SIZE)[ITEM] / ROWS).astype(np.float32)
SEED = {"variables": {"seed": 5}}
LAZY = partial(torch.optim.Adagrad, lr=0.1)

Make = Callable[..., nn.Module]
CASES: dict[str, tuple[Make, dict[str, Any]]] = {
    "DLRM": (lambda n, **o: DLRM((n, n), 3, 4, (8,), (8,), **o), {"numbers": NUMBERS, "categories": IDS}),
    "DeepFM": (lambda n, **o: DeepFM((n, n), 3, 4, (8,), 0.0, **o), {"categories": IDS, "numbers": NUMBERS}),
    "WideAndDeep": (lambda n, **o: WideAndDeep(n, (n, n), 0, 4, (8,), **o), {"wide": IDS, "categories": IDS}),
    "NeuralCF": (lambda n, **o: NeuralCF(n, n, 4, 4, (8,), **o), {"user": IDS[:, 0], "item": IDS[:, 1]}),
    "DIN": (
        lambda n, **o: DIN(n, (n,), 3, 4, (8,), (8,), **o),
        {"item": ITEM, "history": HISTORY, "length": LENGTH, "categories": IDS[:, 1:], "numbers": NUMBERS},
    ),
    "TwoTower": (
        lambda n, **o: TwoTower((n,), (n, n), 4, (8,), 4, history=True, **o),
        {"item": IDS, "user": IDS[:, 1:], "history": HISTORY, "length": LENGTH},
    ),
}


def twin(module: nn.Module, make: Make) -> nn.Module:
    """Return the model with tables of a fixed size, and the same first values."""
    other = make(SIZE)
    own, wanted = module.state_dict(), other.state_dict()
    same = {name: own[name] for name in wanted if name in own and own[name].shape == wanted[name].shape}
    other.load_state_dict(same, strict=False)
    with torch.no_grad():
        for name, table in embedding_variables(module).items():
            rule = table.store.rule
            rows = initial_rows(rule.seed, np.arange(SIZE), rule.width, rule.std, np.dtype(np.float32))
            fixed: Any = other.get_submodule(name.removesuffix(".table"))
            fixed.weight.copy_(torch.from_numpy(rows))
    return other


def plain(module: nn.Module, inputs: dict[str, Any], step: Any, steps: int) -> nn.Module:
    """Train on all rows at once in plain torch."""
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    batch = Batch(tensors, torch.from_numpy(SHARE if step else LABEL), None, ROWS)
    optimizer = LAZY(module.parameters())
    for _ in range(steps):
        if step is None:
            loss = binary_cross_entropy(module(**tensors), batch.label)
        else:
            loss = step(module, batch)["loss"]
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    return module.eval()


@pytest.mark.parametrize("name", CASES)
def test_a_model_trains_as_in_plain_torch(in_process: Any, name: str) -> None:
    make, inputs = CASES[name]
    torch.manual_seed(0)
    module = make(None, **SEED)
    assert embedding_variables(module)
    step = in_batch_step if name == "TwoTower" else None
    with threads(1):
        expected = plain(twin(module, make), inputs, step, 3)
        data = Dataset.from_numpy(
            inputs, SHARE if step else LABEL, spark=in_process, num_partitions=1 if step else 2
        )
        objective: dict[str, Any] = {"step": step} if step else {"loss": binary_cross_entropy}
        trainer = Trainer(
            module,
            optimizer=LAZY,
            batch_size=ROWS,
            end_when=MaxIteration(3),
            progress=False,
            **objective,
        )
        with data:
            found = trainer.fit(data).module.eval()
    tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
    with torch.no_grad():
        torch.testing.assert_close(found(**tensors), expected(**tensors), rtol=1e-4, atol=1e-5)
    for key, table in embedding_variables(found).items():
        fixed: Any = expected.get_submodule(key.removesuffix(".table"))
        kept = table.store.entries().sorted()
        rows = fixed.weight.detach()[torch.from_numpy(kept.ids)]
        torch.testing.assert_close(torch.from_numpy(kept.columns["row"]), rows, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["DIN", "TwoTower"])
def test_contract(name: str) -> None:
    make, inputs = CASES[name]
    tensors = [torch.from_numpy(value[:6]) for value in inputs.values()]
    if name == "DIN":
        tensors[2] = torch.tensor([4, 0, 1, 2, 3, 4])
    check_model(lambda: make(SIZE), *tensors)


def test_attention_sees_nothing_of_the_filling() -> None:
    model = DIN(SIZE, embedding=4, attention=(8,), hidden=(8,)).eval()
    item, length = torch.tensor([1, 2]), torch.tensor([2, 0])
    one = model(item, torch.tensor([[3, 4, 5], [6, 7, 8]]), length)
    other = model(item, torch.tensor([[3, 4, 0], [0, 0, 0]]), length)
    assert torch.equal(one, other)
    with pytest.raises(ModelError, match=r"history has shape \(2, 3\) and length \(3,\)"):
        model(item, torch.zeros(2, 3, dtype=torch.int64), torch.tensor([1, 1, 1]))
    with pytest.raises(ModelError, match="categories has shape"):
        model(item, torch.zeros(2, 3, dtype=torch.int64), length, torch.zeros(2, 1, dtype=torch.int64))


def test_a_tower_takes_the_mean_of_the_items_that_are_there() -> None:
    """A history that was cut off has fewer than there were."""
    model = TwoTower((), (SIZE,), 4, (8,), 3, history=True).eval()
    history, length = torch.tensor([[3, 4, 5]]), torch.tensor([3])
    assert torch.equal(model.user_tower(None, history, length), model.user_tower(None, history, 10 * length))


def test_in_batch_softmax_is_the_definition() -> None:
    torch.manual_seed(0)
    users, items = torch.randn(5, 3), torch.randn(5, 3)
    ids = torch.tensor([7, 8, 7, 9, 4])
    share = torch.tensor([0.5, 0.1, 0.5, 0.2, 0.0])
    found = in_batch_softmax(users, items, ids, share, 0.5)
    for row in range(5):
        scores = items @ users[row] / 0.5 - torch.tensor([0.5, 0.1, 0.5, 0.2, 1.0]).log()
        others = [n for n in range(5) if ids[n] != ids[row] or n == row]
        assert found[row] == pytest.approx(float(scores[others].logsumexp(0) - scores[row]), rel=1e-5)


def test_both_towers_share_the_items_table() -> None:
    model = TwoTower((), (None,), history=True, **SEED)
    assert list(embedding_variables(model)) == ["item_tower.embed.tables.0"]
    assert model.user_tower.past is model.item_tower.embed.tables[0]
    with pytest.raises(ModelError, match="needs history and length"):
        model(torch.zeros(2, 1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TwoTower((), (3,)), "expected columns on both sides"),
        (lambda: TwoTower((3,), (3,), temperature=0.0), "temperature=0.0"),
        (lambda: DIN(0), "items=0.*or None for 64-bit ids"),
        (lambda: DLRM((3, 2.5), 1), "cardinalities="),  # type: ignore[arg-type]
        (lambda: DeepFM((None,), variables={"min_count": 0}), "min_count=0"),
    ],
)
def test_what_cannot_be_is_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda size, **more: DeepFM((size, 3), **more),
        lambda size, **more: DIN(size, **more),
        lambda size, **more: DLRM((3, size), 1, 4, **more),
        lambda size, **more: NeuralCF(5, size, **more),
        lambda size, **more: TwoTower((size,), (3,), **more),
        lambda size, **more: WideAndDeep(size, (3,), **more),
    ],
)
def test_options_of_variables_that_there_are_not_get_a_warning(make: Any) -> None:
    with pytest.warns(SparkdlWarning, match="are options of embedding variables, and there are none"):
        make(5, variables={"min_cuont": 3})
    make(5)
    make(None, variables={"min_count": 3})  # where a warning would be an error


def test_variables_of_columns_begin_differently() -> None:
    tables = embedding_variables(DLRM((None, None), 1, 4, **SEED))
    seeds = [table.store.rule.seed for table in tables.values()]
    assert seeds == [5, 6]
    ids: Tensor = torch.arange(3)
    assert DLRM((None, 4), 1, 4)(torch.zeros(3, 1), torch.stack([ids * 2**40, ids], 1)).shape == (3,)

"""Embedding variables with all ranks in one process: the bits of nn.Embedding, whatever is lost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.in_process import Faults
from support.pairs import in_pairs
from support.ranks import Case, bits, train
from support.reference import Partition, threads
from torch import Tensor, nn

from sparkdl.allreduce.transport.direct.task import _most_bytes
from sparkdl.keyed.bloom import CountingBloom
from sparkdl.nn.embedding import EmbeddingBagVariable, EmbeddingVariable, embedding_variables
from sparkdl.optim import AdagradDecay, Ftrl

USERS, ITEMS = 40, 25
FAR = np.int64(0x5DEECE66D123)
"""Ids are far apart: number n of the reference is id n * FAR."""


@pytest.fixture(autouse=True)
def local_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with threads(1):
        yield


class Pairs(nn.Module):
    """Scores of a user and some items, by tables of either kind."""

    def __init__(self, users: nn.Module, items: nn.Module, scale: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.users, self.items, self.scale = users, items, scale
        self.head = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        ids = x * self.scale
        both = self.users(ids[:, 0]) + self.users(ids[:, 1])  # a table that several features share
        return self.head(torch.cat([both, self.items(ids[:, 1:])], 1)).squeeze(1)


def keyed(**options: Any) -> Pairs:
    users = EmbeddingVariable(4, seed=1, std=0.5, **options)
    return Pairs(users, EmbeddingBagVariable(4, seed=2, std=0.5, **options), int(FAR))


def dense(sparse: bool = False) -> Pairs:
    """Return the same with tables of a fixed number of rows, which begin alike."""
    module = Pairs(nn.Embedding(USERS, 4, sparse=sparse), nn.EmbeddingBag(USERS, 4), 1)
    made = keyed()
    with torch.no_grad():
        module.users.weight.copy_(torch.from_numpy(first(made.users)))
        module.items.weight.copy_(torch.from_numpy(first(made.items.table)))
        module.head.load_state_dict(made.head.state_dict())
    return module


def first(table: EmbeddingVariable) -> Any:
    from sparkdl.keyed.mix import initial_rows

    rule = table.store.rule
    return initial_rows(rule.seed, np.arange(USERS) * FAR, 4, rule.std, np.dtype(rule.dtype))


def rows(sizes: Any = (50, 0, 46)) -> list[Partition]:
    generator = np.random.default_rng(0)
    x = np.stack(
        [generator.integers(0, USERS, sum(sizes)), *generator.integers(0, ITEMS, (2, sum(sizes)))], 1
    )
    y = generator.normal(size=sum(sizes)).astype(np.float32)
    ends = np.cumsum([0, *sizes])
    return [Partition(x[a:b], y[a:b]) for a, b in pairwise(ends)]


OPTIMIZERS: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.1),
    "lazy adam": partial(torch.optim.SparseAdam, lr=0.01),
}


def optimizers(of_rows: Any) -> Any:
    # torch adds up the sparse gradient of a bag in another order than the dense one.
    of_bags = OPTIMIZERS["adagrad"] if of_rows is OPTIMIZERS["lazy adam"] else of_rows
    return {"head.*": partial(torch.optim.Adam, lr=0.01), "items*": of_bags, "*": of_rows}


def case(exchange: Any = "replicated", optimizer: Any = OPTIMIZERS["lazy adam"], **options: Any) -> Case:
    module = options.pop("module", None) or keyed()
    return Case(
        module,
        rows(options.pop("sizes", (50, 0, 46))),
        exchange,
        nn.MSELoss(),
        optimizers(optimizer),
        **options,
    )


def check_same(found: nn.Module, expected: Pairs) -> None:
    for name, table in embedding_variables(found).items():
        own = table.store.entries().sorted()
        numbers = own.ids // FAR
        assert (numbers * FAR == own.ids).all()
        weight = (expected.users if name == "users" else expected.items).weight.detach().numpy()
        untouched = np.setdiff1d(np.arange(USERS), numbers)
        assert (weight[untouched] == first(table)[untouched]).all()
        assert own.columns["row"].tobytes() == weight[numbers].tobytes(), name
    for name, value in expected.head.state_dict().items():
        assert torch.equal(found.head.state_dict()[name], value), name


@in_pairs(
    3,
    where={"memory": (True, False), "files": (False, False), "stays": (True, True)},
    optimizer=OPTIMIZERS,
    exchange=["replicated", "sharded"],
    sizes=[(60,), (50, 0, 46)],
)
def test_the_bits_are_those_of_tables_of_a_fixed_size(
    tmp_path: Path, where: tuple[bool, bool], optimizer: Any, exchange: Any, sizes: Any
) -> None:
    in_memory, stays = where
    sparse = optimizer is OPTIMIZERS["lazy adam"]
    of = case(exchange, optimizer, sizes=sizes, in_memory=in_memory, stays=stays)
    expected = train(replace(of, module=dense(sparse)), tmp_path / "expected")
    found = train(of, tmp_path / "found")
    assert found.losses == expected.losses
    check_same(found.module, expected.module)


# -- faults ---------------------------------------------------------------------------------------

CHANGING: dict[str, Any] = {"min_count": 2, "max_age": 3, "min_norm": 0.6, "evict_every": 2}
"""Entries come and go all the time."""


def state(found: nn.Module) -> list[bytes]:
    """Return all that tables have, to be compared to the bit."""
    return [
        values.tobytes()
        for table in embedding_variables(found).values()
        for values in table.store.entries().sorted().arrays("").values()
    ]


@pytest.mark.parametrize(
    ("exchange", "in_memory", "iterations", "group"),
    [
        ("replicated", True, 3, 2),  # entries are evicted after the first group
        pytest.param("replicated", True, 5, 3, marks=pytest.mark.slow),
        pytest.param("sharded", False, 5, 3, marks=pytest.mark.slow),
        pytest.param("replicated", False, 5, 3, marks=pytest.mark.slow),
        pytest.param("sharded", True, 5, 3, marks=pytest.mark.slow),
    ],
)
def test_every_point_of_a_group_at_which_a_rank_is_lost(
    tmp_path: Path, exchange: Any, in_memory: bool, iterations: int, group: int
) -> None:
    more: dict[str, Any] = {"iterations": iterations, "group": group, "in_memory": in_memory}
    of = case(exchange, module=keyed(**CHANGING), sizes=(50, 46), **more)
    whole = train(of, tmp_path / "whole")
    failed = 0
    for point in range(whole.transport.performed):
        faults = Faults(shuffle=False, lose_at=frozenset({point}))
        found = train(replace(of, faults=faults), tmp_path / str(point))
        assert bits(found) == bits(whole), point
        assert state(found.module) == state(whole.module), point
        failed += found.transport.failed
    assert failed >= len(of.partitions)


@pytest.mark.parametrize(
    ("exchange", "optimizer"),
    [
        ("replicated", OPTIMIZERS["lazy adam"]),
        ("sharded", partial(AdagradDecay, decay_step=2)),
        pytest.param("replicated", Ftrl, marks=pytest.mark.slow),
        pytest.param("sharded", OPTIMIZERS["lazy adam"], marks=pytest.mark.slow),
        pytest.param("replicated", partial(AdagradDecay, decay_step=2), marks=pytest.mark.slow),
        pytest.param("sharded", Ftrl, marks=pytest.mark.slow),
    ],
)
def test_faults_change_no_bit(tmp_path: Path, exchange: Any, optimizer: Any) -> None:
    of = case(exchange, optimizer, module=keyed(**CHANGING), sizes=(20, 25, 31), iterations=5, group=3)
    whole = train(of, tmp_path / "whole")
    failed = 0
    for seed in range(4):
        faults = Faults(
            seed=seed, lose=0.01, repeat=0.05, move=0.05, lose_rows=0.002, absent=0.1, vanish=0.01
        )
        more: dict[str, Any] = {
            "in_memory": bool(seed % 2), "sites": 1 + seed % 3, "undo": not seed % 3, "group": 1 + seed % 5,
            "row_memory": None if seed == 3 else 900 * seed + 1,
        }  # fmt: skip
        found = train(replace(of, faults=faults, **more), tmp_path / str(seed))
        assert bits(found) == bits(whole), seed
        assert state(found.module) == state(whole.module), seed
        failed += found.transport.failed
    assert failed


@pytest.mark.parametrize("max_ids", [pytest.param(12, marks=pytest.mark.slow), 5000])
def test_faults_change_no_counter(tmp_path: Path, max_ids: int) -> None:
    module = keyed(**CHANGING | {"min_count": 3}, counters=CountingBloom(max_ids, error=0.05))
    of = case(module=module, sizes=(20, 25, 31), iterations=5, group=3)
    whole = train(of, tmp_path / "whole")
    faults = Faults(seed=1, lose=0.01, repeat=0.05, move=0.05, lose_rows=0.002, absent=0.1, vanish=0.01)
    more: dict[str, Any] = {"in_memory": False, "sites": 3, "undo": True, "group": 2, "row_memory": 900}
    found = train(replace(of, faults=faults, **more), tmp_path / "faults")
    assert found.transport.failed
    assert bits(found) == bits(whole)
    assert state(found.module) == state(whole.module)
    assert any(
        "pages." in name for name in embedding_variables(found.module)["users"].store.entries().arrays("")
    )


def test_with_room_counters_admit_what_exact_counts_admit(tmp_path: Path) -> None:
    exact = train(case(module=keyed(min_count=3), iterations=10), tmp_path / "exact")
    counters = CountingBloom(5000, error=1e-6)
    found = train(case(module=keyed(min_count=3, counters=counters), iterations=10), tmp_path / "found")
    assert bits(found) == bits(exact)
    for name, table in embedding_variables(found.module).items():
        whole = embedding_variables(exact.module)[name].store.entries().sorted()
        expected = whole.where(whole.admitted).arrays("")
        own = table.store.entries().sorted().arrays("")
        assert {key: own[key].tobytes() for key in expected} == {k: v.tobytes() for k, v in expected.items()}


@pytest.mark.parametrize("exchange", ["replicated", "sharded"])
def test_processes_of_one_executor_take_turns(tmp_path: Path, exchange: Any) -> None:
    of = case(
        exchange,
        module=keyed(**CHANGING),
        in_memory=False,
        one_executor=True,
        iterations=10,
        group=3,
        sites=5,
    )
    whole = train(replace(of, sites=1), tmp_path / "one process")
    found = train(replace(of, faults=Faults(seed=7, move=0.7)), tmp_path / "several")
    assert state(found.module) == state(whole.module)
    assert (found.groups, found.transport.failed) == (4, 0)


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("exchange", ["replicated", "sharded"])
def test_undisturbed_groups_are_all_completed(tmp_path: Path, exchange: Any, in_memory: bool) -> None:
    found = train(case(exchange, iterations=9, group=3, in_memory=in_memory), tmp_path)
    assert (found.groups, found.transport.failed) == (3, 0)


def test_rows_travel_in_messages_of_any_length() -> None:
    spec = SimpleNamespace(module=nn.Sequential(EmbeddingVariable(4), nn.Linear(4, 1)))
    assert _most_bytes(SimpleNamespace(spec=spec)) > 1 << 36  # type: ignore[arg-type]

"""Optimizers that need whole tensors, or all of them, in every plan: the bits of torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from sparkdl.codec import Int8, TopK
from support.in_process import Faults
from support.optimizers import Coupled, HalfMomentum, Langevin, LargeMatrices, Shampoo, Split
from support.ranks import Case, bits, classified, train
from support.reference import assert_bit_equal, decomposed, threads
from torch import nn

from sparkdl.optim import ClipByNorm

EXCHANGES = ("driver", "sharded", "replicated")
UNEVEN = (40, 0, 25, 31)
MUON = partial(torch.optim.Muon, lr=0.05)
ADAMW = partial(torch.optim.AdamW, lr=1e-2)
OPTIMIZERS: dict[str, Any] = {
    "adafactor": partial(torch.optim.Adafactor, lr=0.1, weight_decay=0.01),
    "shampoo": Shampoo,
    "half momentum": HalfMomentum,
    "coupled": Coupled,
    "large matrices": LargeMatrices,
    "muon": {"*.weight": MUON, "*": ADAMW},
    "adafactor and coupled": {"*.bias": Coupled, "*": partial(torch.optim.Adafactor, lr=0.1)},
}


def is_bias(tensor: torch.Tensor) -> bool:
    return tensor.ndim == 1


REFERENCES: dict[str, Any] = {
    "muon": lambda p: Split(p, (lambda t: not is_bias(t), MUON), (is_bias, ADAMW)),
    "adafactor and coupled": lambda p: Split(
        p, (is_bias, Coupled), (lambda t: not is_bias(t), partial(torch.optim.Adafactor, lr=0.1))
    ),
}


@pytest.fixture(autouse=True)
def local_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with threads(1):
        yield


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 17), nn.ReLU(), nn.Linear(17, 3))


def case(exchange: Any, optimizer: Any, sizes: Any = UNEVEN, **options: Any) -> Case:
    return Case(net(), classified(sizes), exchange, optimizer=optimizer, **options)


def reference(name: str, of: Case) -> nn.Module:
    optimizer = REFERENCES.get(name, of.optimizer)
    return decomposed(of.module, of.loss, optimizer, of.partitions, of.batch_size, of.iterations, of.seed)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_plan_gives_the_bits_of_torch(tmp_path: Path, exchange: Any, name: str) -> None:
    # On two executors; with rows that move, so that processes of one read what others have left.
    of = case(exchange, OPTIMIZERS[name], in_memory=False, faults=Faults(seed=2, move=0.3))
    assert_bit_equal(train(of, tmp_path).module, reference(name, of))


@pytest.mark.parametrize("shards", [1, 2, 9])
@pytest.mark.parametrize("name", ["adafactor", "coupled"])
def test_shards_end_between_tensors_and_may_be_empty(tmp_path: Path, name: str, shards: int) -> None:
    of = case("driver", OPTIMIZERS[name], num_shards=shards, clip=ClipByNorm(0.5))
    expected = train(case("replicated", OPTIMIZERS[name], clip=ClipByNorm(0.5)), tmp_path / "replicated")
    found = train(of, tmp_path / "driver")
    for a, b in zip(found.module.parameters(), expected.module.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # the norm is added up by shards


@pytest.mark.parametrize("exchange", ["driver", "sharded"])
@pytest.mark.parametrize(
    "options",
    [
        {"codec": Int8(block=8)},
        {"codec": TopK(0.2)},
        {"codec": "bf16"},
        {"averaging": True},
        {"combine": "adasum"},
        {"frozen": {2: (0, 1), 3: (0, 1)}},
    ],
    ids=["int8", "topk", "bf16", "average", "adasum", "frozen"],
)
def test_options_with_empty_shards(tmp_path: Path, exchange: Any, options: dict[str, Any]) -> None:
    made = partial(case, optimizer=OPTIMIZERS["coupled"], sizes=(40, 25, 31), **options)
    expected = train(made("driver", num_shards=1), tmp_path / "one shard")
    found = train(made(exchange, num_shards=3 if exchange == "driver" else None), tmp_path / "several")
    assert bits(found) == bits(expected)


@pytest.mark.parametrize(
    "optimizer", [partial(torch.optim.Adafactor, lr=0.1), Shampoo], ids=["adafactor", "own"]
)
def test_local_steps(tmp_path: Path, optimizer: Any) -> None:
    results = [
        bits(train(case(exchange, optimizer, local_steps=3, group=group), tmp_path / f"{exchange} {group}"))
        for exchange in EXCHANGES
        for group in (1, 3)
    ]
    assert all(found == results[0] for found in results)


@pytest.mark.parametrize("name", ["shampoo", "coupled"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_faults_change_no_bit(tmp_path: Path, exchange: Any, name: str) -> None:
    for seed in range(3):
        faults = Faults(seed=seed, lose=0.02, repeat=0.05, move=0.03)
        of = case(exchange, OPTIMIZERS[name], iterations=5, in_memory=bool(seed % 2), faults=faults)
        assert_bit_equal(train(of, tmp_path / str(seed)).module, reference(name, of))


def test_noise_is_the_same_in_all_processes_and_plans(tmp_path: Path) -> None:
    found = [bits(train(case(exchange, Langevin, sites=4), tmp_path / exchange)) for exchange in EXCHANGES]
    assert found[0] == found[1] == found[2]
    other = train(case("replicated", Langevin, seed=4), tmp_path / "other")
    assert bits(other) != found[0]

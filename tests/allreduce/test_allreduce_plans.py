"""The plans with all ranks in one process: the bits of plain torch, whatever is lost or out of order."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.in_process import Faults, InProcessTransport
from support.models import Factors
from support.pairs import in_pairs
from support.ranks import Case, bits, classified, net, train
from support.reference import Partition, assert_bit_equal, decomposed, plain, threads
from torch import nn

from sparkdl.allreduce.messages import Problems
from sparkdl.allreduce.plans import replicated
from sparkdl.compute.local_store import LocalStore
from sparkdl.compute.problems import LostPeer
from sparkdl.exceptions import DataError, ModelError, NonFiniteError, TaskError
from sparkdl.optim import LAMB, LARS, LBFGS, ClipByNorm
from sparkdl.wire.codec import Int8, TopK

EXCHANGES = ("driver", "sharded", "replicated")
UNEVEN = (40, 0, 25, 31)


@pytest.fixture(autouse=True)
def local_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with threads(1):
        yield


def case(exchange: Any, sizes: Any = UNEVEN, **options: Any) -> Case:
    return Case(options.pop("module", None) or net(), classified(sizes), exchange, **options)


def reference(of: Case) -> nn.Module:
    return decomposed(of.module, of.loss, of.optimizer, of.partitions, of.batch_size, of.iterations, of.seed)


OPTIMIZERS: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": partial(torch.optim.Adam, lr=1e-2),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-2),
}


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_several_ranks_give_the_bits_of_replicas_averaged_in_order(
    tmp_path: Path, exchange: Any, optimizer: Any
) -> None:
    of = case(exchange, optimizer=optimizer)
    assert_bit_equal(train(of, tmp_path).module, reference(of))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_one_rank_gives_the_bits_of_plain_torch(tmp_path: Path, exchange: Any) -> None:
    of = Case(nn.Sequential(*list(net(norm=False))[:2], net()[-1]), classified([50]), exchange)
    expected = plain(of.module, of.loss, of.optimizer, of.partitions, of.batch_size, of.iterations, of.seed)
    assert_bit_equal(train(of, tmp_path).module, expected)


class Remembering(torch.optim.Optimizer):
    """Remembers the last gradient, without a copy: in torch each step has one of its own."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                last = self.state[p].get("last")
                p.sub_(p.grad if last is None else p.grad + 0.5 * last, alpha=group["lr"])
                self.state[p]["last"] = p.grad


FEATURES: dict[str, dict[str, Any]] = {
    "clipping by norm": {"clip": ClipByNorm(0.01)},
    "lamb": {"optimizer": partial(LAMB, lr=1e-2), "clip": ClipByNorm(0.1)},
    "lars": {"optimizer": partial(LARS, lr=1e-2)},
    "lbfgs": {"optimizer": partial(LBFGS, lr=0.1)},
    "adasum": {"combine": "adasum"},
    "bf16": {"codec": "bf16"},
    "fp16": {"codec": "fp16"},
    "an average": {"averaging": True, "module": net(norm=False)},
    "local steps": {"local_steps": 3, "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9)},
    "an optimizer that remembers gradients": {"optimizer": partial(Remembering, lr=0.05)},
    "frozen in the middle": {"frozen": {2: (0, 1), 3: (0, 1)}},
}


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("exchange", ["sharded", "replicated"])
def test_every_plan_gives_the_bits_of_the_driver_plan(
    tmp_path: Path, exchange: Any, feature: dict[str, Any]
) -> None:
    # Sums over shards are added by shard: as many shards, the same bits.
    shards = 1 if exchange == "replicated" else len(UNEVEN)
    expected = train(case("driver", **feature, num_shards=shards, in_memory=False), tmp_path / "expected")
    for in_memory in (True, False):
        found = train(case(exchange, **feature, in_memory=in_memory), tmp_path / str(in_memory))
        assert bits(found) == bits(expected)
        assert found.losses == expected.losses


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("sizes", [[60], [40, 0, 31]], ids=["alone", "several"])
def test_what_stays_in_its_process_changes_no_bit(
    tmp_path: Path, feature: dict[str, Any], sizes: list[int]
) -> None:
    expected = train(case("driver", sizes, **feature, num_shards=1, in_memory=False), tmp_path / "expected")
    for in_memory in (True, False):
        of = case("replicated", sizes, **feature, in_memory=in_memory, stays=True)
        found = train(of, tmp_path / str(in_memory))
        assert bits(found) == bits(expected)
        assert found.losses == expected.losses


def test_a_gradient_that_stays_is_looked_through_for_what_is_no_number(tmp_path: Path) -> None:
    module = net(norm=False)
    with torch.no_grad():
        next(module.parameters()).fill_(1e30)
    found = []
    for stays in (False, True):
        with pytest.raises(NonFiniteError) as error:
            train(case("replicated", [60], module=module, loss=_steep, stays=stays), tmp_path / str(stays))
        found.append(str(error.value))
    assert found[0] == found[1]


def _steep(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Have a loss of 1, and a gradient that is too large for a float."""
    return 1.0 + (output - output.detach()).sum() * 1e30


@pytest.mark.parametrize("codec", [Int8(block=8), TopK(0.2)], ids=["int8", "topk"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_what_a_codec_leaves_out_comes_later(tmp_path: Path, exchange: Any, codec: Any) -> None:
    shards = 1 if exchange == "replicated" else len(UNEVEN)
    expected = train(case("driver", codec=codec, num_shards=shards), tmp_path / "expected")
    found = train(case(exchange, codec=codec, num_shards=shards if exchange == "driver" else None), tmp_path)
    assert bits(found) == bits(expected)
    assert bits(found) != bits(train(case(exchange), tmp_path / "full"))


@pytest.mark.parametrize("codec", ["bf16", "fp16"])
def test_owners_keep_weights_in_full(tmp_path: Path, codec: Any) -> None:
    whole = train(case("sharded", weights_codec=codec, group=1), tmp_path / "one by one")
    assert bits(train(case("sharded", weights_codec=codec), tmp_path / "groups")) == bits(whole)


LAZY = {"user*": partial(torch.optim.SparseAdam, lr=1e-2), "*": partial(torch.optim.Adagrad, lr=1e-2)}


def pairs(sizes: Any = (50, 0, 46)) -> list[Partition]:
    generator = np.random.default_rng(0)
    users, items = generator.integers(0, 400, sum(sizes)), generator.integers(0, 90, sum(sizes))
    both, y = np.stack([users, items], 1), generator.normal(size=sum(sizes)).astype(np.float32)
    ends = np.cumsum([0, *sizes])
    return [Partition(both[a:b], y[a:b]) for a, b in pairwise(ends)]


@pytest.mark.parametrize("exchange", ["sharded", "replicated"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_rows_of_tables_travel_alone(tmp_path: Path, exchange: Any, in_memory: bool) -> None:
    def of(which: Any) -> Case:
        return Case(Factors(), pairs(), which, nn.MSELoss(), LAZY, in_memory=in_memory)

    expected = train(of("driver"), tmp_path / "driver")
    assert bits(train(of(exchange), tmp_path / exchange)) == bits(expected)


@pytest.mark.parametrize(
    "dense",
    [{"averaging": True}, {"combine": "adasum"}, {"local_steps": 2}, {}],
    ids=["an average", "adasum", "local steps", "nothing"],
)
def test_what_concerns_all_weights_updates_rows_that_no_batch_has_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dense: Any
) -> None:
    """Tables travel as rows all the same, and their optimizer would leave the other ones as they are."""
    packed = []
    make = replicated.packed_optimizer
    monkeypatch.setattr(replicated, "packed_optimizer", lambda *args: packed.append(args) or make(*args))

    def of(which: Any, **more: Any) -> Case:
        return Case(Factors(), pairs(), which, nn.MSELoss(), LAZY, **dense, **more)

    expected = train(of("driver", num_shards=1), tmp_path / "driver")
    assert bits(train(of("replicated"), tmp_path / "replicated")) == bits(expected)
    assert bool(packed) is not bool(dense)


# -- faults ---------------------------------------------------------------------------------------


@in_pairs(2, exchange=["sharded", "replicated"], in_memory=[True, False], lost=["lose_at", "lose_rows_at"])
def test_every_point_of_a_group_at_which_a_rank_or_its_rows_are_lost(
    tmp_path: Path, exchange: Any, in_memory: bool, lost: str
) -> None:
    of = case(exchange, (40, 25, 31), clip=ClipByNorm(0.1), iterations=2, group=2, in_memory=in_memory)
    undisturbed = train(of, tmp_path / "undisturbed")
    failed = 0
    for point in range(undisturbed.transport.performed):
        faults = Faults(shuffle=False, **{lost: frozenset({point})})  # type: ignore[arg-type]
        found = train(replace(of, faults=faults), tmp_path / f"lost at {point}")
        assert bits(found) == bits(undisturbed), point
        failed += found.transport.failed
    assert failed >= len(of.partitions)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize(
    ("lost", "error", "words"),
    [
        ("rows", DataError, "missing after 5 rebuilds"),
        ("peers", TaskError, "in each of 5 attempts an executor was lost"),
    ],
    ids=["rows", "peers"],
)
def test_what_is_lost_in_each_of_five_attempts_ends_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: Any, lost: str, error: Any, words: str
) -> None:
    run, attempts = InProcessTransport.run, []

    def count(self: Any, group: Any) -> Any:
        attempts.append(group)
        found = run(self, group)
        if lost == "rows":
            return found
        return replace(found, messages=[Problems([LostPeer(0, 1, "simulated", True)])], persisted=None)

    monkeypatch.setattr(InProcessTransport, "run", count)
    faults = Faults(shuffle=False, lose_rows=float(lost == "rows"))
    with pytest.raises(error, match=words):
        train(case(exchange, (40, 25), iterations=3, group=3, faults=faults), tmp_path)
    assert len(attempts) == 5


@pytest.mark.parametrize("exchange", EXCHANGES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    lose=st.sampled_from([0.0, 0.02]),
    repeat=st.sampled_from([0.0, 0.05]),
    move=st.sampled_from([0.0, 0.03]),
    lose_rows=st.sampled_from([0.0, 0.002]),  # the engine gives up after five attempts
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) > 12),
    group=st.integers(1, 5),
    sites=st.integers(1, 3),
    in_memory=st.booleans(),
    optimizer=st.sampled_from(list(OPTIMIZERS.values())),
)
def test_faults_change_no_bit(
    tmp_path_factory: pytest.TempPathFactory,
    exchange: Any,
    seed: int,
    lose: float,
    repeat: float,
    move: float,
    lose_rows: float,
    sizes: list[int],
    group: int,
    sites: int,
    in_memory: bool,
    optimizer: Any,
) -> None:
    faults = Faults(seed=seed, lose=lose, repeat=repeat, move=move, lose_rows=lose_rows)
    # BatchNorm refuses to train on one row, which a small partition may have.
    module = net(norm=False)
    of = case(
        exchange, sizes, module=module, optimizer=optimizer, group=group, sites=sites, in_memory=in_memory,
        faults=faults, iterations=5,
    )  # fmt: skip
    assert_bit_equal(train(of, tmp_path_factory.mktemp("faults")).module, reference(of))


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 34), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("feature", ["", "lamb", "local steps"])
@pytest.mark.parametrize("exchange", ["sharded", "replicated"])
def test_ranks_that_lose_each_other(tmp_path: Path, exchange: Any, feature: str, seeds: range) -> None:
    # As with direct exchange: before a group begins, or in its middle, when some have updated their weights.
    of = case(exchange, (20, 25, 31), iterations=6, group=3, **FEATURES.get(feature, {}))
    undisturbed = train(of, tmp_path / "undisturbed")
    # What a partition keeps of its local steps is lost with its site, and Spark does not keep it.
    rare = 0.0 if feature == "local steps" else 0.005
    lost = 0
    for seed in seeds:
        faults = Faults(seed=seed, absent=0.3, vanish=0.1, lose=rare, repeat=rare, move=rare * (seed % 3))
        found = train(
            replace(of, faults=faults, in_memory=bool(seed % 2), sites=1 + seed % 3, undo=not seed % 5),
            tmp_path / str(seed),
        )
        assert bits(found) == bits(undisturbed), seed
        lost += found.transport.lost
    assert lost > len(seeds)


@in_pairs(
    2,
    exchange=["sharded", "replicated"],
    feature={"adam": {}, "local": FEATURES["local steps"], "lamb": FEATURES["lamb"]},
    in_memory=[True, False],
)
def test_undisturbed_groups_are_all_completed(
    tmp_path: Path, exchange: Any, feature: dict[str, Any], in_memory: bool
) -> None:
    found = train(case(exchange, in_memory=in_memory, iterations=9, group=3, **feature), tmp_path)
    assert (found.groups, found.transport.failed) == (3, 0)


@in_pairs(
    2,
    exchange=["sharded", "replicated"],
    sites=[2, 5],
    feature={"adam": {}, "average": FEATURES["an average"], "local": FEATURES["local steps"]},
)
def test_processes_of_one_executor_take_turns(
    tmp_path: Path, exchange: Any, sites: int, feature: dict[str, Any]
) -> None:
    of = case(exchange, in_memory=False, one_executor=True, sites=sites, iterations=10, group=3, **feature)
    expected = train(replace(of, sites=1), tmp_path / "one process")
    found = train(replace(of, faults=Faults(seed=7, move=0.7)), tmp_path / "several")
    assert bits(found) == bits(expected)
    assert found.losses == expected.losses
    assert (found.groups, found.transport.failed) == (4, 0)


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("exchange", ["sharded", "replicated"])
def test_groups_are_whole_again_after_a_loss(tmp_path: Path, exchange: Any, in_memory: bool) -> None:
    of = case(exchange, in_memory=in_memory, iterations=11, group=4)
    whole = train(of, tmp_path / "whole")
    faults = Faults(shuffle=False, lose_at=frozenset({whole.transport.performed // 3}))
    found = train(replace(of, faults=faults), tmp_path / "lost")
    assert bits(found) == bits(whole)
    assert found.transport.failed <= 2
    assert found.groups <= whole.groups + 3


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("exchange", ["replicated", "sharded"])
def test_no_tensor_of_earlier_steps_stays_in_memory(tmp_path: Path, exchange: Any, in_memory: bool) -> None:
    alive: list[int] = []

    def count(_: int) -> None:
        gc.collect()
        alive.append(sum(type(thing) is torch.Tensor for thing in gc.get_objects()))

    train(case(exchange, iterations=8, group=2, in_memory=in_memory), tmp_path, count)
    assert alive[1:] == [alive[1]] * 3


@in_pairs(2, exchange=EXCHANGES, sites=[1, 3], in_memory=[True, False])
def test_groups_that_are_undone_leave_nothing_behind(
    tmp_path: Path, exchange: Any, sites: int, in_memory: bool
) -> None:
    # Ranks move, so that processes meet versions which they had made of steps that were undone.
    faults = Faults(seed=5, move=0.3)
    of = case(
        exchange, (20, 25, 31), undo=True, sites=sites, in_memory=in_memory, iterations=8, faults=faults
    )
    assert_bit_equal(train(of, tmp_path).module, reference(of))


# -- problems -------------------------------------------------------------------------------------


class Explodes(nn.Module):
    """Gives NaN, or raises, once it was called often enough."""

    def __init__(self, calls: int, error: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.error, self.most = nn.Linear(6, 3), error, calls
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > self.most and self.error:
            raise ValueError("too many calls")
        return self.linear(x) * (torch.nan if self.calls > self.most else 1)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize(("error", "kind"), [(False, NonFiniteError), (True, ModelError)])
def test_a_step_that_fails_in_the_middle_of_a_group(
    tmp_path: Path, exchange: Any, error: bool, kind: Any
) -> None:
    completed: list[int] = []
    with pytest.raises(kind, match="iteration 5"):
        train(case(exchange, module=Explodes(4, error), group=7), tmp_path, completed.append)
    assert completed[-1] == 4


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_gradient_that_is_not_finite_names_the_parameter(tmp_path: Path, exchange: Any) -> None:
    class Cliff(nn.Module):
        def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return torch.sqrt((output * 0).abs()).sum() + 1.0  # the derivative of the root at 0

    with pytest.raises(NonFiniteError, match=r"gradient of parameter '0.weight' became NaN .*\[0, 2, 3\]"):
        train(case(exchange, loss=Cliff()), tmp_path)


@pytest.mark.parametrize(
    "options", [{}, {"combine": "adasum", "clip": ClipByNorm(0.1)}], ids=["mean", "sums"]
)
def test_gradients_of_a_rank_that_stays_are_not_copied_once_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    of = case("sharded", in_memory=False, sites=len(UNEVEN), **options)
    expected = train(of, tmp_path / "moving")
    copied: list[str] = []
    keep = LocalStore.keep_lent

    def noted(self: LocalStore) -> None:
        copied.extend(self._lent & self._held.keys())
        keep(self)

    monkeypatch.setattr(LocalStore, "keep_lent", noted)
    assert bits(train(replace(of, stays=True), tmp_path / "staying")) == bits(expected)
    assert copied == []

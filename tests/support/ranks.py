"""Trains through the engine with all ranks in this process: no Spark, no JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl.access.base import BytesRef, Published
from sparkdl.allreduce.choose import Exchange, Wanted
from sparkdl.allreduce.engine import Engine, Route
from sparkdl.allreduce.plan import Directives, Step
from sparkdl.allreduce.state import ModelState, Weights
from sparkdl.allreduce.transport.base import Transport
from sparkdl.allreduce.update.shard import reductions
from sparkdl.compute.live_model import changes_to_keep
from sparkdl.compute.local_steps import InnerRule, InnerSteps
from sparkdl.compute.spec import Combine, FitSpec
from sparkdl.compute.worker import FitRef, Worker, stores_in
from sparkdl.data import sampler
from sparkdl.data.columns import ColumnPlan, Structure
from sparkdl.data.sampler import EpochPlace
from sparkdl.data.store import partition as store
from sparkdl.data.store.manifest import Manifest
from sparkdl.nn import serialize
from sparkdl.nn.embedding import embedding_variables
from sparkdl.nn.flat import FlatModule, write_back
from sparkdl.nn.numerics import Numerics
from sparkdl.nn.objective import LossObjective
from sparkdl.nn.parameters import layout_of, tables_of
from sparkdl.optim import OptimizerSpec, optimizer_spec
from sparkdl.optim.shard.optimizer import UpdateRule
from sparkdl.optim.shard.packed import lazy_groups, sparse_groups
from sparkdl.optim.shard.shardable import Shardability, tried_optimizer
from sparkdl.optim.staleness import Staleness
from sparkdl.session import Executors
from sparkdl.wire.codec import Cast, Codec, codec_of
from sparkdl.wire.layout import ParamLayout
from support.in_process import Faults, InProcessCluster, InProcessTransport
from support.reference import Partition

_ADAM = partial(torch.optim.Adam, lr=1e-2)
_MEAN = partial(torch.optim.SGD, lr=1.0)
PLANS = (ColumnPlan("features", "x"), ColumnPlan("label", "y"))


@dataclass
class Case:
    """A training, and how its messages travel."""

    module: nn.Module
    partitions: Sequence[Partition]
    exchange: Exchange
    loss: Any = field(default_factory=nn.CrossEntropyLoss)
    optimizer: Any = _ADAM
    batch_size: int = 12
    iterations: int = 5
    group: int = 3
    seed: int = 3
    clip: Any = None
    staleness: Staleness | None = None
    combine: Combine = "mean"
    codec: Codec | str = "fp32"
    weights_codec: Cast = "fp32"
    averaging: bool = False
    local_steps: int = 0
    num_shards: int | None = None
    frozen: dict[int, tuple[int, ...]] = field(default_factory=dict)
    sites: int = 2
    in_memory: bool = True
    faults: Faults | None = None
    stays: bool = False
    slots: int = 1
    """Task slots of an executor, where ranks do not run in this process."""
    one_executor: bool = False
    """Whether sites are processes of one executor, which see each other's files."""
    row_memory: int | None = None
    undo: bool = False
    """Whether each group is run with other steps first, whose first one counts, and undone."""


@dataclass
class Trained:
    module: nn.Module
    losses: list[float]
    transport: Any
    groups: int


@dataclass(frozen=True)
class Setting:
    """What a transport is made of.

    Attributes:
        store: what it needs of a partition store.
        fit: the fixed part of the fit.
        spec: that part itself, pickled.
    """

    store: Any
    fit: FitRef
    spec: bytes


_numbers = count()
_TRIED: dict[int, tuple[Any, ParamLayout, Shardability]] = {}


def _tried(given: Any, spec: OptimizerSpec, layout: ParamLayout) -> Shardability:
    """Try an optimizer, once for the fits of a test: that takes longer than some steps."""
    found = _TRIED.get(id(given))
    if found is None or found[0] is not given or found[1] != layout:
        found = _TRIED[id(given)] = given, layout, tried_optimizer(spec, layout)
    return found[2]


def train(
    case: Case,
    folder: Path,
    after_group: Callable[[int], None] = lambda _: None,
    transport: Callable[[Setting], Transport] | None = None,
) -> Trained:
    """Train as a Trainer does, in groups.

    Args:
        case: the training.
        folder: for files of sites.
        after_group: called with the number of completed iterations.
        transport: makes what carries messages; all ranks in this process if not given.
    """
    optimizer, _ = optimizer_spec(case.optimizer, case.module, ())
    layout = layout_of(case.module, optimizer_spec(case.optimizer, case.module, ())[1])
    tried = _tried(case.optimizer, optimizer, layout)
    optimizer, layout = tried.spec, tried.layout
    rule, inner = UpdateRule(optimizer, case.clip, case.staleness), None
    stateful = tried.stateful or case.staleness is not None
    if case.local_steps:
        inner = InnerRule(rule, layout, stateful)
        layout = replace(layout, params=tuple(replace(param, group=0) for param in layout.params))
        tried = _tried(_MEAN, OptimizerSpec(_MEAN), layout)
        rule, layout, stateful = UpdateRule(tried.spec), tried.layout, tried.stateful
    lazy, by_element = lazy_groups(rule.optimizer), sparse_groups(rule.optimizer)
    tables = tuple(i for i in tables_of(case.module, sparse=True) if layout.params[i].group in lazy)
    spec = FitSpec(
        module=case.module,
        objective=LossObjective(case.loss),
        rule=rule,
        combine=case.combine,
        averaging=case.averaging,
        layout=layout,
        features=Structure("single", ("features",)),
        label=Structure("single", ("label",)),
        weighted=False,
        transform=None,
        seed=case.seed,
        shuffle=True,
        micro_batch_size=None,
        row_memory=case.row_memory,
        threads=1,
        numerics=Numerics(),
        gradient_codec=codec_of(case.codec),
        weights_codec=case.weights_codec,
        inner=inner,
        tables=tables,
        scanned=tuple(
            i for i in tables_of(case.module, sparse=False) if layout.params[i].group not in by_element
        ),
    )
    data = serialize.dumps(spec, "the spec")
    dense = case.averaging or case.combine != "mean" or inner is not None
    wanted = Wanted(
        exchange=case.exchange,
        layout=layout,
        reductions=reductions(rule, case.combine),
        stateful=stateful or case.averaging,
        averaging=case.averaging,
        tables=() if dense else tables,
        weights_codec=case.weights_codec,
        num_shards=case.num_shards,
        stragglers=False,
        keyed=tuple(embedding_variables(case.module)),
    )
    ranks = len(case.partitions)

    def write(rank: int) -> store.Token:
        part = case.partitions[rank]
        return store.write_partition("store", rank, "site", PLANS, [(np.arange(len(part.x)), _columns(part))])

    tokens = [write(rank) for rank in range(ranks)]
    made: list[Transport] = []

    def route(store: Any, fit: FitRef) -> Route:
        if transport is not None:
            made.append(transport(Setting(store, fit, data)))
        else:
            folders = [folder / ("site" if case.one_executor else f"site-{n}") for n in range(case.sites)]
            sites = [partial(_site, data, str(where), case.in_memory) for where in folders]
            places = [rank % case.sites for rank in range(ranks)]
            made.append(InProcessTransport(sites, write, places, case.faults, stays=case.stays))
        return Route(plan, made[-1])

    changes = 0 if case.in_memory else changes_to_keep(case.slots, rows=bool(wanted.tables))
    plan = wanted.plan(case.exchange, ranks, changes)
    cluster = InProcessCluster(case.in_memory)
    engine = Engine(
        cluster=cluster,
        store=SimpleNamespace(
            executors=Executors(count=1, cores=case.slots),
            is_crowded=False,
            manifest=Manifest.of(tokens),
            partitions=range(ranks),
            tokens=tokens,
        ),
        fit=FitRef(f"fit-{next(_numbers)}", BytesRef(None, 0)),
        sent=Published(BytesRef(b"")),
        route=route,
        leaves_files=False,
        name="test",
    )
    first = FlatModule(serialize.loads(data).module, layout)
    model = ModelState(Weights(cluster, np.array(first.params.numpy()), first.buffers(), first.counters()))
    losses: list[float] = []
    groups = 0
    while len(losses) < case.iterations:
        size = min(case.group, plan.traits.longest_group, case.iterations - len(losses))
        steps = [_step(case, len(losses) + n) for n in range(size)]
        before = model
        if case.undo:
            other = [*steps[:1], *(replace(step, frozen=(0,)) for step in steps[1:])]
            undone, _ = engine.run(other, before)
            engine.discard(undone)
        model, outcomes = engine.run(steps, before)
        engine.let_go(before, model)
        losses += [outcome.loss for outcome in outcomes]
        groups += 1
        after_group(len(losses))
    snapshot = model.weights.snapshot
    trained = serialize.loads(serialize.dumps(case.module, "module"))
    params = engine.average(model) if case.averaging else snapshot.params
    write_back(trained, layout, params, snapshot.buffers, snapshot.counters)
    variables = embedding_variables(trained)
    for name, entries in engine.rows(model).items():
        variables[name].fill(entries)
    engine.close()
    return Trained(trained, losses, made[0], groups)


def _site(data: bytes, folder: str, in_memory: bool) -> Worker:
    worker = Worker(partial(serialize.loads, data), *stores_in(folder))
    worker.files.in_memory = in_memory
    return worker


def _columns(part: Partition) -> dict[str, Any]:
    return {"features": part.x, "label": part.y}


def _step(case: Case, iteration: int) -> Step:
    rows = sum(len(p.x) for p in case.partitions)
    size = case.batch_size * max(1, case.local_steps)
    steps = sampler.iterations_per_epoch(rows, size)
    epoch, step = divmod(iteration, steps)
    weight = 0.0 if not case.averaging else (1.0 if iteration == 0 else 0.1)
    inner = InnerSteps(case.local_steps) if case.local_steps else None
    return Step(
        EpochPlace(epoch, step, steps),
        iteration,
        Directives(average=weight),
        case.frozen.get(iteration, ()),
        inner=inner,
    )


def classified(sizes: Sequence[int]) -> list[Partition]:
    """Return partitions of random rows of six values, in three classes."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(sum(sizes), 6)).astype(np.float32)
    y = generator.integers(0, 3, sum(sizes))
    ends = np.cumsum([0, *sizes])
    return [Partition(x[a:b], y[a:b]) for a, b in pairwise(ends)]


def net(norm: bool = True) -> nn.Module:
    """Return a module for rows of :func:`classified`, always with the same weights."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def bits(trained: Trained) -> list[bytes]:
    """Return the weights and buffers, to be compared to the bit."""
    return [value.numpy().tobytes() for value in trained.module.state_dict().values()]

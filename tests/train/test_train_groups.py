"""Iterations in groups, one Spark job each, give what iterations one by one give, to the bit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.data import as_dataset, digits, partitioned
from support.models import Everything, mlp
from support.no_jvm import with_jvm
from support.reference import assert_bit_equal, relative_error
from support.stores import store_files
from torch import nn

from sparkdl import Dataset, Trainer
from sparkdl.allreduce.cluster import Cluster
from sparkdl.allreduce.outcome import Outcome, fixed_seconds
from sparkdl.allreduce.transport.direct.membership import Membership
from sparkdl.compute.worker import forget_fit
from sparkdl.exceptions import ConfigError, ModelError, NonFiniteError
from sparkdl.optim import LAMB, ClipByNorm
from sparkdl.train import (
    EMA,
    SWA,
    Checkpoint,
    DropStragglers,
    EveryEpoch,
    EveryIterations,
    EverySeconds,
    History,
    Hook,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MaxSeconds,
    MinLoss,
    PerEpoch,
    PerIteration,
    Run,
    TrainState,
    groups,
    loop,
)
from sparkdl.train.groups import Ahead
from sparkdl.train.recovery import Recovery
from sparkdl.train.shipped import Shipped

PARTS = partitioned([130, 0, 110])  # 4 iterations an epoch
MODES: dict[str, dict[str, Any]] = {
    "driver": {"exchange": "driver"},
    "sharded": {"exchange": "sharded", "iterations_per_job": 4},
    "replicated": {"exchange": "replicated", "iterations_per_job": 6},
}


@pytest.fixture
def data(spark: Any) -> Any:
    with as_dataset(spark, PARTS) as data:
        yield data


def fit(data: Dataset, mode: str, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "loss": nn.CrossEntropyLoss(),
        "optimizer": partial(torch.optim.Adam, lr=1e-3),
        "batch_size": 60,
        "seed": 3,
        "end_when": MaxIteration(7),
        "progress": False,
    }
    resume, validation = options.pop("resume", False), options.pop("validation", None)
    settings |= MODES[mode] | options
    return Trainer(settings.pop("module", None) or Everything(), **settings).fit(
        data, validation, resume=resume
    )


def told(history: History) -> list[tuple[Any, ...]]:
    return [(row["epoch"], row["iteration"], row["loss"], row["samples"], row["lr"]) for row in history]


PLANS: dict[str, dict[str, Any]] = {
    **{
        f"{mode}, {transport}": {"mode": mode, "transport": transport}
        for mode in ("replicated", "sharded")
        for transport in ("shuffle", "direct")
    },
    "driver": {"mode": "driver"},
    "driver, reductions": {"mode": "driver", "clip": ClipByNorm(0.01), "num_shards": 2},
    "driver, stragglers": {"mode": "driver", "drop_stragglers": DropStragglers()},
    "local steps": {"mode": "replicated", "local_steps": 2, "iterations_per_job": None},
}


@pytest.mark.parametrize("plan", PLANS)
def test_phases_add_up_to_the_seconds(spark: Any, plan: str) -> None:
    """Of every iteration, and so of any stretch; of the driver's row in a timeline, too."""
    jobs: list[dict[str, Any]] = []

    class Jobs(Hook):
        def on_iteration_end(self, run: Run) -> None:
            if run.outcome is not None:
                jobs.extend(task for task in run.outcome.tasks if task["kind"] == "driver")

    with as_dataset(spark, partitioned([130, 110])) as data:
        found = fit(data, **PLANS[plan], hooks=[Jobs()], end_when=MaxIteration(6)).history
    for row in found:
        assert sum(row["phases"].values()) == pytest.approx(row["seconds"])
        assert min(row["phases"].values()) >= 0
    for name in ("compute", "update", "launch"):
        assert sum(found.column(f"phases.{name}")) > 0
    for job, following in zip(jobs, [*jobs[1:], None], strict=True):
        assert sum(job["phases"].values()) == pytest.approx(job["seconds"])
        assert following is None or job["start"] + job["seconds"] <= following["start"] + 1e-4
    assert sum(job["seconds"] for job in jobs) <= sum(found.column("seconds"))


OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": partial(torch.optim.SGD, lr=0.1)},
    "adam": {},
    "clipped": {"clip": ClipByNorm(0.01), "module": mlp(), "num_shards": 1},
    "lamb": {"optimizer": partial(LAMB, lr=1e-2), "num_shards": 1},
    "adasum": {"combine": "adasum", "num_shards": 1},
    "ema": {"averaging": EMA(0.9)},
    "swa of a module without buffers": {"averaging": SWA(start_epoch=0), "module": mlp()},
    "a schedule of iterations": {
        "schedule": PerIteration(partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9))
    },
    "a schedule of epochs": {"schedule": PerEpoch(partial(torch.optim.lr_scheduler.StepLR, step_size=1))},
    "micro-batches and bf16": {"micro_batch_size": 7, "gradient_codec": "bf16"},
    "a loss": {"end_when": MinLoss(2.29) | MaxIteration(7)},
}


@pytest.mark.parametrize("options", with_jvm(OPTIONS, "clipped"))
def test_no_bit_changes(data: Dataset, options: dict[str, Any]) -> None:
    free = {name: value for name, value in options.items() if name != "num_shards"}
    expected = fit(data, "driver", **options)
    for mode in ("replicated", "sharded"):
        if mode == "sharded" and free != options:  # sums over all shards depend on how many these are
            expected = fit(data, "driver", **(free | {"num_shards": 3}))
        found = fit(data, mode, **free)
        assert_bit_equal(found.module, expected.module)
        assert told(found.history) == told(expected.history)
        assert found.state.iteration == expected.state.iteration == len(expected.history)
        assert found.state.seconds >= sum(found.history.column("seconds"))


class Recorder(Hook):
    """Writes down what it is told, and does something once."""

    def __init__(self, at: int = -1, act: Any = None) -> None:
        self.seen: list[Any] = []
        self.at, self.act = at, act

    def on_iteration_begin(self, run: Run) -> None:
        self.seen.append(("begin", run.state.iteration, run.state.loss))

    def on_iteration_end(self, run: Run) -> None:
        self.seen.append(("end", run.state.iteration, run.state.loss, run.state.epoch, run.state.step))
        if run.state.iteration == self.at:
            self.act(run)

    def on_epoch_end(self, run: Run) -> None:
        self.seen.append(("epoch", run.state.epoch))


def _halve(run: Run) -> None:
    run.learning_rate_scale = 0.5


def _replace(run: Run) -> None:
    run.replace(run.snapshot())


ACTS: dict[str, Any] = {
    "stop": lambda run: run.stop("enough"),
    "freeze": lambda run: run.freeze("first.*"),
    "halve the learning rate": _halve,
    "replace the weights": _replace,
    "look": lambda run: run.snapshot(),
}


@pytest.mark.parametrize("act", with_jvm(ACTS, "replace the weights"))
def test_hooks_may_do_anything_in_the_middle_of_a_group(data: Dataset, act: Any) -> None:
    hooks = {mode: Recorder(3, act) for mode in MODES}
    results = {mode: fit(data, mode, hooks=[hook]) for mode, hook in hooks.items()}
    for mode in MODES:
        assert str(hooks[mode].seen) == str(hooks["driver"].seen)
        assert_bit_equal(results[mode].module, results["driver"].module)


def test_weights_are_those_of_each_iteration(data: Dataset) -> None:
    class Weights(Hook):
        def __init__(self) -> None:
            self.found: list[Any] = []

        def on_iteration_end(self, run: Run) -> None:
            self.found.append(run.snapshot().params.copy())

    hooks = {mode: Weights() for mode in MODES}
    for mode, hook in hooks.items():
        fit(data, mode, hooks=[hook], end_when=MaxIteration(5))
        assert all(map(np.array_equal, hook.found, hooks["driver"].found))


def test_gradients_for_hooks(data: Dataset) -> None:
    class Gradients(Hook):
        gradients = EveryIterations(3)

        def __init__(self) -> None:
            self.found: dict[int, Any] = {}

        def on_iteration_end(self, run: Run) -> None:
            if run.gradients():
                self.found[run.state.iteration] = run.gradients()["head.weight"].copy()

    hooks = {mode: Gradients() for mode in MODES}
    for mode, hook in hooks.items():
        fit(data, mode, hooks=[hook])
        assert list(hook.found) == [4, 7]
        assert all(map(np.array_equal, hook.found.values(), hooks["driver"].found.values()))


def test_validation_in_the_middle_of_an_epoch(spark: Any, data: Dataset) -> None:
    x, y = digits(50)
    options: dict[str, Any] = {
        "validate_when": EveryIterations(3),
        "schedule": partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0),
    }
    with Dataset.from_numpy(x, y, spark=spark) as held_out:
        found = [fit(data, mode, validation=held_out, **options) for mode in MODES]
    for other in found[1:]:
        assert other.history.validations == found[0].history.validations
        assert_bit_equal(other.module, found[0].module)


def test_checkpoints_and_resume_across_modes(data: Dataset, tmp_path: Any) -> None:
    expected = fit(data, "driver")
    for first, second in (
        ("replicated", "driver"),
        ("driver", "sharded"),
        ("sharded", "sharded"),
        ("sharded", "replicated"),
    ):
        hook = Checkpoint(tmp_path / first / second, EveryIterations(4))
        fit(data, first, hooks=[hook], end_when=MaxIteration(6))
        found = fit(data, second, hooks=[hook], resume=True)
        assert_bit_equal(found.module, expected.module)
        assert told(found.history) == told(expected.history)


@pytest.mark.parametrize(
    "optimizer", [partial(LAMB, lr=1e-2), partial(torch.optim.SGD, lr=0.1, momentum=0.9)]
)
def test_state_that_was_cut_is_joined_again(data: Dataset, optimizer: Any) -> None:
    expected = fit(data, "replicated", optimizer=optimizer)
    found = fit(data, "replicated", optimizer=optimizer, hooks=[Recorder(3, _replace)])
    assert_bit_equal(found.module, expected.module)


class Explodes(nn.Module):
    """Gives NaN, or raises, once it was called often enough."""

    def __init__(self, calls: int, error: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.error, self.most = nn.Linear(64, 10), error, calls
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        if self.calls > self.most:
            if self.error:
                raise ValueError("too many calls")
            return self.linear(x) * torch.nan
        return self.linear(x)


@pytest.mark.parametrize(
    ("error", "kind"), [(False, NonFiniteError), pytest.param(True, ModelError, marks=pytest.mark.slow)]
)
def test_what_fails_in_the_middle_of_a_group(data: Dataset, error: bool, kind: Any) -> None:
    failures = {}
    for mode in MODES:
        hook = Recorder()
        with pytest.raises(kind) as failure:
            fit(data, mode, module=Explodes(4, error), hooks=[hook])
        message = str(failure.value).split("Traceback")[0]
        if error:  # every partition fails: which one Spark hears of first is chance
            partition = r"partition \d, rows [\d, ]+ and \d+ more: (.*)\[\d+, 64\]"
            message, found = re.subn(partition, r"\1", message)
            assert found == 1
        failures[mode] = (message, hook.seen)
        assert "iteration 5" in message
        if not error:
            assert failure.value.result.state.iteration == 4
    assert len(set(map(str, failures.values()))) == 1


@pytest.mark.jvm
def test_one_job_for_a_group(spark: Any, data: Dataset) -> None:
    data.store()
    names = jobs_of(spark, data, end_when=MaxIteration(12), transport="shuffle")
    assert sorted(name.rsplit(", ")[-1] for name in names if "iteration" in name) == [
        "up to iteration 12",
        "up to iteration 6",
    ]
    assert "sparkdl: delete the run's files" in names


@pytest.mark.jvm
def test_connections_and_files_of_a_run_end_in_one_job(spark: Any, data: Dataset) -> None:
    data.store()
    executor = spark.sparkContext.parallelize([0], 1)
    before = {*executor.flatMap(files).collect()}
    names = jobs_of(spark, data, transport="direct")
    assert "sparkdl: close connections" in names
    assert "sparkdl: delete the run's files" not in names
    assert {*executor.flatMap(files).collect()} <= before


@pytest.mark.jvm
@pytest.mark.parametrize("transport", ["direct", "shuffle"])
def test_rows_that_a_fit_alone_reads_are_released_by_the_job_that_ends_it(spark: Any, transport: Any) -> None:
    df = spark.createDataFrame([([n / 20], n % 2) for n in range(20)], "x array<float>, y long")
    trainer = Trainer(
        nn.Linear(1, 2),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        transport=transport,
        progress=False,
    )
    names = jobs_in(spark, lambda: trainer.fit(df, 0.5, features="x", label="y"))
    last = {"direct": "sparkdl: close connections", "shuffle": "sparkdl: delete the run's files"}[transport]
    assert names.count(last) == 1
    assert "sparkdl: release the partition store" not in names
    with Dataset.from_dataframe(df, features="x", label="y") as data:
        trainer.fit(data)
        assert "sparkdl: build the partition store" not in jobs_in(spark, lambda: trainer.fit(data))


def test_rows_are_deleted_though_the_job_that_ends_a_fit_fails(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    def fails(_: Any, fit_id: str, forget: Any) -> bool:
        forget_fit(fit_id)
        failed.extend(*forget.args[1:])
        return False

    monkeypatch.setattr(Cluster, "delete_files", fails)
    monkeypatch.setattr(Membership, "dismiss", lambda *_: False)
    rows = pd.DataFrame({"x": [[n / 20] for n in range(20)], "y": np.arange(20) % 2})
    optimizer = partial(torch.optim.SGD, lr=0.1)
    trainer = Trainer(nn.Linear(1, 2), loss=nn.CrossEntropyLoss(), optimizer=optimizer, progress=False)
    trainer.fit(rows, rows[:10], features="x", label="y")
    assert len(failed) == 2
    assert not store_files()


def files(_: int) -> list[str]:
    """Return the folders of runs on the executor that runs this."""
    folders = os.environ["SPARK_LOCAL_DIRS"].split(",")
    return [str(found) for folder in folders for found in Path(folder, "sparkdl-fits").glob("*")]


def jobs_of(spark: Any, data: Dataset, **options: Any) -> list[str]:
    """Return the names of a fit's jobs."""
    return jobs_in(spark, lambda: fit(data, "replicated", commit_every=0, **options))


def jobs_in(spark: Any, run: Callable[[], Any]) -> list[str]:
    """Return the names of the jobs that a function runs."""
    store = spark.sparkContext._jsc.sc().statusStore()
    before = {store.jobsList(None).apply(i).jobId() for i in range(store.jobsList(None).size())}
    run()
    jobs = [store.jobsList(None).apply(i) for i in range(store.jobsList(None).size())]
    return [job.description().get() for job in jobs if job.jobId() not in before]


def test_the_size_of_groups_adapts() -> None:
    class Instant:
        class engine:  # noqa: N801
            longest_group = 50

            class plan:  # noqa: N801
                traits = SimpleNamespace(group_seconds=1.0)

        def __init__(self) -> None:
            self.sizes: list[int] = []
            self.undone: list[int] = []

        def run(self, group: list[Any]) -> list[Any]:
            self.sizes.append(len(group))
            return group

        def undo(self, group: list[Any]) -> None:
            self.undone.append(len(group))

    class Item(int):
        tasks = ()

        def same_as(self, other: int) -> bool:
            return self == other

    recovery = Instant()
    ahead = Ahead(recovery, None)  # type: ignore[arg-type]
    for n in range(100):
        assert ahead.run(Item(n), lambda most, n=n: [Item(n + 1 + i) for i in range(most)]) == n  # type: ignore
    assert recovery.sizes == [1, 4, 16, 50, 50]
    ahead.settle()
    assert recovery.undone == [29]
    assert recovery.sizes.pop() == 29  # which run again
    ahead.run(Item(100), lambda most: [Item(101 + i) for i in range(most)])  # type: ignore
    assert recovery.sizes[-1] == 29
    assert ahead.lead > 0


@pytest.mark.parametrize("size", [1, 3, 6])
def test_iterations_of_a_group_have_equal_shares_of_its_seconds(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    now, run = [0.0], Recovery.run

    def timed(self: Recovery, group: Any) -> Any:
        now[0] += 0.25 + 0.5 * len(group)  # a job, and its steps
        return run(self, group)

    class Slow(Hook):
        def on_iteration_end(self, run: Run) -> None:
            now[0] += 2.0

    monkeypatch.setattr(Recovery, "run", timed)
    monkeypatch.setattr(groups, "perf_counter", lambda: now[0])
    monkeypatch.setattr(loop, "perf_counter", lambda: now[0])
    result = fit(data, "replicated", iterations_per_job=size, end_when=MaxIteration(12), hooks=[Slow()])
    assert result.history.column("seconds") == pytest.approx([0.25 / size + 0.5] * 12)
    # What hooks take between iterations is in the run's time, and in that of no iteration.
    assert result.state.seconds == pytest.approx(12 * (0.25 / size + 0.5) + 11 * 2.0)


def step_of(*ranks: tuple[float, float]) -> Outcome:
    """Return the outcome of a step whose ranks began, and took so long."""
    tasks = [
        {"kind": "forward-backward", "partition": rank, "start": start, "seconds": seconds}
        for rank, (start, seconds) in enumerate(ranks)
    ]
    return Outcome(samples=1, loss=0.0, phases={}, bytes={}, extras={}, tasks=tasks)


def test_fixed_cost_is_what_no_rank_spends_in_steps() -> None:
    steps = [step_of((100.0, 1.0), (900.0, 1.0)), step_of((101.5, 1.0), (901.2, 2.5))]
    assert fixed_seconds(steps, 5.0) == pytest.approx(5.0 - 3.7)  # by each rank's own clock
    assert fixed_seconds(steps, 3.0) == 0.0
    assert fixed_seconds([Outcome(samples=1, loss=0.0, phases={}, bytes={}, extras={})], 3.0) == 0.0


def test_groups_grow_until_their_fixed_cost_is_a_small_part(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    sizes: list[int] = []

    class Costly:
        class engine:  # noqa: N801
            longest_group = 1000

            class plan:  # noqa: N801
                traits = SimpleNamespace(group_seconds=1.0)

        fixed = 0.9

        def run(self, group: list[Any]) -> list[Outcome]:
            nonlocal now
            sizes.append(len(group))
            steps = [step_of((now + 0.5 * i, 0.5)) for i in range(len(group))]
            now += self.fixed + 0.5 * len(group)
            return steps

    monkeypatch.setattr("sparkdl.train.groups.perf_counter", lambda: now)
    step = SimpleNamespace(same_as=lambda other: True)
    for fixed, expected in ((0.9, 58), (3.0, 114)):  # 0.9 / 0.03 = 30 seconds; 100 would be more than 60
        Costly.fixed = fixed
        ahead = Ahead(Costly(), None)  # type: ignore[arg-type]
        for _ in range(600):
            ahead.run(step, lambda most: [step] * most)  # type: ignore[arg-type, return-value]
        assert sizes[-1] == pytest.approx(expected, abs=1)


def test_options_that_exclude_each_other() -> None:
    def make(**options: Any) -> None:
        Trainer(mlp(), loss=nn.MSELoss(), optimizer=torch.optim.SGD, **options)

    with pytest.raises(
        ConfigError, match="exchange='ring': expected one of 'auto', 'replicated', 'sharded', 'driver'"
    ):
        make(exchange="ring")
    with pytest.raises(ConfigError, match="iterations_per_job=0: expected an integer of at least 1"):
        make(iterations_per_job=0)
    with pytest.raises(ConfigError, match="num_shards needs exchange='driver'"):
        make(exchange="replicated", num_shards=2)
    with pytest.raises(
        ConfigError, match="drop_stragglers needs exchange='driver'; found exchange='sharded'"
    ):
        make(exchange="sharded", drop_stragglers=DropStragglers())
    with pytest.raises(
        ConfigError, match="weights_codec='bf16' needs exchange='sharded'; found exchange='dr"
    ):
        make(exchange="driver", weights_codec="bf16")
    with pytest.raises(ConfigError, match="weights_codec='int8': expected one of 'fp32', 'bf16', 'fp16'"):
        make(weights_codec="int8")
    with pytest.raises(ConfigError, match="iterations_per_job=2 needs exchange='replicated'"):
        make(exchange="driver", iterations_per_job=2)
    with pytest.raises(ConfigError, match="iterations_per_job=2 needs .*; found num_shards=3"):
        make(num_shards=3, iterations_per_job=2)


@pytest.mark.parametrize("codec", ["bf16", "fp16"])
def test_weights_in_half_the_bytes_keep_full_masters(data: Dataset, codec: Any) -> None:
    options: dict[str, Any] = {"exchange": "sharded", "weights_codec": codec, "module": mlp()}
    found = [fit(data, "sharded", **options, iterations_per_job=k) for k in (1, 4)]
    assert_bit_equal(found[1].module, found[0].module)
    looked = fit(data, "sharded", **options, hooks=[Recorder(3, ACTS["replace the weights"])])
    assert_bit_equal(looked.module, found[0].module)  # masters went over the driver
    full = fit(data, "sharded", module=mlp())
    assert 0 < relative_error(found[0].module, full.module) < 0.01
    weight = next(found[0].module.parameters()).detach()
    assert not torch.equal(
        weight, weight.to(getattr(torch, "bfloat16" if codec == "bf16" else "half")).float()
    )


def test_large_models_are_sharded_if_their_shards_fit(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.allreduce.choose._REPLICATED_BYTES", 0)
    chosen: list[type] = []
    original = Shipped.engine

    def engine(self: Any, *arguments: Any) -> Any:
        chosen.append(type((made := original(self, *arguments)).plan))
        return made

    monkeypatch.setattr(Shipped, "engine", engine)

    def train(**options: Any) -> None:
        settings = {"loss": nn.CrossEntropyLoss(), "optimizer": torch.optim.SGD, "progress": False}
        Trainer(mlp(), **settings, end_when=MaxIteration(2), **options).fit(data)  # type: ignore[arg-type]

    train()
    train(num_shards=2)
    monkeypatch.setattr("sparkdl.allreduce.choose._MOST_SHARD_BYTES", 1000)
    train()
    assert [kind.__name__ for kind in chosen] == ["Sharded", "ThroughDriver", "ThroughDriver"]
    with pytest.raises(ConfigError, match="shards of more than 0 MiB; give the Dataset a larger num_part"):
        train(exchange="sharded")


def test_triggers_know_what_they_can_foresee() -> None:
    before, after = TrainState(iteration=9), TrainState(iteration=10, epoch=1)
    for trigger in (EveryEpoch(), EveryIterations(5), MaxEpoch(1), MaxIteration(10), ~MaxScore(0.5)):
        assert trigger.foreseeable
        assert trigger.foresees(before, after)
    for trigger in (
        MinLoss(9.0),
        EverySeconds(1.0),
        MaxSeconds(0.0),
        ~MinLoss(9.0),
        EveryEpoch() & MinLoss(9.0),
    ):
        assert not trigger.foreseeable
        assert not trigger.foresees(before, after)
    either = MinLoss(9.0) | MaxIteration(10)
    assert not either.foreseeable
    assert either.foresees(before, after)

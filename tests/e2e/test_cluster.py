"""Separate executor JVMs: placement, lost files, lost executors, preempted tasks."""

from __future__ import annotations

import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from sklearn.datasets import load_digits
from support.models import Everything, Factors, mlp
from support.no_jvm import no_jvm
from support.reference import (
    Partition,
    assert_bit_equal,
    dealt_shares,
    decomposed,
    relative_error,
    threads,
)
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer, session
from sparkdl._spark.frames import do_once
from sparkdl._spark.jobs import FrameJobs
from sparkdl.access import access_to
from sparkdl.allreduce.cluster import Cluster, Spreading
from sparkdl.data.store.partition import Token
from sparkdl.data.streams import Dealt
from sparkdl.optim import LAMB, ClipByNorm
from sparkdl.train import EMA, Hook, MaxIteration
from sparkdl.train.shipped import Shipped, threads_per_task
from sparkdl.wire import frame

ADAM = partial(torch.optim.Adam, lr=1e-3)
X, Y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
ROWS = 640


def fit(spark: Any, module: nn.Module, iterations: int, disturb: Any = None, **options: Any) -> Any:
    """Fit by shuffles; tests/allreduce/test_allreduce_direct.py is about direct exchange."""
    loss = options.pop("loss", nn.CrossEntropyLoss())
    validation, partitions = options.pop("validation", None), options.pop("partitions", 2)
    with Dataset.from_numpy(X[:ROWS], Y[:ROWS], spark=spark, num_partitions=partitions) as data:
        if disturb is not None:
            disturb(data)
        return Trainer(
            module,
            loss=loss,
            optimizer=options.pop("optimizer", ADAM),
            batch_size=64,
            end_when=MaxIteration(iterations),
            validate_when=MaxIteration(iterations),
            progress=False,
            seed=3,
            transport="shuffle",
            **options,
        ).fit(data, validation)


def expected(module: nn.Module, iterations: int) -> nn.Module:
    parts = [
        Partition(X[:ROWS][rows], Y[:ROWS][rows]) for rows in (Dealt(ROWS, p, 2).numbers() for p in (0, 1))
    ]
    with threads(1):
        loss = nn.CrossEntropyLoss()
        return decomposed(module, loss, ADAM, parts, 64, iterations, seed=3, rows_of=dealt_shares)


def test_executors_are_found_and_partitions_spread(cluster: Any) -> None:
    assert session.executors(cluster) == session.Executors(2, 1)
    tracker = cluster.sparkContext.statusTracker()
    waits = len(tracker.getJobIdsForGroup())
    assert session.executors(cluster) == session.Executors(2, 1)
    assert len(tracker.getJobIdsForGroup()) == waits, "both have run tasks"
    with Dataset.from_dataframe(cluster.range(100), features="id") as data:
        tokens = data.store().partitions
        assert len(tokens) == 2
        assert len({token.executor for token in tokens}) == 2


def test_a_task_on_each_executor(cluster: Any) -> None:
    jobs = FrameJobs(cluster.sparkContext)
    marks = cluster.range(100).rdd.map(lambda _: os.environ["SPARK_LOCAL_DIRS"]).distinct().collect()

    def mark() -> None:
        Path(os.environ["SPARK_LOCAL_DIRS"], "mark").touch()

    jobs.run_everywhere(partial(do_once, mark))
    found = [Path(folder, "mark") for folder in marks]
    assert len(found) == 2
    for path in found:
        path.unlink()  # each is there


def test_files_of_a_partition_that_was_built_again_elsewhere_are_deleted(cluster: Any) -> None:
    with Dataset.from_numpy(X[:ROWS], Y[:ROWS], spark=cluster, num_partitions=2) as data:
        first, second = data.store().partitions
        elsewhere = Path(second.folder).parent / Path(first.folder).name
        shutil.copytree(first.folder, elsewhere)
        FrameJobs(cluster.sparkContext).drop_block(data.store().tokens.id(), 0)
    assert not elsewhere.exists()
    assert not Path(first.folder).exists()


@pytest.mark.parametrize("exchange", ["driver", "sharded", "replicated"])
def test_result_is_the_reference_to_the_bit(cluster: Any, exchange: str) -> None:
    # Ten iterations are an epoch.
    assert_bit_equal(fit(cluster, Everything(), 12, exchange=exchange).module, expected(Everything(), 12))


@pytest.mark.parametrize("codec", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_several_partitions_in_a_process_change_no_bit(cluster: Any, tmp_path: Path, codec: str) -> None:
    # Partitions of one process share the replica's gradient, which is lent, and the weights of a version.
    options = {"partitions": 5, "averaging": EMA(0.9), "gradient_codec": codec}
    with no_jvm(str(tmp_path)) as alone:
        wanted = fit(alone, mlp(), 9, exchange="driver", **options)
    for exchange in ("sharded", "replicated"):
        found = fit(cluster, mlp(), 9, exchange=exchange, iterations_per_job=4, **options)
        assert_bit_equal(found.module, wanted.module)
        assert_bit_equal(found.unaveraged, wanted.unaveraged)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["driver", "replicated"])
def test_weights_by_broadcast_give_the_same_bits(cluster: Any, monkeypatch: Any, exchange: str) -> None:
    monkeypatch.setattr("sparkdl.access.classic._INLINE_BYTES", 0)
    assert_bit_equal(fit(cluster, Everything(), 5, exchange=exchange).module, expected(Everything(), 5))


@pytest.mark.parametrize("exchange", ["driver", "sharded"])
def test_state_on_disk_alone_gives_the_same_bits(cluster: Any, monkeypatch: Any, exchange: str) -> None:
    monkeypatch.setattr("sparkdl._spark.jobs._LARGE_FRAME", 0)
    assert_bit_equal(fit(cluster, Everything(), 6, exchange=exchange).module, expected(Everything(), 6))


def test_lost_files_are_rebuilt(cluster: Any) -> None:
    def lose(data: Dataset) -> None:
        for token in data.store().partitions:
            shutil.rmtree(token.folder)

    assert_bit_equal(fit(cluster, mlp(), 5, lose).module, expected(mlp(), 5))


def executor_pids() -> list[int]:
    """Return the executor JVMs that this test run started."""
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
        and "CoarseGrainedExecutorBackend" in " ".join(child.cmdline())
    ]


class KillsAnExecutor:
    """A loss that lets an executor be killed in the middle of training."""

    def __init__(self, flag: str) -> None:
        self.flag = flag
        self.inner = nn.CrossEntropyLoss()

    def __call__(self, output: Any, label: Any) -> Any:
        try:
            os.remove(self.flag)  # only the first task to get here finds the file
        except FileNotFoundError:
            return self.inner(output, label)
        if "SPARK_LOCAL_DIRS" in os.environ:
            parent = psutil.Process()
            while "CoarseGrainedExecutorBackend" not in " ".join(parent.cmdline()):
                parent = parent.parent()
            os.kill(parent.pid, signal.SIGKILL)
        return self.inner(output, label)


# A shuffle of the other plans is lost in the same way, in the groups that
# test_executors_killed_at_once_change_no_bit and test_rows_of_tables_survive_executors_killed_at_once
# disturb; how each plan goes on is proved without a JVM, in tests/allreduce/test_allreduce_plans.py.
@pytest.mark.parametrize(
    "exchange",
    ["driver", *(pytest.param(plan, marks=pytest.mark.slow) for plan in ("sharded", "replicated"))],
)
def test_an_executor_killed_while_training_changes_no_bit(cluster: Any, tmp_path: Any, exchange: str) -> None:
    flag = tmp_path / "kill"
    loss = KillsAnExecutor(str(flag))

    def arm(data: Dataset) -> None:
        data.store()
        # Not yet: the first task after the dry run on the driver is to find the file.
        original = Shipped.engine

        def engine(self: Any, *args: Any) -> Any:
            flag.touch()
            Shipped.engine = original  # type: ignore[method-assign]
            return original(self, *args)

        Shipped.engine = engine  # type: ignore[method-assign, assignment]

    before = set(executor_pids())
    result = fit(cluster, Everything(), 12, arm, loss=loss, exchange=exchange)
    assert_bit_equal(result.module, expected(Everything(), 12))
    assert not flag.exists()
    assert set(executor_pids()) != before


def test_partitions_spread_again_once_an_executor_is_back(cluster: Any) -> None:
    access = access_to(cluster)
    members = Cluster(access)
    with Dataset.from_numpy(X[:ROWS], Y[:ROWS], spark=cluster, num_partitions=2) as data:
        store = data.store()
        assert members.crowded(store) == []
        os.kill(executor_pids()[0], signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not members.crowded(store) and time.monotonic() < deadline:
            # The partition that was lost is built again on the executor that is left, and stays there.
            built = {Token.from_frame(frame.unpack(found)).executor for found in access.collect(store.tokens)}
            if len(built) == 2 and access.count_executors() == 2:
                break  # the executor was back first
            time.sleep(0.2)
        transport = SimpleNamespace(is_joining=False, forget=partial(access.forget, store.tokens))
        spreading = Spreading(members, store, transport)
        spreading.lost()
        for _ in range(3):
            spreading.move()
        assert members.crowded(store) == []
        built = {Token.from_frame(frame.unpack(found)).executor for found in access.collect(store.tokens)}
        assert len(built) == 2


class FailsOnce(torch.optim.Adam):
    """Fails in an executor after its fifth step, when weights and moments have changed."""

    def __init__(self, params: Any, flag: str, **options: Any) -> None:
        super().__init__(params, **options)
        self.flag = flag

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        states = list(self.state.values())
        if "SPARK_LOCAL_DIRS" in os.environ and states and int(states[0]["step"]) == 5:
            try:
                os.remove(self.flag)  # only the first task to get here finds the file
            except FileNotFoundError:
                return
            raise RuntimeError("once")


@pytest.mark.parametrize("exchange", [pytest.param("sharded", marks=pytest.mark.slow), "replicated"])
def test_an_update_that_fails_once_in_a_group_changes_no_bit(
    cluster: Any, tmp_path: Any, exchange: str
) -> None:
    flag = tmp_path / "fail"
    flag.touch()
    options = {"optimizer": partial(FailsOnce, flag=str(flag), lr=1e-3), "iterations_per_job": 6}
    result = fit(cluster, Everything(), 12, exchange=exchange, max_failures=0, **options)
    assert_bit_equal(result.module, expected(Everything(), 12))
    assert not flag.exists()


EVERYTHING = {
    "optimizer": partial(LAMB, lr=1e-2),
    "clip": ClipByNorm(0.5),
    "averaging": EMA(0.9),
    "num_shards": 2,  # so that norms are reduced over the shards
}


def test_options_on_two_executors(cluster: Any, tmp_path: Path) -> None:
    metrics = MulticlassAccuracy(10, average="micro")
    with Dataset.from_numpy(X[ROWS:], Y[ROWS:], spark=cluster, num_partitions=3) as held_out:
        result = fit(cluster, mlp(), 6, validation=held_out, metrics=metrics, **EVERYTHING)
    with no_jvm(str(tmp_path)) as alone:
        one = fit(alone, mlp(), 6, **{**EVERYTHING, "num_shards": 1})
    assert relative_error(result.module, one.module) < 1e-5
    found = result.module.eval()(torch.from_numpy(X[ROWS:])).argmax(1)
    accuracy = float((found == torch.from_numpy(Y[ROWS:])).float().mean())
    assert result.scores["val/multiclass_accuracy"] == pytest.approx(accuracy, abs=1e-7)


GROUPS = {name: value for name, value in EVERYTHING.items() if name != "num_shards"} | {
    "exchange": "replicated",
    "iterations_per_job": 3,
}
GATHER = GROUPS | {"exchange": "sharded"}


# Retries of the plan "driver": test_an_executor_killed_while_training_changes_no_bit. All executors at once:
# test_rows_of_tables_survive_executors_killed_at_once. Commits of each plan, on a local session that loses
# what Spark keeps: test_lost_optimizer_state_is_replayed_from_a_commit in tests/train/test_train_resume.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "executors"),
    [
        (EVERYTHING, 1),
        (EVERYTHING, 2),
        (GROUPS, 1),
        (GROUPS, 2),
        (GATHER, 2),
    ],
    ids=["shards-1", "shards-2", "groups-1", "groups-2", "gather-2"],
)
def test_executors_killed_at_once_change_no_bit(
    cluster: Any, tmp_path: Path, options: dict[str, Any], executors: int
) -> None:
    with no_jvm(str(tmp_path)) as alone:
        undisturbed = fit(alone, mlp(), 12, **options)

    class Kill(Hook):
        def on_iteration_end(self, run: Any) -> None:
            if run.state.iteration == 5:
                for pid in executor_pids()[:executors]:
                    os.kill(pid, signal.SIGKILL)

    result = fit(cluster, mlp(), 12, hooks=[Kill()], **options)
    assert_bit_equal(result.module, undisturbed.module)
    assert len(result.history) == 12


def test_rows_of_tables_survive_executors_killed_at_once(cluster: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pairs = np.stack([random.integers(0, 400, 240), random.integers(0, 90, 240)], 1)
    lazy = partial(torch.optim.SparseAdam, lr=1e-2)

    def train(spark: Any, exchange: str, *hooks: Hook) -> Any:
        labels = pairs.sum(1).astype(np.float32)
        with Dataset.from_numpy(pairs, labels, spark=spark, num_partitions=2) as data:
            return Trainer(
                Factors(),
                loss=nn.MSELoss(),
                optimizer={"user*": lazy, "item*": lazy, "*": ADAM},
                batch_size=60,
                end_when=MaxIteration(12),
                iterations_per_job=None if exchange == "driver" else 3,
                exchange=exchange,
                hooks=hooks,
                progress=False,
            ).fit(data)

    class Kill(Hook):
        def on_iteration_end(self, run: Any) -> None:
            if run.state.iteration == 5:
                for pid in executor_pids():
                    os.kill(pid, signal.SIGKILL)

    found = train(cluster, "replicated", Kill())
    with no_jvm(str(tmp_path)) as alone:
        assert_bit_equal(found.module, train(alone, "driver").module)
    assert len(found.history) == 12


def test_threads_per_task() -> None:
    assert threads_per_task(session.Executors(1, 8), 1) == 8
    assert threads_per_task(session.Executors(2, 8), 2) == 8
    assert threads_per_task(session.Executors(2, 8), 3) == 4
    assert threads_per_task(session.Executors(2, 8), 64) == 1
    assert threads_per_task(session.Executors(4, 1), 2) == 1


def test_tasks_of_several_cores_have_as_many_threads() -> None:
    assert session.Executors(2, 8).tasks == 8
    assert threads_per_task(session.Executors(2, 8, 4), 2) == 8
    assert threads_per_task(session.Executors(2, 8, 4), 64) == 2
    assert threads_per_task(session.Executors(2, 8, 1), 64) == 8


def test_the_confs_of_a_local_session_limit_its_tasks() -> None:
    for conf, tasks in (({}, 4), ({"spark.task.cpus": "2"}, 2), ({"spark.task.cpus": "3"}, 1)):
        context = SimpleNamespace(master="local[4]", getConf=partial(dict, conf))
        spark: Any = SimpleNamespace(sparkContext=context)
        assert session.executors(spark) == session.Executors(1, 4, tasks)


def test_no_profile_for_one_thread_or_local_mode(spark: Any) -> None:
    assert access_to(spark).profile(threads_per_task(session.Executors(1, 2), 1)) is None
    assert access_to(spark).profile(threads_per_task(session.Executors(2, 1), 2)) is None

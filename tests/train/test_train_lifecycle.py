"""How a fit begins, shows itself, ends and cleans up."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.models import Everything, mlp
from torch import nn

from sparkdl import Dataset, Trainer, session
from sparkdl.exceptions import ConfigError, SparkdlWarning
from sparkdl.train import Hook, MaxEpoch, MaxIteration, MinLoss, Run
from sparkdl.train.history import BYTES, PHASES

ADAM = partial(torch.optim.Adam, lr=1e-2)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 64)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def trainer(module: nn.Module | None = None, **options: Any) -> Trainer:
    options = {"optimizer": ADAM, "batch_size": 20, "progress": False} | options
    return Trainer(module or mlp(), loss=nn.CrossEntropyLoss(), **options)


@pytest.fixture
def data(spark: Any) -> Any:
    with Dataset.from_numpy(X, Y, spark=spark, num_partitions=2) as data:
        yield data


def test_history_and_state(data: Dataset) -> None:
    result = trainer(end_when=MaxEpoch(2), exchange="driver").fit(data)
    assert result.stopped_by == "end_when"
    assert (result.state.epoch, result.state.iteration, result.state.samples) == (2, 6, 120)
    assert result.history.column("epoch") == [1, 1, 1, 2, 2, 2]
    row = result.history[-1]
    assert set(row["phases"]) == set(PHASES)
    assert set(row["bytes"]) == set(BYTES)
    assert row["lr"] == 1e-2
    assert all(seconds >= 0 for seconds in row["phases"].values())
    # Except for rows during which the machine did something else.
    shares = [sum(row["phases"].values()) / row["seconds"] for row in result.history]
    assert any(0.5 < share < 1.5 for share in shares), shares
    numel = sum(p.numel() for p in mlp().parameters())
    assert row["bytes"]["shards"] == 4 * numel
    assert row["bytes"]["state"] >= 8 * numel
    assert 2 * 4 * numel <= row["bytes"]["gradients"] < 2 * 4 * numel + 10_000


def test_zero_iterations(data: Dataset) -> None:
    result = trainer(end_when=MaxIteration(0)).fit(data)
    assert len(result.history) == 0
    assert torch.equal(result.module[0].weight, mlp()[0].weight)


def test_triggers_combine(data: Dataset) -> None:
    result = trainer(end_when=MinLoss(0.5) | MaxIteration(50)).fit(data)
    losses = result.history.column("loss")
    assert losses[-1] < 0.5
    assert all(loss >= 0.5 for loss in losses[:-1])


@pytest.mark.parametrize("training", [True, False])
def test_the_callers_module_is_left_alone(data: Dataset, training: bool) -> None:
    module = Everything().train(training)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    result = trainer(module, end_when=MaxIteration(2)).fit(data)
    assert module.training is training
    assert result.module.training is training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert not torch.equal(result.module.head.weight, module.head.weight)
    assert result.module.head.weight.grad is None
    # Parameters own their memory: saving one must not save all.
    assert result.module.head.weight.untyped_storage().nbytes() == result.module.head.weight.nbytes


@pytest.mark.jvm
def test_the_global_generators_are_left_alone(data: Dataset) -> None:
    module = Everything()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    trainer(module, end_when=MaxIteration(2)).fit(data)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.jvm
def test_jobs_have_readable_names(spark: Any, data: Dataset) -> None:
    trainer(name="mnist", end_when=MaxEpoch(1), exchange="driver").fit(data)
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    names = {jobs.apply(i).description().toString() for i in range(jobs.size())}
    assert "Some(sparkdl fit mnist: epoch 1, iteration 3, forward-backward)" in names
    assert "Some(sparkdl fit mnist: epoch 1, iteration 3, parameter sync)" in names
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


@pytest.mark.jvm
def test_ctrl_c_stops_between_jobs(data: Dataset) -> None:
    class Press(Hook):
        """Presses it a while after the first iteration."""

        def on_iteration_end(self, run: Run) -> None:
            if run.state.iteration == 1:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    handler = signal.getsignal(signal.SIGINT)
    result = trainer(end_when=MaxIteration(100_000), hooks=[Press()]).fit(data)
    assert result.stopped_by == "interrupt"
    assert result.state.iteration == len(result.history) > 0
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.jvm
def test_fit_from_another_thread(data: Dataset) -> None:
    results: list[Any] = []
    fit = trainer(end_when=MaxIteration(3)).fit
    threads = [threading.Thread(target=lambda: results.append(fit(data))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(results[0].module[0].weight, results[1].module[0].weight)


def test_progress_bar_shows_epoch_loss_and_rate(data: Dataset, capfd: Any) -> None:
    trainer(end_when=MaxEpoch(2), progress=True, name="digits").fit(data)
    shown = capfd.readouterr().err
    assert "digits epoch 2" in shown
    assert "loss=" in shown
    assert "records/s" in shown


@pytest.mark.jvm
def test_confs_of_its_own_count_while_the_session_runs_and_others_are_named(spark: Any) -> None:
    with Dataset.from_numpy(X, Y, spark=spark) as data:
        try:
            spark.conf.set("spark.sparkdl.transprot", "fast")
            with pytest.warns(
                SparkdlWarning, match=r"transprot is no conf .*mean spark\.sparkdl\.transport\?"
            ):
                data.access.check()
            data.access.check()  # a second warning would be an error
            spark.conf.set("spark.sparkdl.transport", "fast")
            with pytest.raises(ConfigError, match="transport=fast: expected one of"):
                trainer().fit(data)
        finally:
            for name in ("transprot", "transport"):
                spark.conf.unset(f"spark.sparkdl.{name}")


@pytest.mark.jvm
def test_a_foreign_session_warns_once_and_trains(spark: Any, data: Dataset, monkeypatch: Any) -> None:
    setting = session.Setting("spark.sparkdl.test", "yes", "it is slow")
    monkeypatch.setattr(session, "SETTINGS", (setting,))
    monkeypatch.setattr(session, "_warned", set())
    with pytest.warns(UserWarning, match="spark.sparkdl.test=yes: without it it is slow"):
        trainer(end_when=MaxIteration(1)).fit(data)
    trainer(end_when=MaxIteration(1)).fit(data)  # a second warning would be an error

"""The Tuner: searches over real trials, each of which is a Trainer in one task."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.no_jvm import JobError
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer, attempts, tune
from sparkdl.data.given import folds_of
from sparkdl.exceptions import ConfigError, ModelError, SparkdlWarning
from sparkdl.train.hooks.callbacks import EarlyStopping
from sparkdl.train.options.triggers import EveryIterations, MaxEpoch
from sparkdl.tune import shown
from sparkdl.tune.running import runners
from sparkdl.tune.running.advance import Advanced
from sparkdl.tune.running.shared_rows import shared

RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(size=(96, 6)).astype(np.float32)
LABELS = (FEATURES[:, 0] * FEATURES[:, 1] > 0).astype(np.int64)
ACCURACY = "val/multiclass_accuracy"
METRIC = MulticlassAccuracy(num_classes=2, average="micro")
FIXED = {"width": 4, "rows": 16}
SPACE = {"lr": tune.loguniform(1e-3, 1e-1), "width": [4, 16], "rows": 16}


def make(params: dict[str, Any]) -> Trainer:
    net = nn.Sequential(
        nn.Linear(6, params["width"]), nn.Dropout(0.1), nn.Tanh(), nn.Linear(params["width"], 2)
    )
    return Trainer(
        net,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=params["lr"]),
        batch_size=params["rows"],
        schedule=partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9),
        metrics=METRIC,
        progress=False,
    )


def rows(spark: Any, partitions: int = 3, first: int = 0, last: int = 96) -> Dataset:
    return Dataset.from_numpy(
        FEATURES[first:last], LABELS[first:last], spark=spark, num_partitions=partitions
    )


def tuner(train: Any = make, space: Any = SPACE, **options: Any) -> tune.Tuner:
    defaults: dict[str, Any] = {"metric": ACCURACY, "mode": "max", "progress": False, "seed": 3}
    defaults |= {"trials": 4, "max_epochs": 3, "scheduler": tune.ASHA(), "search": "random"}
    return tune.Tuner(train, space, **defaults | options)


def weights(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in module.state_dict().items()}


def test_a_trial_is_a_trainer_with_one_partition_to_the_bit(spark: Any) -> None:
    """Rungs, tasks and states change nothing, whatever the number of partitions that the rows lie in."""
    with rows(spark, 3) as data, rows(spark, 2, 0, 40) as validation:
        search = tuner(metric="val/loss", mode=None)
        found = search.fit(data, validation)
    best = found.get_best()
    with rows(spark, 1) as data, rows(spark, 1, 0, 40) as validation:
        alone = _with(search.trainer(best.params), end_when=MaxEpoch(best.epoch)).fit(data, validation)
    assert found.best is not None
    assert best.value == alone.scores["val/loss"]
    expected = weights(alone.module)
    assert weights(found.module()).keys() == expected.keys()
    for name, value in weights(found.module()).items():
        np.testing.assert_array_equal(value, expected[name])
    assert [t.status for t in found.trials].count("finished") in (1, 2)
    table = found.dataframe()
    assert list(table["trial"]) == [0, 1, 2, 3]
    assert {"params.lr", "params.width", "val/loss", "loss", "epochs", "status"} <= set(table.columns)
    assert len(found.curves()) == found.epochs
    assert "<table>" in found._repr_html_()
    assert "4 trials" in repr(found)
    pytest.importorskip("matplotlib")
    assert len(found.plot().axes) == 2


def test_the_same_winner_whatever_is_lost(
    spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tasks fail for good now and then; a search that dies goes on; the winner and its bits are the same."""
    options: dict[str, Any] = {
        "metric": "val/loss",
        "max_epochs": 2,
        "mode": None,
        "trials": 4,
        "scheduler": tune.PBT(quantile=0.4),
    }
    with rows(spark) as data:
        whole = tuner(**options).fit(data, 0.25)
        jobs, collect = [0], type(data.access).collect

        def losing(access: Any, frames: Any) -> list[bytes]:
            found = collect(access, frames)
            jobs[0] += b'"advanced"' in found[0][:500]
            if jobs[0] % 2 == 0 and b'"advanced"' in found[0][:500]:
                raise JobError("Job aborted: ExecutorLostFailure")  # after its work: the result is lost
            return found

        runner = runners.TaskRunner._run

        def dying(self: Any, rung: Any, *arguments: Any) -> Advanced:
            if rung.number == 5 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                raise RuntimeError("the driver died")
            return runner(self, rung, *arguments)

        with monkeypatch.context() as patch:
            search = tuner(**options, folder=tmp_path / "kept")
            patch.setattr(runners.TaskRunner, "_run", dying)
            with pytest.raises(RuntimeError, match="the driver died") as caught:
                search.fit(data, 0.25)
            patch.setattr(type(data.access), "collect", losing)
            again = search.fit(data, 0.25, resume=True)
    assert caught.value.result.stopped_by == "error"  # type: ignore[attr-defined]
    assert jobs[0] == 5  # for three rungs
    assert again.replayed > 0
    assert again.best == whole.best
    assert any(trial.copies for trial in whole.trials)
    for name, value in weights(again.module()).items():
        np.testing.assert_array_equal(value, weights(whole.module())[name])
    assert [t.values for t in again.trials] == [t.values for t in whole.trials]


def test_a_copy_goes_on_with_the_weights_and_momenta_of_the_best_and_its_own_rate(spark: Any) -> None:
    """Beside plain torch: an epoch is one batch of all rows, so their order does not matter."""

    def train(params: dict[str, Any]) -> Trainer:
        sgd = partial(torch.optim.SGD, lr=params["lr"], momentum=0.9)
        return Trainer(nn.Linear(6, 2), loss=nn.CrossEntropyLoss(), optimizer=sgd, batch_size=96)

    space = {"lr": tune.loguniform(1e-3, 1.0)}
    options: dict[str, Any] = {"trials": 3, "metric": "loss", "mode": None, "max_epochs": 3}
    search = tuner(train, space, scheduler=tune.PBT(), **options)
    with rows(spark) as data:
        found = search.fit(data)

    def losses(steps: list[float]) -> list[float]:
        torch.manual_seed(3)
        net, loss = nn.Linear(6, 2), nn.CrossEntropyLoss()
        sgd = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
        values = []
        for rate in steps:
            sgd.param_groups[0]["lr"] = rate
            sgd.zero_grad()
            values.append(loss(net(torch.from_numpy(FEATURES)), torch.from_numpy(LABELS)))
            values[-1].backward()
            sgd.step()
        return [value.item() for value in values]

    rates = [[trial.first_params["lr"]] * 3 for trial in found.trials]
    begun = [0] * 3
    for at in (1, 2):
        for trial in found.trials:
            for copy in trial.copies:
                if copy["epoch"] == at:
                    rates[trial.number] = rates[copy["trial"]][:at] + [copy["params"]["lr"]] * (3 - at)
                    begun[trial.number] = at
    assert 2 in begun
    best = found.get_best()
    told = [(step["epoch"], step["params"]["lr"]) for step in found.schedule()]
    steps = rates[best.number][: best.epoch]
    assert told == [(n, rate) for n, rate in enumerate(steps) if not n or rate != steps[n - 1]]
    for trial in found.trials:
        got = {int(report["epoch"]): report["loss"] for report in trial.reports}
        own = range(begun[trial.number], 3)  # before, it was another
        expected = losses(rates[trial.number])
        np.testing.assert_allclose([got[n + 1] for n in own], [expected[n] for n in own], rtol=1e-5)


def test_ctrl_c_keeps_what_was_found_and_the_search_goes_on(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runners.TaskRunner._run

    def pressed(self: Any, rung: Any, *arguments: Any) -> Advanced:
        if rung.number == 2:
            signal.raise_signal(signal.SIGINT)
        return run(self, rung, *arguments)

    options: dict[str, Any] = {"concurrent": 1, "max_epochs": 1, "scheduler": tune.FIFO()}
    with rows(spark) as data:
        whole = tuner(**options).fit(data, 0.25)
        search = tuner(**options, folder=tmp_path / "kept")
        with monkeypatch.context() as patch:
            patch.setattr(runners.TaskRunner, "_run", pressed)
            found = search.fit(data, 0.25)
        again = search.fit(data, 0.25, resume=True)
    assert "stopping after the rungs that run; press Ctrl-C again" in capsys.readouterr().err
    assert (found.stopped_by, found.rungs) == ("interrupt", 3)
    assert found.best is not None
    assert found.module() is not None
    assert (again.replayed, again.best) == (3, whole.best)


@pytest.mark.jvm
def test_trials_side_by_side_have_a_pool_each(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: dict[int, str] = {}
    run = runners.ClusterRunner._run

    def seen(self: Any, rung: Any, *arguments: Any) -> Advanced:
        pools[rung.trial] = spark.sparkContext.getLocalProperty("spark.scheduler.pool")
        return run(self, rung, *arguments)

    monkeypatch.setattr(runners.ClusterRunner, "_run", seen)
    with rows(spark, 2) as data:
        options: dict[str, Any] = {"per_trial": "cluster", "concurrent": 2, "trials": 2, "max_epochs": 1}
        tuner(metric="loss", mode=None, **options).fit(data)
    assert pools == {0: "sparkdl-trial-0", 1: "sparkdl-trial-1"}
    assert spark.sparkContext.getLocalProperty("spark.scheduler.pool") is None


def test_a_search_is_shown_while_it_runs(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar and a last table in a terminal, one output that changes in a notebook."""
    options: dict[str, Any] = {"metric": "loss", "mode": None, "trials": 2, "max_epochs": 1, "name": "shown"}
    with rows(spark) as data:
        found = tuner(**options, progress=True).fit(data)
        told = capsys.readouterr().err
        pages: list[str] = []
        monkeypatch.setattr(shown, "in_notebook", lambda: True)
        monkeypatch.setattr(shown.NotebookOutput, "show", lambda self, page: pages.append(page))
        tuner(**options, progress=True).fit(data)
    assert "2 trials, 2 ended, 2 epochs, best loss=" in told
    header, first, second = told.splitlines()[-3:]
    assert header.split() == ["trial", "status", "epochs", "loss", "rows", "lr", "width"]
    best = found.get_best()
    assert first.split()[:4] == [str(best.number), "finished", "1", f"{best.value:.5g}"]
    assert second.split()[1] == "finished"
    assert len(pages) == 2
    assert pages[-1].count("<tr>") == 3
    assert not capsys.readouterr().err


def test_folds_validate_each_other(spark: Any) -> None:
    space = {"lr": 1e-2, "sound": [True, False], "width": [[4], [8]], "rows": 16}

    def train(params: dict[str, Any]) -> Trainer:
        made = make({**params, "width": params["width"][0]})
        if not params["sound"]:
            nn.init.constant_(made.module[0].bias, float("nan"))  # type: ignore[index]
        return made

    search = tuner(
        train,
        space,
        metric="val/loss",
        mode=None,
        search="grid",
        trials=None,
        scheduler=tune.FIFO(rung=1),
        max_epochs=2,
    )
    with rows(spark) as data:
        found = search.fit(data, folds=3)
    assert [trial.status for trial in found.trials].count("diverged") == 2
    assert len(found) == 4
    assert found.get_best().params["sound"]
    assert isinstance(found.get_best().params["width"], list)
    with pytest.raises(ConfigError, match="a module for each fold"):
        found.module()


@pytest.mark.parametrize("folds", [None, 2])
def test_a_hook_ends_a_trial_whatever_its_rungs_are(spark: Any, folds: int | None) -> None:
    """The hook's epoch may be the last one of a rung, which nobody may take for the rung's own end."""

    def train(params: dict[str, Any]) -> Trainer:
        return Trainer(
            nn.Linear(6, 2),
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.SGD, lr=0.1, maximize=True),  # each epoch is worse
            batch_size=16,
            hooks=[EarlyStopping(params["patience"])],
            progress=False,
        )

    space = {"patience": [1, 3]}
    options: dict[str, Any] = {"metric": "val/loss", "mode": None, "search": "grid", "trials": None}
    ends = []
    with rows(spark) as data, rows(spark, 2, 0, 40) as validation:
        for rung in (None, 1, 2):
            search = tuner(train, space, **options, max_epochs=8, scheduler=tune.FIFO(rung), concurrent=1)
            found = search.fit(data, None if folds else validation, folds=folds)
            ends.append({t.params["patience"]: (t.status, t.epochs, t.last) for t in found.trials})
    assert ends[0] == ends[1] == ends[2]
    assert all(status == "finished" and epochs < 8 for status, epochs, _ in ends[0].values())


def test_a_value_is_that_of_the_state_at_the_end_of_the_rung(spark: Any) -> None:
    """Scores from inside an epoch are of other weights: they count for nothing."""
    with rows(spark) as data, rows(spark, 2, 0, 40) as validation:
        options: dict[str, Any] = {"metric": "val/loss", "mode": None, "scheduler": None, "trials": 1}
        every = tuner(
            lambda p: _with(make(p), validate_when=EveryIterations(1)), {"lr": [0.1], **FIXED}, **options
        )
        found = every.fit(data, validation)
        alone = every.trainer(found.get_best().params)
        alone.module.load_state_dict(found.module().state_dict())
        assert found.get_best().value == pytest.approx(alone.evaluate(validation)["loss"])
        inside = tuner(
            lambda p: _with(make(p), validate_when=EveryIterations(4)), {"lr": [0.1], **FIXED}, **options
        )
        with pytest.raises(
            ConfigError, match=r"report loss at the end of a rung.*validate_when=EveryEpoch\(\)"
        ):
            inside.fit(data, validation)


def test_trials_with_different_losses_are_compared_with_a_warning(spark: Any) -> None:
    def train(params: dict[str, Any]) -> Trainer:
        sgd = partial(torch.optim.SGD, lr=0.1)
        return Trainer(nn.Linear(6, 2), loss=params["loss"], optimizer=sgd, metrics=METRIC, progress=False)

    losses = [nn.CrossEntropyLoss(label_smoothing=smoothing) for smoothing in (0.0, 0.1)]
    options: dict[str, Any] = {"search": "grid", "trials": None, "max_epochs": 1, "scheduler": None}
    with rows(spark) as data:
        with pytest.warns(SparkdlWarning, match="metric='val/loss': trials have different losses, Cross"):
            tuner(train, {"loss": losses}, metric="val/loss", mode=None, **options).fit(data, 0.2)
        tuner(train, {"loss": losses}, **options).fit(data, 0.2)
        tuner(
            train, {"loss": [nn.CrossEntropyLoss() for _ in losses]}, metric="loss", mode=None, **options
        ).fit(data)


def test_shared_rows_are_those_of_the_dataset_in_the_order_of_their_source(spark: Any) -> None:
    with rows(spark, 3) as data, shared(data, [None]) as (found, broadcasts):
        with spark.sparkContext.task({b.number: b for b in broadcasts}):
            everything = found.dataset()
            store = everything.store()
            read = [found.dataset() for _ in range(3)]  # the files are there
        assert store.rows == (96,)
        assert len({d.store().partitions[0].folder for d in read} | {store.partitions[0].folder}) == 1


def test_errors_come_before_any_rung(spark: Any) -> None:
    for options, message in (
        ({"mode": None}, r"mode=None: say whether larger values of 'val/multiclass_accuracy'"),
        ({"metric": ""}, "metric=''"),
        ({"trials": 0}, r"Tuner\(trials=0\): expected an integer"),
        ({"timeout": -1}, "timeout=-1"),
        ({"refit": -1}, "refit=-1"),
        ({"first": [{"rate": 1}]}, "first: 'rate' is not to be chosen; the space has lr, width"),
        ({"first": [{"width": 5}]}, "first: width=5 is not in"),
        ({"per_trial": "cluster", "concurrent": 5}, "concurrent=5: expected at most 4 distributed fits"),
        ({"per_trial": "executor"}, "per_trial='executor': expected 'task' or 'cluster'"),
        ({"scheduler": "asha"}, r"scheduler='asha'.*ASHA\(\)"),
        ({"search": "tp"}, "search='tp'"),
        ({"train": nn.Linear}, "expected a function from a dict"),
    ):
        with pytest.raises(ConfigError, match=message):
            tuner(**options)
    jobs = spark.sparkContext.jobs
    with rows(spark) as data:
        with pytest.raises(
            ConfigError, match=r"metric='val/multiclass_accuracy'.*there are no validation rows"
        ):
            tuner().fit(data)
        with pytest.raises(ConfigError, match="resume=True: folder="):
            tuner().fit(data, 0.2, resume=True)
        with pytest.raises(ConfigError, match="folds and validation are both given"):
            tuner().fit(data, 0.2, folds=3)
        assert not jobs
        with pytest.raises(ConfigError, match="train returned a Linear"):
            tuner(lambda _: nn.Linear(2, 2)).fit(data, 0.2)
        with pytest.raises(ConfigError, match=r"'exchange='driver'|exchange='driver' is about several tasks"):
            tuner(lambda p: _with(make(p), exchange="driver")).fit(data, 0.2)
        with pytest.raises(
            ConfigError, match=r"metric='val/accuracy': trials report loss, val/loss, val/multi"
        ):
            tuner(metric="val/accuracy").fit(data, 0.2)
        with pytest.raises(ModelError, match="mat1 and mat2"):
            tuner(lambda p: _wrong(make(p)), metric="loss", mode=None).fit(data)


def _with(trainer: Trainer, **options: Any) -> Trainer:
    trainer.config = replace(trainer.config, **options)
    return trainer


def _wrong(trainer: Trainer) -> Trainer:
    net = nn.Sequential(nn.Linear(5, 2))
    return Trainer(
        net, loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.1), progress=False
    )


def test_distributed_trials_are_fits_over_all_partitions(spark: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"metric": "val/loss", "mode": None, "per_trial": "cluster", "trials": 3}
    with rows(spark, 2) as data, rows(spark, 2, 0, 40) as validation:
        search = tuner(**options, max_epochs=2, scheduler=tune.SuccessiveHalving(2), folder=tmp_path)
        found = search.fit(data, {"val": validation})
        best = found.get_best()
        alone = _with(search.trainer(best.params), end_when=MaxEpoch(best.epoch)).fit(data, validation)
    assert best.value == alone.scores["val/loss"]
    assert [trial.epochs for trial in found.trials] != [2, 2, 2]


@pytest.mark.whole
def test_folds_of_distributed_trials_share_the_files_of_the_rows(spark: Any) -> None:
    """Each fold takes its share of each partition; side by side they have the same bits."""
    options: dict[str, Any] = {"metric": "val/loss", "mode": None, "per_trial": "cluster", "trials": 2}
    options |= {"max_epochs": 2, "scheduler": tune.FIFO(rung=1)}
    with rows(spark, 2) as data:
        with ExitStack() as stack:
            shares = [share for fold in folds_of(3, 3) for share in fold]
            made = [stack.enter_context(data.part(share)) for share in shares]
            counts = [len(part) for part in made]
            folders = {token.store for part in made for token in part.store().partitions}
        assert counts == [64, 32] * 3
        assert folders == {data.id}
        found = [tuner(**options, concurrent=count).fit(data, folds=3) for count in (1, 2)]
        one = tuner(**options).fit(data, 0.25)
        assert len(data) == 96  # the files are still there
    assert found[0].best == found[1].best
    assert [t.values for t in found[0].trials] == [t.values for t in found[1].trials]
    assert one.module() is not None


def test_the_first_trials_have_the_params_that_are_given(spark: Any) -> None:
    space = {**SPACE, "width": [[4], [8]]}
    first = [{"lr": 0.05, "width": [8]}, {"width": [4]}]
    train = lambda p: make({**p, "width": p["width"][0]})  # noqa: E731
    with rows(spark) as data:
        found = tuner(train, space, first=first, max_epochs=1, trials=3).fit(data, 0.2)
    assert found.trials[0].params == {"lr": 0.05, "width": "[8]", "rows": 16}
    assert found.trials[1].params["width"] == "[4]"


def test_time_is_kept_for_a_fit_that_follows(spark: Any) -> None:
    with rows(spark) as data:
        found = tuner(timeout=1000.0, refit=1e9, max_epochs=1, concurrent=1).fit(data, 0.2)
    assert found.stopped_by == "timeout"
    assert len(found) == 1  # after one, what it took would take too long


def test_the_next_driver_of_a_job_goes_on_by_itself(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under ``sparkdl submit --retries``: the script is the same, the folder is found."""
    notes = attempts.Notes(str(tmp_path / "notes"))
    notes.create()
    run = runners.TaskRunner._run

    def dying(self: Any, rung: Any, *arguments: Any) -> Advanced:
        if rung.number == 2:
            raise RuntimeError("the driver died")
        return run(self, rung, *arguments)

    def drive(number: int) -> tune.SearchResult:
        notes.write(number, attempts.Note())
        attempt = attempts.Attempt(notes, number)
        monkeypatch.setattr(attempts, "current", lambda: attempt)
        return tuner(folder=tmp_path / "kept", concurrent=1).fit(data, 0.25)

    with rows(spark) as data:
        whole = tuner(concurrent=1).fit(data, 0.25)
        with monkeypatch.context() as patch:
            patch.setattr(runners.TaskRunner, "_run", dying)
            with pytest.raises(RuntimeError, match="the driver died"):
                drive(1)
        found = drive(2)
    assert found.replayed == 2
    assert found.best == whole.best
    ((folder, place),) = notes.read(2).places
    assert folder == str(tmp_path / "kept")
    assert place.ended
    assert place.newest == found.rungs + 1
    assert notes.read(1).places[0][1].newest == 3


def test_loggers_are_told_of_each_trial(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    board = tune.TensorBoardHParams(tmp_path / "board")
    runs = tune.MLflowTrials(tracking_uri=uri)
    with rows(spark) as data:
        found = tuner(metric="loss", mode=None, trials=2, max_epochs=1, loggers=[board, runs]).fit(data)
    client = mlflow.MlflowClient(tracking_uri=uri)
    children = client.search_runs(["0"], f"tags.`mlflow.parentRunId` = '{runs.run_id}'")
    assert {run.data.params["lr"] for run in children} == {str(t.params["lr"]) for t in found.trials}
    assert {run.info.status for run in children} == {"FINISHED"}
    assert client.get_run(runs.run_id).data.tags["sparkdl.best_trial"] == str(found.get_best().number)
    assert sorted(path.name for path in (tmp_path / "board").iterdir()) == ["trial-0000", "trial-0001"]
    assert all(any(folder.iterdir()) for folder in (tmp_path / "board").iterdir())


def _some(params: dict[str, Any]) -> Trainer:
    if params["width"] == 4:
        raise ValueError("4 units are too few")
    made = make(params)
    if params["rows"] == 8:
        made.module[3] = nn.Linear(params["width"] + 1, 2)
    return made


def test_an_error_of_make_has_a_note_of_the_trial(spark: Any) -> None:
    with rows(spark) as data, pytest.raises(ValueError, match="too few") as caught:
        tuner(_some, {"lr": 0.1, "width": [4], "rows": 16}).fit(data, 0.25)
    assert caught.value.__notes__ == ["Trial 0, epochs 1 to 1, with {'lr': 0.1, 'rows': 16, 'width': 4}"]


def test_trials_that_fail_are_told(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four params two cannot be made, and one has a module that does not fit."""
    space = {"lr": 0.1, "width": [4, 16], "rows": [8, 16]}
    catch = (ValueError, ModelError)
    options: dict[str, Any] = {"search": "grid", "trials": None, "catch": catch}
    with rows(spark) as data:
        found = tuner(_some, space, progress=True, max_epochs=1, **options).fit(data, 0.25)
        none = tuner(_some, {**space, "width": [4]}, **options).fit(data, 0.25)
    table = found.dataframe().set_index(["params.width", "params.rows"])
    assert table["status"].to_dict() == {
        (4, 8): "failed",
        (4, 16): "failed",
        (16, 8): "failed",
        (16, 16): "finished",
    }
    assert table["error"][4, 8] == "ValueError: 4 units are too few"
    assert table["error"][16, 8].startswith("ModelError: ")
    assert table["error"][16, 16] == ""
    assert found.get_best().params == {"lr": 0.1, "width": 16, "rows": 16}
    assert "4 trials, 3 failed" in repr(found)
    assert "failed: ValueError: 4 units are too few" in found._repr_html_()
    assert capsys.readouterr().err.count("failed: ValueError: 4 units are too few\n") == 2
    assert none.best is None
    with pytest.raises(ConfigError, match="no best trial: .*; trial 0 failed: ValueError: 4 units"):
        none.get_best()


@pytest.mark.parametrize("catch", [3, "ValueError", [KeyboardInterrupt], (ValueError, ValueError("x"))])
def test_catch_takes_classes_of_exceptions(catch: Any) -> None:
    with pytest.raises(ConfigError, match="catch=.*expected classes of exceptions"):
        tuner(catch=catch)


def test_the_bar_counts_rungs(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that wait for good end without a rung: ASHA runs 1 + 1 + 4 rungs for 4 trials."""
    bars: list[Any] = []
    opened = shown.open_bar
    monkeypatch.setattr(
        shown, "open_bar", lambda *given, **options: bars.append(opened(*given, **options)) or bars[-1]
    )
    with rows(spark) as data:
        found = tuner(progress=True).fit(data, 0.25)
    assert [bar.n for bar in bars] == [found.rungs]
    assert sum(trial.status == "stopped" for trial in found.trials) > 0

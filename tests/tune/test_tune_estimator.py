"""TorchTuner: a search as a stage of Spark ML."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import TorchClassifier, tune
from sparkdl.exceptions import ConfigError
from sparkdl.ml import load
from sparkdl.ml.estimators import tables
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.table.encoding import Number, TableEncoding
from sparkdl.train.scheduled import ScheduledHyper
from sparkdl.tune import saving


@pytest.mark.whole
@pytest.mark.jvm
def test_the_best_params_of_folds_fit_all_rows(spark: Any, tmp_path: Path) -> None:
    """On real tasks, several at a time; folds of all trials read one copy of the rows."""
    random = np.random.default_rng(0)
    x, z = random.normal(size=(2, 120))
    frame = pd.DataFrame({"x": x, "z": z, "y": (x > 0).astype(float)})
    estimator = TorchClassifier(featuresCols=["x", "z"], labelCol="y", verbose=False, batchSize=20)
    tuner = tune.TorchTuner(
        estimator=estimator,
        space={"learningRate": [1e-5, 1e-2], "module.hidden": [[4], [8, 8]]},
        numFolds=2,
        search="grid",
        scheduler=tune.SuccessiveHalving(2),
        max_epochs=2,
        progress=False,
    )
    model = tuner.fit(spark.createDataFrame(frame).repartition(2))
    best = model.result.get_best()
    assert len(model.result) == 4
    assert best.params["learningRate"] == 1e-2
    assert model.bestModel.getLearningRate() == 1e-2
    assert model.bestModel.summary.totalEpochs == best.epoch == 2
    assert sorted(trial.epochs for trial in model.result.trials) == [1, 1, 2, 2]
    predicted = model.transform(spark.createDataFrame(frame.head(10))).toPandas()
    assert set(predicted["prediction"]) <= {0.0, 1.0}
    _check_saved(tuner, model, tmp_path)


def _check_saved(tuner: tune.TorchTuner, model: tune.TorchTunerModel, folder: Path) -> None:
    """Both come back as they were, and by the loader that looks at all names first."""
    tuner.write().save(str(folder / "tuner"))
    again = tune.TorchTuner.load(str(folder / "tuner"))
    assert (again.uid, again.space, again.metric, again.numFolds) == (tuner.uid, tuner.space, "val/loss", 2)
    assert again.options["scheduler"].describe() == tuner.options["scheduler"].describe()
    assert again.estimator.getFeaturesCols() == ["x", "z"]
    model.write().save(str(folder / "model"))
    for found in (tune.TorchTunerModel.load(str(folder / "model")), load(str(folder / "model"))):
        assert found.result.best == model.result.best
        assert found.result.trials[0].values == model.result.trials[0].values
        pd.testing.assert_frame_equal(found.result.dataframe(), model.result.dataframe())
        assert found.bestModel.encoding == model.bestModel.encoding
        with pytest.raises(ConfigError, match="take the model's bestModel"):
            found.result.module()
    with pytest.raises(ConfigError, match="holds a TorchTunerModel, expected a TorchTuner"):
        tune.TorchTuner.load(str(folder / "model"))


def test_what_json_cannot_say_is_not_saved() -> None:
    space = {"learningRate": tune.loguniform(1e-4, 1e-1), "batchSize": (1, 2), "module.hidden": [[4]]}
    tuner = tune.TorchTuner(
        estimator=TorchClassifier(), space=space, scheduler=tune.PBT(factors=(0.5, 2.0)), first=[{}]
    )
    again = saving.tuner_from_json(json.loads(json.dumps(saving.tuner_to_json(tuner))), "there")
    assert again["space"] == space
    assert again["scheduler"].factors == (0.5, 2.0)
    assert again["first"] == [{}]
    tuner.options["loggers"] = [tune.MLflowTrials]
    with pytest.raises(ConfigError, match="option loggers=<class .*MLflowTrials'> cannot be saved"):
        tuner.write()


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"bogus": 1}},
        {"options": {"values": {"estimator": 1}}},
        {"space": {"learningRate": {"distribution": '{"name": "Popen", "attributes": {}}'}}},
        {"space": {"learningRate": {"scheduler": "Popen", "options": {"values": {}}}}},
        {"space": 5},
    ],
)
def test_a_saved_tuner_that_nobody_has_written_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    found = saving.tuner_to_json(tune.TorchTuner(estimator=TorchClassifier(), space={"learningRate": [1.0]}))
    monkeypatch.setattr(saving, "read", lambda *_: ({"uid": "u"}, {**found, **change}, TorchClassifier()))
    with pytest.raises(ConfigError, match="path='there' cannot be read"):
        tune.TorchTuner.load("there")


def test_what_is_no_param_is_an_error() -> None:
    with pytest.raises(ConfigError, match="TorchClassifier has no Param 'learningrate'"):
        tune.TorchTuner(estimator=TorchClassifier(), space={"learningrate": [1, 2]})
    with pytest.raises(ConfigError, match=r"estimator=int: expected a torch estimator"):
        tune.TorchTuner(estimator=3, space={"lr": [1, 2]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["maxEpochs", "featuresCols", "handleInvalid", "validationFraction", "numPartitions"]
)
def test_trials_cannot_differ_in_rows_and_epochs(name: str) -> None:
    """The search ignored them, and the fit at the end had the value of the trial that had won without it."""
    values = {"maxEpochs": [2, 20], "featuresCols": [["x"], ["x", "z"]], "handleInvalid": "skip"}
    with pytest.raises(ConfigError, match=f"space: all trials read the same rows.*cannot differ in '{name}'"):
        tune.TorchTuner(
            estimator=TorchClassifier(), space={name: values.get(name, [0.1, 0.2]), "learningRate": 1.0}
        )


@pytest.mark.parametrize("given", [{"maxIter": 10}, {"warmStartFrom": "there"}])
def test_an_estimator_whose_fits_begin_or_end_elsewhere_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(given))} is set: trials begin anew"):
        tune.TorchTuner(estimator=TorchClassifier(**given), space={"learningRate": [1e-3, 1e-2]})


def test_an_estimator_that_writes_checkpoints_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^checkpointPath is set: .* give the search a folder="):
        tune.TorchTuner(estimator=TorchClassifier(checkpointPath="there"), space={"learningRate": [1e-3]})
    tune.TorchTuner(estimator=TorchClassifier(checkpointPath=""), space={"learningRate": [1e-3]})


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [({}, {}, 10), ({"maxEpochs": 3}, {}, 3), ({"maxEpochs": 3}, {"max_epochs": 7}, 7)],
)
def test_epochs_are_those_of_the_estimator_if_it_says_so(
    given: dict[str, Any], options: dict[str, Any], expected: int
) -> None:
    tuner = tune.TorchTuner(estimator=TorchClassifier(**given), space={"learningRate": [1e-3]}, **options)
    assert tuner._tuner(lambda _: None).max_epochs == expected


def test_the_fit_at_the_end_looks_for_no_score(monkeypatch: Any) -> None:
    fitted: list[Any] = []
    monkeypatch.setattr(TorchClassifier, "fit", lambda self, _: fitted.append(self))
    stops = TorchClassifier(
        earlyStoppingPatience=2, validationFraction=0.2, monitor="val/loss", metrics=MulticlassAccuracy(2)
    )
    tuner = tune.TorchTuner(estimator=stops, space={"learningRate": [1e-3, 1e-2]})
    tuner.refit(None, tune.BestTrial(0, {"learningRate": 1e-2}, 3, 0.5))  # type: ignore[arg-type]
    (fit,) = fitted
    assert [fit.isDefined(name) for name in ("monitor", "earlyStoppingPatience")] == [False, False]
    assert (fit.getMaxEpochs(), fit.getValidationFraction(), fit.metrics) == (3, 0.0, None)
    assert stops.metrics is not None


def _rates(estimator: Any, rows: int, share: float = 1.0) -> list[float]:
    """The learning rates of a fit of a table, as factors of the first one."""
    encoding = TableEncoding((Number("a", "number", 0, 1),), (), {}, rows)
    options = estimator._options() | tables.training(estimator, encoding, nn.Identity(), None, share)
    hyper = ScheduledHyper(OptimizerSpec(partial(SGD, lr=1.0)), options["schedule"])
    iterations = math.ceil(round(rows * share) / options["batch_size"]) * options["end_when"].epochs
    found = []
    for _ in range(iterations):
        found.append(hyper.learning_rate())
        hyper.after_iteration()
    return found


def test_the_fit_at_the_end_has_the_rates_of_the_trial_that_won(monkeypatch: Any) -> None:
    """The rate fell to 0 at the best epoch, where the trial, which was to go on, had most of it left."""
    fitted: list[Any] = []
    monkeypatch.setattr(TorchClassifier, "fit", lambda self, _: fitted.append(self))
    tuner = tune.TorchTuner(estimator=TorchClassifier(), space={"learningRate": [1e-3, 1e-2]}, max_epochs=10)
    tuner.refit(None, tune.BestTrial(0, {"learningRate": 1e-2}, 3, 0.5))  # type: ignore[arg-type]
    rates = _rates(fitted[0], 640)
    assert rates == pytest.approx([1 - i / 200 for i in range(60)])
    trial = TorchClassifier(maxEpochs=10)
    assert rates == _rates(trial, 640)[:60]
    assert _rates(trial, 640, 2 / 3)[-1] == pytest.approx(1 / 140)  # a fold's fit is to end at 0, too


def test_the_fit_at_the_end_has_batch_and_module_of_the_trial_that_won(monkeypatch: Any) -> None:
    """Rows that had validated made the batch twice as large, and let the module drop less."""
    fitted: list[Any] = []
    monkeypatch.setattr(TorchClassifier, "fit", lambda self, _: fitted.append(self))
    for rows, given in ((4800, {}), (4800, {"batchSize": 7}), (None, {})):
        tuner = tune.TorchTuner(estimator=TorchClassifier(**given), space={"learningRate": [1e-3, 1e-2]})
        tuner.refit(None, tune.BestTrial(0, {"learningRate": 1e-2}, 3, 0.5, rows=rows))  # type: ignore[arg-type]
    encoding = TableEncoding((Number("a", "number", 0, 1),), (), {}, 6400)  # with those that have validated
    given_rows = SimpleNamespace(encoding=encoding)
    sizes = [tables.training(own, encoding, nn.Identity())["batch_size"] for own in fitted]
    assert sizes == [64, 7, 128]
    drops = [own._build_default(given_rows, 2)[0].dropout for own in fitted]
    assert drops == [0.3, 0.3, 0.1]


@pytest.mark.parametrize("schedule", [partial(ReduceLROnPlateau, patience=1), lambda o: ReduceLROnPlateau(o)])
def test_the_fit_at_the_end_has_no_score_to_follow(schedule: Any) -> None:
    plateau = TorchClassifier(schedule=schedule)
    with pytest.raises(ConfigError, match="ReduceLROnPlateau follows validations, and the fit at the end"):
        tune.TorchTuner(estimator=plateau, space={"learningRate": [1e-3, 1e-2]})


def test_with_early_stopping_each_epoch_is_a_rung() -> None:
    def rung(estimator: TorchClassifier, **options: Any) -> Any:
        tuner = tune.TorchTuner(estimator=estimator, space={"learningRate": [1e-3, 1e-2]}, **options)
        return tuner._tuner(lambda _: None).scheduler.describe()

    stops = TorchClassifier(earlyStoppingPatience=2, validationFraction=0.2)
    assert (rung(stops), rung(TorchClassifier())) == ("FIFO(rung=1)", "FIFO(rung=None)")
    assert rung(stops, scheduler=tune.FIFO(3)) == "FIFO(rung=3)"

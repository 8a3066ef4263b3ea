"""TorchTuner: a search as a stage of Spark ML."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from sparkdl import TorchClassifier, tune
from sparkdl.exceptions import ConfigError


@pytest.mark.jvm
def test_the_best_params_of_folds_fit_all_rows(spark: Any) -> None:
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


def test_what_is_no_param_is_an_error() -> None:
    with pytest.raises(ConfigError, match="TorchClassifier has no Param 'learningrate'"):
        tune.TorchTuner(estimator=TorchClassifier(), space={"learningrate": [1, 2]})
    with pytest.raises(ConfigError, match=r"estimator=int: expected a torch estimator"):
        tune.TorchTuner(estimator=3, space={"lr": [1, 2]})  # type: ignore[arg-type]

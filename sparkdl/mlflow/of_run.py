"""The module of a run as an MLflow model, for the hook :class:`sparkdl.summary.MLflow`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkdl.exceptions import ConfigError
from sparkdl.ml.estimators.model import TorchModel
from sparkdl.mlflow.flavour import log_model
from sparkdl.train.passes.sweep import first_inputs
from sparkdl.train.run import Run


def log_module(run: Run) -> None:
    """Log the trained module to the active MLflow run, as a model of the columns that it was trained on.

    What a transform or ``collate`` makes of the columns is what the model takes. Raises ConfigError if rows
    differ in length, or a pickle is needed to save it.
    """
    plan = run.data.plan
    ragged = [column.source for column in plan.columns if column.ragged]
    if ragged:
        raise ConfigError(
            f"the rows of column {ragged[0]!r} differ in length, and this hook logs modules of rows of one "
            "shape; fit an estimator, and log its model with sparkdl.mlflow.log_model(model)"
        )
    inputs = first_inputs(run.data)
    model = TorchModel.from_module(
        run.trained_module(run.averaged()), example=inputs, featuresCols=_columns(run, inputs)
    )
    outputs = model.signature.outputs
    if len(outputs) > 1:
        model.setOutputCols([_named("output", spec.key) for spec in outputs])
    log_model(model)


def _columns(run: Run, inputs: Any) -> list[str]:
    """Return the names of the inputs: those of their columns, where a transform left as many."""
    sources = {column.key: column.source for column in run.data.plan.columns}
    names = [sources[key] for key in run.data.plan.features.keys]
    several = isinstance(inputs, tuple | list)
    keys = list(inputs) if isinstance(inputs, Mapping) else range(len(inputs) if several else 1)
    return names if len(names) == len(keys) else [_named("input", key) for key in keys]


def _named(what: str, key: int | str | None) -> str:
    return key if isinstance(key, str) else f"{what}_{key}"

"""Logs every fit, and the models of estimators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from sparkdl import summary
from sparkdl.ml.estimators.observers import Note, observe_every_fit
from sparkdl.mlflow.flavour import log_model
from sparkdl.summary.mlflow import MLflow, automatic_hooks
from sparkdl.summary.params import flatten


def autolog(*, log_models: bool = True, disable: bool = False, **options: Any) -> None:
    """Log every following fit of this process to MLflow, as :func:`sparkdl.summary.autolog` does.

    Estimators log to the same MLflow run the Params that were set, and the fitted model with its signature
    and some of its rows. If MLflow does not take these, a warning says so, and the fit goes on.

    Args:
        log_models: whether estimators log their models.
        disable: switch it off again.
        **options: of :class:`sparkdl.summary.MLflow`.

    Raises:
        ImportError: if MLflow is missing.
    """
    summary.autolog(disable=disable, **options)
    observe_every_fit(None if disable else partial(_logging, log_models))


@contextmanager
def _logging(log_models: bool, estimator: Any, dataset: DataFrame) -> Iterator[Note]:
    with automatic_hooks() as hooks:
        yield lambda model: _log(hooks, estimator, dataset if log_models else None, model)


def _log(hooks: list[MLflow], estimator: Any, rows: DataFrame | None, model: Any) -> None:
    """Log Params, and the model if there are rows for an example, to the run of the last hook."""
    import mlflow

    if not hooks or hooks[-1].run_id is None:  # the estimator has a hook of its own
        return

    def log() -> None:
        with hooks[-1].resumed():
            values = {param.name: value for param, value in estimator._paramMap.items()}
            mlflow.log_params(flatten(values, "estimator."))
            if rows is not None:
                log_model(model, input_example=rows)

    hooks[-1]._attempt("the model", log)

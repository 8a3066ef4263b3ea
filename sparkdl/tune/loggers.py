"""Trials for TensorBoard's HParams page, and as child runs in MLflow."""

from __future__ import annotations

import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sparkdl.summary.params import flatten
from sparkdl.tune.trial import Trial


class TrialLogger:
    """Is told of a search's course; methods do nothing unless overridden."""

    def begin(self, name: str, metric: str, setting: dict[str, Any]) -> None:
        """Begin with a search.

        Args:
            name: of the search.
            metric: by which trials are compared.
            setting: what the search is about.
        """

    def rung(self, trial: Trial, ended: bool) -> None:
        """Note a trial that has completed a rung, or will not go on."""

    def end(self, stopped_by: str, best: int | None) -> None:
        """End with the search, also after an error.

        Args:
            stopped_by: see :class:`SearchResult`.
            best: number of the best trial.
        """


class TensorBoardHParams(TrialLogger):
    """Writes each trial as a run of TensorBoard: params for the HParams page, values by epoch.

    Args:
        logdir: local folder; each trial has a folder in it.

    Raises:
        ImportError: if tensorboard is missing.
    """

    def __init__(self, logdir: str | os.PathLike[str]) -> None:
        if find_spec("tensorboard") is None:
            raise ImportError(
                "TensorBoardHParams(...) writes with the tensorboard package: pip install tensorboard"
            )
        self._logdir = Path(logdir)
        self._written: set[int] = set()

    def begin(self, name: str, metric: str, setting: dict[str, Any]) -> None:
        """See :class:`TrialLogger`."""
        self._written.clear()

    def rung(self, trial: Trial, ended: bool) -> None:
        """Write a trial that has ended."""
        if not ended or trial.number in self._written:
            return
        from torch.utils.tensorboard import SummaryWriter

        self._written.add(trial.number)
        params = flatten(trial.params)
        last = trial.reports[-1] if trial.reports else {}
        metrics = {f"last/{name}": v for name, v in last.items() if name != "epoch" and math.isfinite(v)}
        folder = self._logdir / f"trial-{trial.number:04d}"
        with SummaryWriter(str(folder)) as writer:
            writer.add_hparams(params, metrics, run_name=".", global_step=trial.epochs)
            for report in trial.reports:
                for name, value in report.items():
                    if name != "epoch":
                        writer.add_scalar(name, value, int(report["epoch"]))


class MLflowTrials(TrialLogger):
    """Logs a search as an MLflow run, and each trial as a child of it.

    Args:
        experiment: name of the experiment, made if there is none of this name; by default MLflow's current
            one, and the one with the number 0 of another ``tracking_uri``.
        run_name: name of the parent run; that of the search by default.
        tracking_uri: where to log; MLflow's current address by default.

    Attributes:
        run_id: id of the parent run.

    Raises:
        ImportError: if MLflow is missing.
    """

    def __init__(
        self, experiment: str | None = None, run_name: str | None = None, tracking_uri: str | None = None
    ) -> None:
        if find_spec("mlflow") is None:
            raise ImportError("MLflowTrials(...) logs with the mlflow package: pip install mlflow")
        self._experiment, self._run_name, self._uri = experiment, run_name, tracking_uri
        self._client: Any = None
        self._children: dict[int, str] = {}
        self._sent: dict[int, int] = {}
        self.run_id: str | None = None

    def begin(self, name: str, metric: str, setting: dict[str, Any]) -> None:
        """Start the parent run."""
        import mlflow
        from mlflow.tracking.fluent import _get_experiment_id

        self._client = client = mlflow.MlflowClient(tracking_uri=self._uri)
        self._children, self._sent = {}, {}
        if self._experiment is None:
            experiment = (_get_experiment_id() if self._uri is None else None) or "0"
        else:
            found = client.get_experiment_by_name(self._experiment)
            experiment = client.create_experiment(self._experiment) if found is None else found.experiment_id
        self._experiment_id = experiment
        run = client.create_run(experiment, run_name=self._run_name or name)
        self.run_id = run.info.run_id
        for key, value in flatten(setting).items():
            client.log_param(self.run_id, key, str(value)[:500])

    def rung(self, trial: Trial, ended: bool) -> None:
        """Send what is new of a trial; end its run with it."""
        client = self._client
        if trial.number not in self._children:
            tags = {"mlflow.parentRunId": self.run_id, "sparkdl.trial": str(trial.number)}
            run = client.create_run(self._experiment_id, run_name=f"trial-{trial.number}", tags=tags)
            self._children[trial.number] = run.info.run_id
            for name, value in flatten(trial.first_params).items():
                client.log_param(run.info.run_id, name, str(value)[:500])
        child = self._children[trial.number]
        for report in trial.reports[self._sent.get(trial.number, 0) :]:
            for name, value in report.items():
                if name != "epoch" and math.isfinite(value):
                    client.log_metric(child, name, value, step=int(report["epoch"]))
        self._sent[trial.number] = len(trial.reports)
        if ended:
            client.set_tag(child, "sparkdl.status", trial.status)
            if trial.error:
                client.set_tag(child, "sparkdl.error", trial.error)
            bad = trial.status in ("diverged", "failed")
            client.set_terminated(child, "FAILED" if bad else "FINISHED")

    def end(self, stopped_by: str, best: int | None) -> None:
        """End the parent run."""
        if best is not None:
            self._client.set_tag(self.run_id, "sparkdl.best_trial", str(best))
        status = {"error": "FAILED", "interrupt": "KILLED"}.get(stopped_by, "FINISHED")
        self._client.set_terminated(self.run_id, status)

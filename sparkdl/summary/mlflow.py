"""Parameters, metrics and artifacts for MLflow."""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sparkdl import redaction
from sparkdl._version import __version__
from sparkdl.summary.interval import Interval, Thinning
from sparkdl.summary.params import ending, params
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.of_run import add_to_every_run, remove_from_every_run
from sparkdl.train.options.triggers import Trigger
from sparkdl.train.run import Run

_SECONDS_BETWEEN_CALLS = 10.0
_MAX_METRICS = 1_000  # MLflow takes no more in one call
_MAX_PARAMS = 100
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]", re.ASCII)


class MLflow(Hook):
    """Logs a run to MLflow.

    Parameters are the options of the run, metrics are named as in :class:`TensorBoard` with the iteration as
    step; the history (as JSON lines, and as a picture where matplotlib is installed) and the module's
    structure become artifacts. Metrics are collected and sent every ten seconds; if that fails a warning
    says so, and they are sent again with the next ones.

    An active MLflow run is used, and left active, if none of ``experiment``, ``run_name`` and
    ``tracking_uri`` is given. Otherwise a run is started and is active during ``fit``; it ends as
    ``FINISHED``, as ``FAILED`` after an error, or as ``KILLED`` after Ctrl-C.

    Args:
        experiment: name of the experiment, made if there is none of this name; MLflow's current
            one by default.
        run_name: name of the MLflow run; the name of the run by default.
        tracking_uri: where to log, during ``fit``; MLflow's current address by default.
        log_model: whether to log the trained module as an MLflow model at the end, unless an error
            ended the run: as :func:`sparkdl.mlflow.log_model` does, without a pickle. A module that cannot
            be saved so is not logged, with a warning that says why.
        every: when a point of the metrics is made; by default as in :class:`TensorBoard`.
        tags: tags of the MLflow run.

    Raises:
        ImportError: if MLflow is missing.
    """

    def __init__(
        self,
        experiment: str | None = None,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        log_model: bool = False,
        *,
        every: Trigger | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        if find_spec("mlflow") is None:
            raise ImportError("MLflow(...) logs with the mlflow package: pip install mlflow")
        self._experiment = experiment
        self._run_name = run_name
        self._tracking_uri = tracking_uri
        self._log_model = log_model
        self._every = every or Thinning()
        self._tags = dict(tags or {})
        self._client: Any = None
        self._own = False
        self._uri_before: str | None = None
        self._waiting: list[Any] = []
        self._sent = 0.0
        self._interval = Interval()
        self.run_id: str | None = None

    def on_train_begin(self, run: Run) -> None:
        """Join the active MLflow run or start one, and log the options."""
        import mlflow
        from mlflow.entities import Param, RunTag

        self._interval, self._waiting, self._sent = Interval(), [], time.monotonic()
        active = mlflow.active_run()
        self._own = active is None or any((self._experiment, self._run_name, self._tracking_uri))
        if self._own:
            if self._tracking_uri is not None:
                self._uri_before = mlflow.get_tracking_uri()
                mlflow.set_tracking_uri(self._tracking_uri)
            try:
                active = mlflow.start_run(
                    run_name=self._run_name or run.name,
                    experiment_id=self._experiment_id(),
                    nested=active is not None,
                )
            except BaseException:
                self._restore()
                raise
        assert active is not None
        self._client = mlflow.MlflowClient()
        self.run_id = active.info.run_id
        found = [Param(_name(name), str(value)) for name, value in params(run).items()]
        tags = {"sparkdl.version": __version__, **self._tags}
        self._client.log_batch(self.run_id, tags=[RunTag(k, str(v)) for k, v in tags.items()])
        for start in range(0, len(found), _MAX_PARAMS):
            self._client.log_batch(self.run_id, params=found[start : start + _MAX_PARAMS])

    def on_iteration_end(self, run: Run) -> None:
        """Make a point if one is due, and send those that wait every now and then."""
        self._interval.add(run.history[-1])
        if self._every(run.previous, run.state):
            self._add(self._interval.take(), run.state.iteration)
        waited = time.monotonic() - self._sent
        if waited >= _SECONDS_BETWEEN_CALLS:
            self._send()

    def on_validation_end(self, run: Run, name: str, scores: Mapping[str, float]) -> None:
        """Add the scores."""
        self._add({f"{name}/{metric}": value for metric, value in scores.items()}, run.state.iteration)

    def on_train_end(self, run: Run) -> None:
        """Send what waits and the artifacts; end the MLflow run if it is this hook's own."""
        if self._client is None:
            return
        status, reason = ending(run)
        try:
            self._add(self._interval.take(), run.state.iteration)
            self._send()
            self._attempt("artifacts", lambda: self._log_artifacts(run))
            self._attempt("tags", lambda: self._client.set_tag(self.run_id, "sparkdl.ended", reason))
            if self._log_model and status != "FAILED":
                self._attempt("the model", lambda: self._log_module(run))
        finally:
            self._client = None
            if self._own:
                import mlflow

                self._attempt("the end of the run", lambda: mlflow.end_run(status))
                self._restore()

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Make the MLflow run of a training run that has ended the active one, to log more to it."""
        import mlflow

        active = mlflow.active_run()
        if active is not None and active.info.run_id == self.run_id:
            yield
            return
        if self._tracking_uri is not None:
            self._uri_before = mlflow.get_tracking_uri()
            mlflow.set_tracking_uri(self._tracking_uri)
        try:
            with mlflow.start_run(run_id=self.run_id, nested=active is not None):
                yield
        finally:
            self._restore()

    def _experiment_id(self) -> str | None:
        import mlflow

        if self._experiment is None:
            return None
        found = mlflow.get_experiment_by_name(self._experiment)
        return str(found.experiment_id if found else mlflow.create_experiment(self._experiment))

    def _restore(self) -> None:
        import mlflow

        if self._uri_before is not None:
            mlflow.set_tracking_uri(self._uri_before)
            self._uri_before = None

    def _add(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self._waiting += [Metric(_name(tag), float(value), now, step) for tag, value in values.items()]

    def _send(self) -> None:
        def send() -> None:
            while self._waiting:
                self._client.log_batch(self.run_id, metrics=self._waiting[:_MAX_METRICS])
                del self._waiting[:_MAX_METRICS]

        self._attempt("metrics", send)
        self._sent = time.monotonic()

    def _attempt(self, what: str, action: Any) -> None:
        """Do something that must not end a training run if it fails."""
        try:
            action()
        except Exception as error:
            reason = redaction.text(str(error).strip().split("\n")[0])
            warnings.warn(f"MLflow did not take {what}: {type(error).__name__}: {reason:.300}", stacklevel=3)

    def _log_artifacts(self, run: Run) -> None:
        with tempfile.TemporaryDirectory(prefix="sparkdl-mlflow-") as folder:
            Path(folder, "module.txt").write_text(f"{run.module}\n", encoding="utf-8")
            run.history.to_jsonl(Path(folder, "history.jsonl"))
            if find_spec("matplotlib") is not None and len(run.history):
                run.history.plot().savefig(Path(folder, "history.png"))
            self._client.log_artifacts(self.run_id, folder)

    def _log_module(self, run: Run) -> None:
        # By name, for it builds on the estimators' models, and they on runs.
        import_module("sparkdl.mlflow.of_run").log_module(run)


def _name(name: str) -> str:
    """Return a name without the characters that MLflow refuses, such as the @ of ``recall@10``."""
    return _NOT_IN_NAMES.sub("_", name)


_auto: dict[str, Any] | None = None
_made: ContextVar[list[MLflow] | None] = ContextVar("sparkdl automatic hooks", default=None)


def autolog(*, disable: bool = False, **options: Any) -> None:
    """Log every following ``fit`` of this process that has no :class:`MLflow` hook to MLflow.

    Args:
        disable: switch it off again.
        **options: of :class:`MLflow`.

    Raises:
        ImportError: if MLflow is missing.
    """
    global _auto
    if not disable:
        MLflow(**options)  # finds out now whether the options are right
    _auto = None if disable else options
    if disable:
        remove_from_every_run(automatic)
    else:
        add_to_every_run(automatic)


def automatic(hooks: Sequence[Hook]) -> list[Hook]:
    """Return the hooks that :func:`autolog` adds to those given."""
    if _auto is None or any(isinstance(hook, MLflow) for hook in hooks):
        return []
    hook = MLflow(**_auto)
    if (made := _made.get()) is not None:
        made.append(hook)
    return [hook]


@contextmanager
def automatic_hooks() -> Iterator[list[MLflow]]:
    """Give a list of the hooks that :func:`autolog` adds to runs which begin in ``with``, in this thread."""
    made: list[MLflow] = []
    token = _made.set(made)
    try:
        yield made
    finally:
        _made.reset(token)

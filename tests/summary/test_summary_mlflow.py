import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.runs import FakeRun

from sparkdl import summary
from sparkdl.summary import MLflow, autolog
from sparkdl.train.options.triggers import EveryIterations

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install mlflow-skinny")


@pytest.fixture
def uri(tmp_path, monkeypatch):
    """A store in a folder: the one kind that needs neither a server nor SQLAlchemy."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    uri = (tmp_path / "mlruns").as_uri()
    yield uri
    while mlflow.active_run():
        mlflow.end_run()
    assert mlflow.get_tracking_uri() == before
    mlflow.set_tracking_uri(before)


@pytest.fixture
def client(uri):
    return mlflow.MlflowClient(uri)


def metric(client, run_id, name):
    return {m.step: m.value for m in client.get_metric_history(run_id, name)}


def test_a_run_of_its_own(uri, client):
    hook = MLflow("digits", tracking_uri=uri, tags={"team": "vision"})
    FakeRun(steps=2, seed=7).train(hook, iterations=4, extras={"penalty@10": 2.0})
    run = client.get_run(hook.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "digits"
    assert client.get_experiment(run.info.experiment_id).name == "digits"
    assert run.data.params["seed"] == "7"
    assert run.data.params["end_when"] == "MaxEpoch(epochs=1)"
    assert run.data.params["module"] == "Sequential"
    assert run.data.tags["team"] == "vision"
    assert run.data.tags["sparkdl.ended"] == "end_when"
    assert metric(client, hook.run_id, "train/loss") == pytest.approx({1: 1, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4})
    assert metric(client, hook.run_id, "val/accuracy") == pytest.approx({2: 2 / 3, 4: 4 / 5})
    assert metric(client, hook.run_id, "extras/penalty_10")[4] == 2
    assert mlflow.active_run() is None


def test_artifacts(uri, client, tmp_path):
    hook = MLflow(tracking_uri=uri)
    FakeRun().train(hook, iterations=2)
    folder = client.download_artifacts(hook.run_id, "", str(tmp_path))
    names = {f.path for f in client.list_artifacts(hook.run_id)}
    assert {"history.jsonl", "module.txt"} <= names
    rows = [json.loads(line) for line in Path(folder, "history.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2]
    assert "Linear(in_features=3" in Path(folder, "module.txt").read_text()


def test_an_active_run_is_used_and_left_active(uri, client):
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        with mlflow.start_run() as active:
            hook = MLflow()
            FakeRun().train(hook, iterations=1)
            assert hook.run_id == active.info.run_id
            assert mlflow.active_run().info.run_id == active.info.run_id
            assert client.get_run(hook.run_id).info.status == "RUNNING"
    finally:
        mlflow.set_tracking_uri(before)
    assert metric(client, hook.run_id, "train/loss") == {1: 1}


def test_a_named_run_is_a_child_of_the_active_one(uri, client):
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        with mlflow.start_run() as active:
            hook = MLflow(run_name="fold 1")
            FakeRun().train(hook, iterations=1)
            assert mlflow.active_run().info.run_id == active.info.run_id
    finally:
        mlflow.set_tracking_uri(before)
    child = client.get_run(hook.run_id)
    assert child.info.run_name == "fold 1"
    assert child.info.status == "FINISHED"
    assert child.data.tags["mlflow.parentRunId"] == active.info.run_id


class Boom(MLflow):
    def __init__(self, error, **options):
        super().__init__(**options)
        self._error = error

    def on_epoch_end(self, run):
        raise self._error


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("boom\nat length"), "FAILED", "ValueError: boom"),
        (KeyboardInterrupt(), "KILLED", "KeyboardInterrupt: "),
    ],
)
def test_a_run_that_fails(uri, client, error, status, reason):
    hook = Boom(error, tracking_uri=uri)
    with pytest.raises(type(error)):
        FakeRun(steps=2).train(hook, iterations=4)
    run = client.get_run(hook.run_id)
    assert run.info.status == status
    assert run.data.tags["sparkdl.ended"] == reason
    assert sorted(metric(client, hook.run_id, "train/loss")) == [1, 2]


def test_ctrl_c_and_hooks_that_stop(uri, client):
    for stopped, status in {"interrupt": "KILLED", "no gain in 3 epochs": "FINISHED"}.items():
        hook, run = MLflow(tracking_uri=uri), FakeRun()
        run.stopped = stopped
        run.train(hook, iterations=1)
        assert client.get_run(hook.run_id).info.status == status
        assert client.get_run(hook.run_id).data.tags["sparkdl.ended"] == stopped


def test_metrics_are_sent_in_batches(uri, client, monkeypatch):
    hook, run = MLflow(tracking_uri=uri, every=EveryIterations(1)), FakeRun(steps=1000)
    hook.on_train_begin(run)
    calls = []
    log_batch = type(hook._client).log_batch

    def counted(self, run_id, **what):
        calls.append(len(what.get("metrics", ())))
        return log_batch(self, run_id, **what)

    monkeypatch.setattr(type(hook._client), "log_batch", counted)
    for _ in range(20):
        run.iterate(hook)
    assert calls == []
    hook._sent -= 60
    run.iterate(hook)
    assert len(calls) == 1
    assert metric(client, hook.run_id, "train/loss")[21] == pytest.approx(1 / 21)
    run.iterate(hook)
    monkeypatch.setattr("sparkdl.summary.mlflow._MAX_METRICS", 10)
    hook.on_train_end(run)
    assert len(calls) > 2
    assert max(calls[1:]) == 10
    assert len(metric(client, hook.run_id, "train/loss")) == 22


def test_a_server_that_fails_for_a_while_loses_nothing(uri, client, monkeypatch):
    hook, run = MLflow(tracking_uri=uri), FakeRun()
    hook.on_train_begin(run)

    def broken(*_, **__):
        raise OSError("down")

    hook._sent -= 60
    with monkeypatch.context() as patch:
        patch.setattr(type(hook._client), "log_batch", broken)
        with pytest.warns(UserWarning, match="did not take metrics: OSError: down"):
            run.iterate(hook)
    run.iterate(hook)
    hook.on_train_end(run)
    assert sorted(metric(client, hook.run_id, "train/loss")) == [1, 2]


def test_the_model_is_logged_unless_the_run_failed(uri, client, monkeypatch):
    logged = []
    fake = SimpleNamespace(log_module=lambda run: logged.append((run, mlflow.active_run().info.run_id)))
    monkeypatch.setitem(
        sys.modules, "sparkdl.mlflow.of_run", fake
    )  # see test_mlflow_models.py for the real one
    run, hook = FakeRun(), MLflow(tracking_uri=uri, log_model=True)
    run.train(hook, iterations=1)
    assert logged == [(run, hook.run_id)]
    with pytest.raises(ValueError, match="boom"):
        FakeRun(steps=1).train(Boom(ValueError("boom"), tracking_uri=uri, log_model=True))
    assert len(logged) == 1


def test_autolog(uri, client):
    assert summary.automatic([]) == []
    autolog(tracking_uri=uri, run_name="auto")
    try:
        (hook,) = summary.automatic([])
        assert summary.automatic([hook]) == []
        FakeRun().train(hook, iterations=1)
        assert client.get_run(hook.run_id).info.run_name == "auto"
        with pytest.raises(TypeError):
            autolog(color="blue")
    finally:
        autolog(disable=True)
    assert summary.automatic([]) == []


def test_dict_options_are_flattened():
    from sparkdl.summary.params import flatten

    options = {
        "a": {"b": {"c": 1}, "d": True},
        "e": [1, "x"],
        "f": object(),
        "g": len,
        "h": partial(int, base=2),
    }
    assert flatten(options) == {"a.b.c": 1, "a.d": True, "e": "[1, x]", "f": "object", "g": "len"} | {
        "h": "int(base=2)"
    }
    assert len(flatten({"x": "long" * 10_000, "y": list(range(10_000))})["y"]) == 500


def test_a_missing_package_is_said_at_once(monkeypatch):
    monkeypatch.setattr("sparkdl.summary.mlflow.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install mlflow"):
        MLflow()

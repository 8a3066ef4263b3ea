"""Fitted models in MLflow: a registry in SQLite, without a pickle, for pyfunc, Spark and HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyspark.ml.linalg import Vectors
from support.models import TwoTowers
from support.runs import FakeRun
from support.serving import centred, classifier, sparse_classifier, table_classifier, text_classifier
from torch import nn

import sparkdl.mlflow
from sparkdl import TorchClassifier, TorchModel
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.persistence.local import save_local
from sparkdl.serve import Predictor
from sparkdl.serve.served import ServedModel
from sparkdl.summary import MLflow

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("alembic", reason="MLflow's SQLite store needs sqlalchemy and alembic")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:mlflow.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:mlflow.*"),
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """MLflow's store and registry in a SQLite file; making its tables takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    before = mlflow.get_tracking_uri()
    uri = f"sqlite:///{folder}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    mlflow.create_experiment("models", (folder / "artifacts").as_uri())
    with pytest.MonkeyPatch.context() as environment:  # set_experiment would be for all tests that follow
        environment.setenv("MLFLOW_EXPERIMENT_NAME", "models")
        yield uri
        while mlflow.active_run():
            mlflow.end_run()
    mlflow.set_tracking_uri(before)


def files(uri: str) -> dict[str, bytes]:
    root = Path(mlflow.artifacts.download_artifacts(uri))
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.whole
def test_a_registered_model_is_loaded_by_both_flavours_and_holds_no_pickle(registry: str) -> None:
    model = classifier()
    info = sparkdl.mlflow.log_model(model, registered_model_name="digits")
    assert set(info.flavors) == {"python_function", "sparkdl"}
    found = files(info.model_uri)
    assert not [name for name in found if name.endswith((".pkl", ".pickle", ".pth"))]
    assert b"torch==" in found["requirements.txt"]
    x = np.random.default_rng(0).normal(size=(4, 64))
    expected = Predictor.of(model)(x)
    again = sparkdl.mlflow.load_model("models:/digits/1")
    np.testing.assert_allclose(Predictor.of(again)(x), expected)
    served = mlflow.pyfunc.load_model("models:/digits/1")
    frame = served.predict(pd.DataFrame({"features": x.tolist()}))
    np.testing.assert_allclose(np.stack(frame["rawPrediction"]), expected, atol=1e-5)
    assert frame["prediction"].tolist() == expected.argmax(1).tolist()
    assert served.predict(served.input_example).shape == (1, 3)


def test_answers_have_the_index_of_the_rows(tmp_path: Path) -> None:
    """By which pandas puts a column of them beside the rows."""
    model = TorchModel.from_module(nn.Identity(), example=np.zeros(2, np.float32), featuresCol="x")
    sparkdl.mlflow.save_model(model, tmp_path / "model")
    rows = pd.DataFrame({"x": [10.0, 20.0, 30.0]}, index=[2, 0, 1])
    found = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(rows)
    assert rows.assign(y=found["prediction"])["y"].tolist() == [10.0, 20.0, 30.0]


def test_the_model_of_a_table(registry: str) -> None:
    model = table_classifier()
    rows = pd.DataFrame(
        {
            "age": [30, None],
            "member": [True, None],
            "job": ["cook", None],
            "day": pd.to_datetime(["2024-01-31", None]),
        }
    )
    info = sparkdl.mlflow.log_model(model, input_example=rows.head(1))
    inputs = {spec.name: str(spec.type) for spec in info.signature.inputs}
    assert inputs["job"] == "DataType.string"
    served = mlflow.pyfunc.load_model(info.model_uri)
    expected = ServedModel(model)(pa.Table.from_pandas(rows)).to_pandas()
    for given in (rows, rows.astype({"age": "float32"})):
        pd.testing.assert_frame_equal(served.predict(given), expected)
    whole = served.predict(rows.head(1).astype({"age": "int64"}))
    assert whole["predictedLabel"].tolist() == expected["predictedLabel"].tolist()[:1]
    with pytest.raises(DataError, match="column 'age' has type string"):
        served.predict(rows.assign(age=["x", "y"]))
    made_up = sparkdl.mlflow.log_model(model)
    assert mlflow.pyfunc.load_model(made_up.model_uri).input_example["job"].tolist() == ["cook"]


def test_sparse_rows_and_rows_of_any_length(registry: str) -> None:
    from mlflow.pyfunc.scoring_server import invocations

    model = sparse_classifier()
    rows = [Vectors.sparse(1 << 18, {3: 1.0, 200_000: 2.5}), Vectors.sparse(1 << 18, {7: 0.5})]
    info = sparkdl.mlflow.log_model(model, input_example=pd.DataFrame({"words": rows}))
    served = mlflow.pyfunc.load_model(info.model_uri)
    (spec,) = info.signature.inputs
    assert set(spec.type.to_dict()["properties"]) == {"indices", "values"}
    expected = centred(Predictor.of(model)(rows))
    first = pd.DataFrame({"words": [{"indices": [3, 200_000], "values": [1.0, 2.5]}]})
    for given in (served.input_example, first):
        found = served.predict(given)
        np.testing.assert_allclose(np.stack(found["rawPrediction"]), expected[: len(found)], atol=1e-5)
    assert len(mlflow.pyfunc.load_model(sparkdl.mlflow.log_model(model).model_uri).input_example) == 1
    sent = json.dumps({"dataframe_records": [{"words": {"indices": [3, 200_000], "values": [1.0, 2.5]}}]})
    answer = invocations(sent, "application/json", served, info.signature.inputs)  # as mlflow models serve
    assert answer.status == 200
    (record,) = json.loads(answer.response)["predictions"]
    np.testing.assert_allclose(record["rawPrediction"], expected[0], atol=1e-5)

    text = text_classifier()
    info = sparkdl.mlflow.log_model(text, trust=["support.models"])
    columns = {"input_ids": [[5, 7, 2], [4]], "attention_mask": [[1, 1, 1], [1]]}
    found = mlflow.pyfunc.load_model(info.model_uri).predict(pd.DataFrame(columns))
    expected = centred(Predictor.of(text)(columns))
    np.testing.assert_allclose(np.stack(found["rawPrediction"]), expected, atol=1e-5)


def test_code_that_the_model_names_is_trusted_by_name(registry: str) -> None:
    rows = {"item": np.zeros(2, np.int64), "context": np.zeros((2, 3), np.float32)}
    model = TorchModel.from_module(
        TwoTowers(), example=rows, featuresCols=["item", "context"], outputCols=["score", "code"]
    )
    uri = sparkdl.mlflow.log_model(model).model_uri
    with pytest.raises(ConfigError, match="support.models") as caught:
        mlflow.pyfunc.load_model(uri)
    assert caught.value.code == "config-trust"
    with pytest.raises(ConfigError):
        sparkdl.mlflow.load_model(uri)
    assert sparkdl.mlflow.load_model(uri, trust=[TwoTowers]).outputNames() == ["score", "code"]
    trusted = sparkdl.mlflow.log_model(model, trust=["support.models"]).model_uri
    found = mlflow.pyfunc.load_model(trusted).predict(pd.DataFrame({"item": [1], "context": [[1.0, 2, 3]]}))
    assert found.columns.tolist() == ["score", "code"]


def test_the_hook_logs_the_module_of_a_run_without_a_pickle(registry: str) -> None:
    rows = {"item": np.zeros(2, np.int64), "context": np.ones((2, 3), np.float32)}
    run = FakeRun(module=TwoTowers(), features=rows)
    hook = MLflow(log_model=True)
    run.train(hook, iterations=1)
    (found,) = mlflow.search_logged_models(
        filter_string=f"source_run_id = '{hook.run_id}'", output_format="list"
    )
    assert not [name for name in files(found.model_uri) if name.endswith((".pkl", ".pickle", ".pth"))]
    model = sparkdl.mlflow.load_model(found.model_uri, trust=[TwoTowers])
    assert (model.featuresNames(), model.outputNames()) == (["item", "context"], ["score", "code"])
    expected = run.module(*map(torch.from_numpy, rows.values()))["score"].detach().numpy()
    np.testing.assert_allclose(Predictor.of(model)(rows)["score"], expected, rtol=1e-6)
    run.module = nn.Sequential(nn.Linear(3, 2), type("Local", (nn.Identity,), {})())
    run.data.peek = lambda: {"features_item": rows["item"], "features_context": rows["context"]}
    with pytest.warns(UserWarning, match="MLflow did not take the model: "):
        run.train(MLflow(log_model=True), iterations=1)


def test_what_is_refused(registry: str, tmp_path: Path) -> None:
    class Local(nn.Linear):
        pass

    with pytest.raises(ConfigError, match="expected a fitted model of sparkdl"):
        sparkdl.mlflow.save_model(nn.Linear(2, 2), tmp_path / "a")
    model = TorchModel.from_module(Local(2, 2), example=np.zeros((2, 2), np.float32))
    with pytest.raises(ConfigError, match="cannot be saved by import path"):
        sparkdl.mlflow.save_model(model, tmp_path / "b")
    with pytest.raises(DataError, match="input_example: column 'features' is missing"):
        sparkdl.mlflow.save_model(classifier(), tmp_path / "c", input_example=pd.DataFrame({"x": [1]}))
    save_local(classifier(), tmp_path / "d")
    with pytest.raises(ConfigError, match="exists"):
        save_local(classifier(), tmp_path / "d")


@pytest.mark.whole
@pytest.mark.jvm
def test_autologging_registering_and_spark_udf(registry: str, spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=4).tolist(), int(n), "ab"[n % 2]) for n in range(40)]
    df = spark.createDataFrame(rows, "features array<double>, n bigint, label string")
    sparkdl.mlflow.autolog()
    try:
        model = TorchClassifier(maxEpochs=1, batchSize=20, seed=1).fit(df)
    finally:
        sparkdl.mlflow.autolog(disable=True)
    (run,) = mlflow.search_runs(output_format="list", max_results=1)
    assert run.info.status == "FINISHED"
    assert run.data.params["estimator.maxEpochs"] == "1"
    assert "train/loss" in run.data.metrics
    (output,) = run.outputs.model_outputs
    uri = f"models:/{output.model_id}"
    assert len(mlflow.pyfunc.load_model(uri).input_example) == 5
    version = mlflow.register_model(uri, "fitted").version
    predict = mlflow.pyfunc.spark_udf(spark, f"models:/fitted/{version}", env_manager="local")
    found = df.withColumn("found", predict(F.col("features"))).select("n", "found.*").orderBy("n").collect()
    expected = model.transform(df).orderBy("n").collect()
    for row, wanted in zip(found, expected, strict=True):
        assert row["prediction"] == wanted["prediction"]
        assert row["predictedLabel"] == wanted["predictedLabel"]
        np.testing.assert_allclose(row["probability"], wanted["probability"].toArray(), atol=1e-5)
    # the folder that was logged is one that Spark reads; and 8-bit integers come close
    local = mlflow.artifacts.download_artifacts(uri)
    again = type(model).load(os.path.join(local, "data", "model")).setQuantize(True)
    for row, wanted in zip(again.transform(df).orderBy("n").collect(), expected, strict=True):
        np.testing.assert_allclose(row["probability"].toArray(), wanted["probability"].toArray(), atol=0.02)
        assert not np.array_equal(row["probability"], wanted["probability"])


@pytest.mark.whole
@pytest.mark.jvm
def test_spark_udf_reads_times_by_the_sessions_clock(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    zone = "spark.sql.session.timeZone"
    before = spark.conf.get(zone)
    spark.conf.set(zone, "Europe/Berlin")
    try:
        hours = [n % 24 for n in range(96)]
        rows = [
            (f"2024-01-{1 + n // 24:02d} {h:02d}:30:00", float(h in (8, 17))) for n, h in enumerate(hours)
        ]
        df = spark.createDataFrame(rows, "text string, label double")
        df = df.select(F.to_timestamp("text").alias("t"), "label").coalesce(1)
        model = TorchClassifier(featuresCols=["t"], maxEpochs=3, seed=1).fit(df)
        sparkdl.mlflow.save_model(model, tmp_path / "model")
        predict = mlflow.pyfunc.spark_udf(spark, str(tmp_path / "model"), env_manager="local")
        wanted = [row[0].toArray() for row in model.transform(df).select("probability").collect()]
        found = [row[0] for row in df.select(predict("t")["probability"]).collect()]
        assert np.ptp(np.array(wanted)[:, 1]) > 1e-3  # hours are told apart
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    finally:
        spark.conf.set(zone, before)


def test_an_empty_list_of_requirements_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[list[str]] = []
    pyfunc = import_module("mlflow.pyfunc")
    monkeypatch.setattr(pyfunc, "save_model", lambda _, **more: taken.append(more["pip_requirements"]))
    model = TorchModel.from_module(nn.Linear(2, 1), example=np.zeros((2, 2), np.float32))
    for given in ([], ["torch"], None):
        sparkdl.mlflow.save_model(model, tmp_path / "model", pip_requirements=given)
    assert taken[:2] == [[], ["torch"]]
    assert any(line.startswith("torch==") for line in taken[2])

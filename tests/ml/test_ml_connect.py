"""Transforms and persistence on Spark Connect, against one local server in a process of its own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyspark
import pytest

from sparkdl.serve import Predictor

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "format_1"
SCRIPT = '''
import json
import sys
from pathlib import Path

import numpy as np
import torch
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from torch import nn

from sparkdl._spark.session import is_connect
from sparkdl.exceptions import ConfigError
from sparkdl.ml import TorchClassificationModel, TorchModel
from sparkdl.ml.stages.inference import Inference, apply
from sparkdl.ml.stages.outputs import OutputColumn
from sparkdl.recsys import (
    count_categories,
    hash_ids,
    leave_last_out,
    summarise_numbers,
    with_buckets,
    with_category,
    with_hash,
    with_history,
    with_negatives,
)

confs = {
    "spark.ui.enabled": "false",
    "spark.python.daemon.module": "support.forking",
    "spark.sql.codegen.wholeStage": "false",  # each query runs once
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}
for name in ("spark.connect.grpc.binding.address", "spark.driver.bindAddress", "spark.driver.host"):
    confs[name] = "127.0.0.1"
spark = SparkSession.builder.remote("local[2]").config(map=confs).getOrCreate()
values = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
schema = T._parse_datatype_string("id long, array array<float>").add("vector", VectorUDT())
rows = []
for n, x in enumerate(values.tolist()):
    rows.append((n, x, Vectors.dense(x) if n % 2 else Vectors.sparse(3, range(3), x)))
df = spark.createDataFrame([*rows, (9, None, None)], schema)


class Local(nn.Module):
    """Travels by value: the server cannot import it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x)


torch.manual_seed(0)
module = Local()
expected = module(torch.from_numpy(values)).detach().numpy()
found = {"connect": is_connect(spark) and is_connect(df)}


def error(frame, column, expected):
    got = {row.id: row[column] for row in frame.collect()}
    worst = max(np.abs(np.array(got[n]) - expected[n]).max() for n in range(9))
    return [sorted(got), got.get(9, "none"), float(worst)]


outputs = (OutputColumn(column="p", kind="floats"),)
for column in ("array", "vector"):
    for mode in ("keep", "skip"):
        wanted = Inference(module=module, inputs=column, outputs=outputs, handle_invalid=mode, batch_size=2)
        found[f"{column} {mode}"] = error(apply(df, wanted), "p", expected)
try:
    apply(df, Inference(module=module, inputs="vector", outputs=outputs)).collect()
except Exception as failure:
    found["error"] = str(failure)
model = TorchClassificationModel.from_module(module, featuresCol="vector", handleInvalid="keep")
transformed = model.transform(df)
found["probability"] = error(transformed, "probability", torch.softmax(torch.from_numpy(expected), 1).numpy())
found["prediction"] = error(transformed, "prediction", expected.argmax(1))
spark.udf.register("classify", model.asUdf())
df.createOrReplaceTempView("rows")
found["sql"] = error(spark.sql("select id, classify(vector) as c from rows"), "c", expected.argmax(1))
looked = TorchModel.from_module(module, featuresCol="array", handleInvalid="skip").transform(df)
found["looked"] = error(looked, "prediction", expected)

scorer, out, times = TorchModel.from_module(module, featuresCol="array"), sys.argv[2] + "-scored", []
for _ in range(2):  # the second time everything is there
    scored = scorer.score(df.where("id < 9"), out, progress=False)
    times.append({path.name: path.stat().st_mtime_ns for path in Path(out).glob("part-*")})
found["scored"] = error(scored, "prediction", expected)
found["scored once"] = times[0] == times[1] and len(times[0]) > 0

log = [(f"u{n % 3}", n % 11, n) for n in range(30)]
events = with_history(spark.createDataFrame(log, "user string, item long, time long"), 2).cache()
found["history"] = events.schema["history"].metadata
before, last = leave_last_out(events)
hashed = with_hash(last, "id", "user", "item")
rows = with_category(hashed, "item", count_categories(before, "item"), index="n").cache()
rows = with_negatives(rows, 1, seen=before)
rows = with_buckets(rows, "bucket", summarise_numbers(events, "time", buckets=2)["time"])
found["recsys"] = [
    [r.user, r["item"], r.history, r.negatives, r.bucket, r.n > 0, r.id == hash_ids([r.user], [r[1]]).item()]
    for r in rows.orderBy("user").collect()
]

read = TorchModel.load(sys.argv[1])
read.save(sys.argv[2])
found["same"] = TorchModel.load(sys.argv[2]).uid == read.uid
found["refused"] = []
try:
    read.save(sys.argv[2])
except ConfigError as failure:
    found["refused"].append(str(failure))
changed = TorchModel.load(sys.argv[2])
with torch.no_grad():
    next(changed.module.parameters()).add_(1)
for _ in range(2):  # also where nothing is yet
    changed.write().overwrite().save(sys.argv[2] + "-fresh")
changed._resetUid("another")
changed.write().overwrite().save(sys.argv[2] + "-fresh")
again = TorchModel.load(sys.argv[2] + "-fresh")
found["replaced"] = [again.uid, torch.equal(*(next(m.module.parameters()) for m in (again, changed)))]
try:
    changed.write().overwrite().save(sys.argv[3])
except ConfigError as failure:
    found["pipeline"] = str(failure)
print("FOUND", json.dumps(found))
spark.stop()
'''

OTHERS = (
    *("connect", "error", "same", "refused", "recsys", "history", "replaced", "pipeline"),
    *("scored", "scored once"),
)
NEEDED = ("grpc", "grpc_status", "google.rpc", "zstandard")


def missing():
    def is_there(name):
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # the parent of a dotted name
            return False

    found = [name for name in NEEDED if not is_there(name)]
    jars = Path(pyspark.__file__).parent.glob("jars/spark-connect_*.jar")
    return found if any(jars) else [*found, "the server's jar, which pip's pyspark has from 4.0 on,"]


pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Where the script saves a model again."""
    return tmp_path_factory.mktemp("connect") / "copy"


@pytest.fixture(scope="module")
def found(copy):
    """What the script has found."""
    (source,) = (FORMAT_1 / "pipeline_model" / "stages").glob("1_*")
    script = copy.with_name("script.py")
    script.write_text(SCRIPT)
    # SPARK_TESTING makes PySpark choose a free port, which the client finds by itself.
    env = os.environ | {"SPARK_TESTING": "1", "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    env["PYTHONPATH"] = os.pathsep.join(map(str, Path(__file__).parents[1:3]))
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_GATEWAY_PORT"):
        env.pop(name, None)
    run = subprocess.run(
        [sys.executable, str(script), str(source), str(copy), str(FORMAT_1 / "pipeline_model")],
        env=env,
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "FOUND" in run.stdout, run.stderr[-5000:]
    return json.loads(run.stdout.split("FOUND", 1)[1])


def test_transforms_on_spark_connect(found):
    assert found["connect"] is True
    assert "column 'vector', row" in found["error"]
    assert "handleInvalid='skip'" in found["error"]
    transformed = {name: value for name, value in found.items() if name not in OTHERS}
    assert len(transformed) == 8
    for name, (ids, last, worst) in transformed.items():
        skipped = "skip" in name or name == "looked"
        assert ids == list(range(9 if skipped else 10)), name
        assert last == ("none" if skipped else None), name
        assert worst <= 1e-6, name


def test_rows_are_scored_once_on_spark_connect(found):
    ids, last, worst = found["scored"]
    assert ids == list(range(9))
    assert last == "none"
    assert worst <= 1e-6
    assert found["scored once"]


def test_models_are_saved_and_loaded_on_spark_connect(found, copy):
    assert found["same"]
    (exists,) = found["refused"]
    assert found["replaced"] == ["another", True]
    assert "holds a PipelineModel, and Spark Connect cannot delete it" in found["pipeline"]
    fresh = copy.with_name(f"{copy.name}-fresh")
    assert Predictor.load(str(fresh))(np.zeros((1, 4))).shape == (1, 2)
    assert "exists" in exists
    expected = json.loads((FORMAT_1 / "expected.json").read_text())
    served = Predictor.load(str(copy))(np.array(expected["x"]))
    np.testing.assert_allclose(served, expected["pipeline_model"], rtol=1e-5, atol=1e-6)


def test_features_of_recommenders_on_spark_connect(found):
    # Each user has had all items but one.
    assert found["history"] == {"sparkdl": {"shape": [2], "dtype": "int64"}}
    assert found["recsys"] == [
        ["u0", 5, [10, 2], [8], 2, True, True],
        ["u1", 6, [0, 3], [9], 2, True, True],
        ["u2", 7, [1, 4], [10], 2, True, True],
    ]

"""Models and features of recommenders on Spark Connect, which ``connect_fits.py`` runs beside its fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

PIPELINE = Path(__file__).parents[1] / "fixtures" / "format_1" / "pipeline_model"


class Local(nn.Module):
    """Travels by value: the server cannot import it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(x)


def transforms(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return how far predictions of tasks are from the module's, with and without nulls."""
    values = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    schema = T._parse_datatype_string("id long, array array<float>").add("vector", VectorUDT())
    rows: list[Any] = []
    for n, x in enumerate(values.tolist()):
        rows.append((n, x, Vectors.dense(x) if n % 2 else Vectors.sparse(3, range(3), x)))
    df = spark.createDataFrame([*rows, (9, None, None)], schema)

    torch.manual_seed(0)
    module = Local()
    expected = module(torch.from_numpy(values)).detach().numpy()
    found: dict[str, Any] = {"connect": is_connect(spark) and is_connect(df)}

    def error(frame: Any, column: str, expected: Any) -> list[Any]:
        got = {row.id: row[column] for row in frame.collect()}
        worst = max(np.abs(np.array(got[n]) - expected[n]).max() for n in range(9))
        return [sorted(got), got.get(9, "none"), float(worst)]

    outputs = (OutputColumn(column="p", kind="floats"),)
    for column in ("array", "vector"):
        for mode in ("keep", "skip"):
            wanted: Any = {"inputs": column, "outputs": outputs, "handle_invalid": mode, "batch_size": 2}
            found[f"{column} {mode}"] = error(apply(df, Inference(module=module, **wanted)), "p", expected)
    try:
        apply(df, Inference(module=module, inputs="vector", outputs=outputs)).collect()
    except Exception as failure:
        found["error"] = str(failure)
    model = TorchClassificationModel.from_module(module, featuresCol="vector", handleInvalid="keep")
    transformed = model.transform(df)
    odds = torch.softmax(torch.from_numpy(expected), 1).numpy()
    found["probability"] = error(transformed, "probability", odds)
    found["prediction"] = error(transformed, "prediction", expected.argmax(1))
    spark.udf.register("classify", model.asUdf())
    df.createOrReplaceTempView("rows")
    answers = spark.sql("select id, classify(vector) as c from rows")
    found["sql"] = error(answers, "c", expected.argmax(1))
    looked = TorchModel.from_module(module, featuresCol="array", handleInvalid="skip").transform(df)
    found["looked"] = error(looked, "prediction", expected)

    scorer, out, times = TorchModel.from_module(module, featuresCol="array"), folder / "scored", []
    for _ in range(2):  # the second time everything is there
        scored = scorer.score(df.where("id < 9"), str(out), progress=False)
        times.append({path.name: path.stat().st_mtime_ns for path in out.glob("part-*")})
    found["scored"] = error(scored, "prediction", expected)
    found["scored once"] = times[0] == times[1] and len(times[0]) > 0
    return found


def recsys(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return features of recommenders."""
    log = [(f"u{n % 3}", n % 11, n) for n in range(30)]
    events = with_history(spark.createDataFrame(log, "user string, item long, time long"), 2).cache()
    before, last = leave_last_out(events)
    hashed = with_hash(last, "id", "user", "item")
    rows = with_category(hashed, "item", count_categories(before, "item"), index="n").cache()
    rows = with_negatives(rows, 1, seen=before)
    rows = with_buckets(rows, "bucket", summarise_numbers(events, "time", buckets=2)["time"])
    features = [
        [
            *(r.user, r["item"], r.history, r.negatives, r.bucket, r.n > 0),
            r.id == hash_ids([r.user], [r[1]]).item(),
        ]
        for r in rows.orderBy("user").collect()
    ]
    return {"history": events.schema["history"].metadata, "features": features}


def saved(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Save models, and return what comes of it."""
    (source,) = PIPELINE.joinpath("stages").glob("1_*")
    copy, fresh = str(folder / "copy"), str(folder / "fresh")
    read = TorchModel.load(str(source))
    read.save(copy)
    found: dict[str, Any] = {"same": TorchModel.load(copy).uid == read.uid}
    try:
        read.save(copy)
    except ConfigError as failure:
        found["refused"] = str(failure)
    changed = TorchModel.load(copy)
    with torch.no_grad():
        next(changed.module.parameters()).add_(1)
    for _ in range(2):  # also where nothing is yet
        changed.write().overwrite().save(fresh)
    changed._resetUid("another")
    changed.write().overwrite().save(fresh)
    again = TorchModel.load(fresh)
    found["replaced"] = [
        again.uid,
        torch.equal(*(next(m.module.parameters()) for m in (again, changed))),
    ]
    try:
        changed.write().overwrite().save(str(PIPELINE))
    except ConfigError as failure:
        found["pipeline"] = str(failure)
    return found

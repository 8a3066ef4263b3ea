"""Sparse rows, and rows that differ in length, in requests: JSON and Arrow, over HTTP and without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyspark.ml.linalg import Vectors
from support.serving import Running, centred, save, sparse_classifier, text_classifier
from torch import nn

from sparkdl.exceptions import DataError, ModelError
from sparkdl.ml.estimators.model import TorchModel
from sparkdl.ml.stages.arrow_vectors import VECTOR
from sparkdl.mlflow.pyfunc import PyFunc
from sparkdl.serve import Predictor, passes
from sparkdl.serve.columns import moments
from sparkdl.serve.passes import cut
from sparkdl.serve.served import ServedModel
from sparkdl.serve.server import arrow_ipc, formats
from sparkdl.table.values import doubles

pytest.importorskip("uvicorn")
SIZE = 1 << 18
ROWS = [
    {"indices": [3, 200_000], "values": [1.0, 2.5]},
    {"indices": [], "values": []},
    {"indices": [0, 7, SIZE - 1], "values": [-1.0, 0.5, 4.0]},
]
TEXTS = [[5, 7, 2], [4], [9, 1], [8, 8, 8, 8, 1]]
ARROW = {"Content-Type": arrow_ipc.MEDIA_TYPE}


def logits_of_words() -> np.ndarray:
    rows = [Vectors.sparse(SIZE, row["indices"], row["values"]) for row in ROWS]
    return Predictor.of(sparse_classifier())(rows)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("words") / "model"
    save(sparse_classifier(), path)
    with Running(path, copies=1, max_rows=64) as running:
        yield running


def raw(answer: pa.Table) -> np.ndarray:
    return np.array(answer.column("rawPrediction").to_pylist())


def test_sparse_rows_over_http(words: Running) -> None:
    expected = logits_of_words()
    status, rows = words.predict({"rows": [{"words": row} for row in ROWS]})
    assert status == 200
    np.testing.assert_allclose([row["rawPrediction"] for row in rows["rows"]], centred(expected), atol=1e-5)
    status, columns = words.predict({"columns": {"words": ROWS}})
    assert [row["prediction"] for row in rows["rows"]] == columns["columns"]["prediction"]
    as_spark_writes = [{"type": 0, "size": SIZE, **row} for row in ROWS]
    pairs = pa.array(ROWS, pa.struct({"indices": pa.list_(pa.int64()), "values": pa.list_(pa.float32())}))
    for column in (pairs, pa.array(as_spark_writes, VECTOR)):
        body = arrow_ipc.write_table(pa.table({"words": column}))
        status, _, answer = words.request("POST", "/predict", body, ARROW)
        assert status == 200
        np.testing.assert_allclose(raw(pa.ipc.open_stream(answer).read_all()), centred(expected), atol=1e-5)
    status, _, text = words.request("GET", "/model")
    assert json.loads(text)["inputs"] == {"words": "sparse vector"}


def test_sparse_rows_that_are_refused(words: Running) -> None:
    for value, says in (
        ({"indices": [1, 2], "values": [1.0]}, "column 'words', row 1: 2 indices and 1 values"),
        ({"indices": [-1], "values": [1.0]}, "row 1: an index that is no integer from 0"),
        ({"indices": [1.5], "values": [1.0]}, "expected sparse vector: an object with 'indices' and"),
        ({"indices": [1], "values": ["x"]}, "column 'words'"),
        ({"indices": [1], "values": [None]}, "row 1: null"),
        ({"index": [1], "values": [1.0]}, "column 'words', row 1: "),
        (None, "column 'words', row 1: null"),
        (7, "row 1: 7 is a number where other rows have an object"),
        ({"indices": [SIZE], "values": [1.0]}, "262144 which is not in the valid range"),
    ):
        status, error = words.predict({"rows": [{"words": ROWS[0]}, {"words": value}]})
        assert (status, says in error["message"]) == (422, True), (value, error)
    assert words.predict({"rows": [{"words": {"x": {"y": 1}}}]})[0] == 422
    deep = json.dumps({"rows": [{"words": [{"a": 1}] * 500}]}).encode()
    assert words.request("POST", "/predict", deep, {"Content-Type": "application/json"})[0] == 422


def test_dense_lists_count_as_vectors_with_all_values() -> None:
    served = ServedModel(sparse_classifier(3))
    table = pa.table({"words": [[0.5, 0.0, 2.0], [1.0, 1.0, 1.0]]})
    pairs = pa.table({"words": [{"indices": [0, 2], "values": [0.5, 2.0]}, ROWS[0] | {"indices": [0, 1]}]})
    np.testing.assert_allclose(raw(served(table))[0], raw(served(pairs))[0], rtol=1e-6)
    spark = pa.array([{"type": 1, "size": None, "indices": None, "values": [0.5, 0.0, 2.0]}], VECTOR)
    np.testing.assert_allclose(raw(served(pa.table({"words": spark})))[0], raw(served(pairs))[0], rtol=1e-6)
    kept = ServedModel(sparse_classifier(3)._set(handleInvalid="keep"))
    found = kept(pa.table({"words": [None, {"indices": [1], "values": [1.0]}]}))
    assert [value is None for value in found.column("prediction").to_pylist()] == [True, False]


def test_places_that_are_there_twice_add_up_sparse_or_dense() -> None:
    twice, once = ([{"indices": [2, 0, 2], "values": [1.0, 0.5, 3.0]}], [[0.5, 0.0, 4.0]])
    sparse = ServedModel(sparse_classifier(3))
    dense = ServedModel(TorchModel.from_module(nn.Identity(), example=np.zeros((1, 3)), featuresCol="x"))
    np.testing.assert_allclose(*(raw(sparse(pa.table({"words": rows}))) for rows in (twice, once)), rtol=1e-6)
    assert dense(pa.table({"x": twice})).column("prediction").to_pylist() == once


def test_texts_of_times() -> None:
    zoned, plain = "2024-01-31T10:00:00Z", "2024-01-31"
    for texts, row in (
        ([None, zoned, "soon"], 2),
        ([plain, "soon", zoned], 1),
        ([zoned, None, plain], 2),
        ([plain, plain, zoned], 2),
    ):
        with pytest.raises(DataError, match=f"column 't', row {row}: '{texts[row]}' is no date or time"):
            moments("t", pa.array(texts))
    fine = moments("t", pa.array(["2024-01-31T10:00:00.123456789+01:00", None]))  # as Java writes it
    expected = pd.Timestamp("2024-01-31T09:00:00.123456789Z").timestamp()
    assert doubles("t", fine, "timestamp")[0] == pytest.approx(expected, abs=1e-6)
    assert doubles("t", moments("t", pa.array(["0001-01-01", None])), "date")[0] == -719_162


@pytest.mark.parametrize("rows", [1, 3])
def test_requests_of_nulls_alone_have_null_outputs(rows: int) -> None:
    """JSON tells no type then: rows of any length, and sparse ones, were of a wrong one."""
    for model in (text_classifier(), text_classifier(False), sparse_classifier()):
        names = tuple(ServedModel(model).columns)
        body = json.dumps({"columns": {name: [None] * rows for name in names}}).encode()
        table, _, _ = formats.read(formats.JSON, body, formats.Limits(names, 9, names))
        found = ServedModel(model._set(handleInvalid="keep"))(table)
        assert found.column("prediction").to_pylist() == [None] * rows
        with pytest.raises(DataError, match="row 0: null"):
            ServedModel(model._set(handleInvalid="error"))(table)


@pytest.mark.parametrize("mask", [True, False])
def test_rows_that_differ_in_length(mask: bool, tmp_path: Any) -> None:
    model = text_classifier(mask)
    columns = {"input_ids": TEXTS} | ({"attention_mask": [[1] * len(text) for text in TEXTS]} if mask else {})
    with torch.no_grad():
        one_by_one = [
            model.module(**{name: torch.tensor([rows[n]]) for name, rows in columns.items()})[0].numpy()
            for n in range(len(TEXTS))
        ]
    served = ServedModel(model)
    assert served.columns["input_ids"] == "int64[any]"
    np.testing.assert_allclose(raw(served(pa.table(columns))), centred(one_by_one), atol=1e-6)
    together = [served.prepare(pa.table({k: v[n : n + 1] for k, v in columns.items()})) for n in range(4)]
    found = np.concatenate([raw(table) for table in served.run(together)])
    np.testing.assert_allclose(found, centred(one_by_one), atol=1e-6)
    with pytest.raises(DataError, match=r"column 'input_ids' has type double|expected int64\[any\]"):
        served(pa.table({name: [1.5] for name in columns}))
    predict = Predictor.of(model)
    if mask:
        np.testing.assert_allclose(predict(columns), one_by_one, atol=1e-6)
    else:
        with pytest.raises(DataError, match="input 'input_ids': rows of 1 and of 5 values"):
            predict(columns)


def test_integers_beside_null_keep_all_bits() -> None:
    model = TorchModel.from_module(nn.Identity(), example=np.zeros(2, np.int64), featuresCol="x")
    served = ServedModel(model.setHandleInvalid("keep"))
    found = served(pa.table({"x": pa.array([2**53 + 1, None, -3])}))
    assert found.column("prediction").to_pylist() == [2**53 + 1, None, -3]
    frame = PyFunc(served).predict(pd.DataFrame({"x": pd.array([2**53 + 1, None], "Int64")}))
    assert frame["prediction"].tolist() == [2**53 + 1, pd.NA]


def test_passes_of_similar_length(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.empty(6, object)
    rows[:] = [np.zeros(n) for n in (4, 1, 4, 2, 1, 100)]
    exact = cut([rows], 10, padded=False)
    assert [sorted(found.tolist()) for found in exact.rows] == [[1, 4], [3], [0, 2], [5]]
    assert [len(found) for found in cut([rows], 4, padded=True).rows] == [4, 2]
    monkeypatch.setattr(passes, "_VALUES", 100)
    padded = cut([rows], 10, padded=True)  # one long row does not make all others as long
    assert [len(found) for found in padded.rows] == [5, 1]
    outputs = [np.array([len(rows[n]) for n in found]) for found in padded.rows]
    assert padded.joined(outputs).tolist() == [4, 1, 4, 2, 1, 100]
    with pytest.raises(ModelError, match="the module's output differs between batches"):
        padded.joined([np.zeros((5, 2)), np.zeros((1, 3))])
    assert cut([np.zeros((5, 2))], 2, padded=True).rows == [slice(0, 2), slice(2, 4), slice(4, 6)]

"""Sparse vectors: planned, converted, stored, and what a module makes of them."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.ml.linalg import Vectors
from torch import nn

from sparkdl import Column
from sparkdl.data import loose, sparse
from sparkdl.data.collate import collated, padded, padding_of
from sparkdl.data.columns import ColumnPlan
from sparkdl.data.schema import plan_pandas
from sparkdl.data.store.partition import read_rows, write_partition
from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.nn import SparseLinear, SparseMLP, export
from sparkdl.serve import Predictor

SIZE = 1 << 18
ROWS = [
    Vectors.sparse(SIZE, {3: 1.0, 200_000: 2.5}),
    Vectors.sparse(SIZE, {}),
    Vectors.sparse(SIZE, {0: -1.0, 7: 0.5, SIZE - 1: 4.0}),
]


def batch(rows: list[Any]) -> list[torch.Tensor]:
    return [padded(part) for part in sparse.of_rows(rows, "rows")]


def test_a_sparse_column_becomes_two_features() -> None:
    words = Column("words", dtype="sparse")
    indices, values = (Column("words", dtype=part) for part in ("sparse.indices", "sparse.values"))
    assert sparse.spread(words) == [indices, values]
    assert sparse.spread(["age", words]) == ["age", indices, values]
    assert sparse.spread({"age": "age", "x": words}) == {
        "age": "age",
        "x_indices": indices,
        "x_values": values,
    }
    assert sparse.spread("words") == "words"
    assert sparse.spread(None) is None
    with pytest.raises(ConfigError, match="column 'words': a sparse column has no shape"):
        Column("words", shape=(3,), dtype="sparse")
    with pytest.raises(ConfigError, match="label column 'words': only features can be sparse"):
        sparse.check_dense(words, "label")


class ByName(nn.Module):
    def forward(self, age: Any, x_indices: Any, x_values: Any) -> Any: ...


def test_a_column_is_sparse_where_the_module_takes_indices_and_values() -> None:
    words, both = Column("words", dtype="sparse"), {"words", "more"}
    for module in (SparseLinear(9, 1), SparseMLP, partial(SparseMLP, 9)):
        assert sparse.where_taken("words", module, both) == words
        assert sparse.where_taken(["words"], module, both) == [words]
        assert sparse.where_taken("age", module, both) == "age"  # no vector
        shaped = Column("words", shape=(9,))
        assert sparse.where_taken(shaped, module, both) == shaped
    assert sparse.where_taken("words", nn.Linear(9, 1), both) == "words"
    assert sparse.where_taken("words", nn.Sequential(SparseLinear(9, 1)), both) == "words"
    assert sparse.where_taken(["age", "words"], ByName(), both) == ["age", words]
    assert sparse.where_taken(["words", "age"], ByName(), both) == ["words", "age"]
    named = {"age": "more", "x": "words"}
    assert sparse.where_taken(named, ByName(), both) == {"age": "more", "x": words}


def test_wide_dense_vectors_come_with_a_hint() -> None:
    rows = np.zeros((2, 5000), np.float32)
    rows[:, :300] = 1
    with pytest.warns(UserWarning, match="column 'words': its vectors have 5,000 values, nearly all 0"):
        sparse.hint("words", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparse.hint("words", rows[:, :2000])
        sparse.hint("words", np.ones((2, 5000)))


def test_each_vector_is_passed_once() -> None:
    dense = ColumnPlan("features_0", "age")
    parts = [
        sparse.planned(ColumnPlan(f"features_{n}", "words", dtype=part))
        for n, part in enumerate(("sparse.indices", "sparse.values"), 1)
    ]
    assert sparse.passed([dense, *parts]) == ([0, 1], (0, 1, 1))
    assert sparse.passed([dense, dense]) == ([0, 1], (0, 1))
    assert [(plan.dtype, plan.ragged, plan.fill) for plan in parts] == [
        ("int32", True, 0),
        ("float32", True, 0),
    ]


def test_rows_of_any_kind() -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    matrix = scipy_sparse.csr_matrix(np.array([[0, 2.0, 0], [1.0, 0, 3.0]]))
    expected = [([1], [2.0]), ([0, 2], [1.0, 3.0])]
    for rows in (
        matrix,
        [matrix.getrow(0), matrix.getrow(1)],
        [Vectors.sparse(3, {1: 2.0}), Vectors.sparse(3, {0: 1.0, 2: 3.0})],
        [(np.array([1]), np.array([2.0])), (np.array([0, 2]), np.array([1.0, 3.0]))],
    ):
        found = sparse.of_rows(rows, "rows")
        assert [(i.tolist(), v.tolist()) for i, v in zip(*found, strict=True)] == expected
        assert {a.dtype.name for a in found[0]} | {a.dtype.name for a in found[1]} == {"int32", "float32"}
    assert sparse.of_row(Vectors.dense(1, 0), "row")[0].tolist() == [0, 1]
    with pytest.raises(DataError, match="x, row 1: found 'a'; expected an ML vector"):
        sparse.of_rows([Vectors.dense(1), "a"], "x")


def test_a_finite_value_that_would_be_infinite_is_refused() -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    for value in (
        Vectors.sparse(3, {1: 1e39}),
        Vectors.dense(0, 1e39),
        (np.array([1]), np.array([1e39])),
        scipy_sparse.csr_matrix(np.array([[0, 1e39]])),
    ):
        with pytest.raises(DataError, match=r"x, row 1: 1e\+39 does not fit float32"):
            sparse.of_rows([Vectors.sparse(3, {0: np.inf}), value], "x")


@pytest.mark.parametrize("index", [2**32 + 3, 2**31, -1])
def test_an_index_that_would_become_another_is_refused(index: int) -> None:
    """As int32, 2**32 + 3 is 3, a place of the vector like any other."""
    pair = (np.array([5, index]), np.array([1.0, 2.0]))
    with pytest.raises(DataError, match=f"x, row 1: index {index}; expected one from 0 to 2147483647"):
        sparse.of_rows([Vectors.sparse(9, {3: 1.0}), pair], "x")
    if index > 0:
        row = pytest.importorskip("scipy.sparse").csr_matrix((pair[1], ([0, 0], pair[0])), shape=(1, 2**33))
        with pytest.raises(DataError, match=f"row: index {index}; "):
            sparse.of_row(row, "row")


def test_the_store_has_eight_bytes_per_value(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    df = pd.DataFrame({"words": ROWS, "y": [1.0, 0.0, 1.0]})
    plan, arrays = plan_pandas(df, Column("words", dtype="sparse"), "y", None)
    token = write_partition("s", 0, "e", plan.columns, [(np.arange(3), arrays)])
    indices_and_values, ends, position, label = 5 * 8, 2 * 8, 8, 4
    assert token.nbytes == indices_and_values + 3 * (ends + position + label)
    pad = padding_of(plan)
    assert pad is not None
    read = read_rows(token, np.array([2, 0, 1]))
    (indices, values), _ = collated(read, plan.features, plan.label, pad)
    assert (indices.dtype, values.dtype) == (torch.int32, torch.float32)
    dense = torch.zeros(3, SIZE).scatter_add_(1, indices.long(), values)
    assert torch.equal(dense, torch.tensor(np.stack([ROWS[n].toArray() for n in (2, 0, 1)])).float())


def test_the_layer_computes_what_a_dense_one_does() -> None:
    torch.manual_seed(0)
    layer, linear = SparseLinear(SIZE, 4), nn.Linear(SIZE, 4)
    with torch.no_grad():
        linear.weight.copy_(layer.table.weight.T)
        assert linear.bias is not None
        linear.bias.copy_(layer.bias)
    dense = torch.tensor(np.stack([row.toArray() for row in ROWS])).float()
    found, expected = layer(*batch(ROWS)), linear(dense)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    for output in (found, expected):
        output.square().sum().backward()
    gradient = layer.table.weight.grad
    assert gradient.is_sparse
    assert sorted(gradient.coalesce().indices()[0].tolist()) == [0, 3, 7, 200_000, SIZE - 1]
    torch.testing.assert_close(gradient.to_dense().T, linear.weight.grad, rtol=1e-6, atol=1e-7)
    only_empty = layer(*batch([ROWS[1]]))
    torch.testing.assert_close(only_empty, layer.bias[None])


def test_what_is_no_pair_is_refused_with_advice() -> None:
    with pytest.raises(
        ModelError, match=r"takes indices and values .* values: none. A column .* dtype='sparse'"
    ):
        SparseMLP(9, 2)(torch.ones(3, 9))
    with pytest.raises(ConfigError, match="SparseMLP: hidden="):
        SparseMLP(9, 2, hidden=(0,))


def test_export_and_serving_take_sparse_rows(tmp_path: Any) -> None:
    torch.manual_seed(0)
    module = SparseMLP(SIZE, 2, hidden=(8,)).eval()
    inputs = batch([ROWS[0], ROWS[2]])
    export.to_torch_export(module, tuple(inputs), tmp_path / "model.pt2")
    read = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(read(*inputs), module(*inputs))
    expected = module(*batch(ROWS)).detach().numpy()
    np.testing.assert_allclose(Predictor(module).predict(ROWS), expected, rtol=1e-6)
    scipy_sparse = pytest.importorskip("scipy.sparse")
    matrix = scipy_sparse.vstack(
        [scipy_sparse.csr_matrix(([*r.values], ([0] * len(r.indices), r.indices)), (1, SIZE)) for r in ROWS]
    )
    np.testing.assert_allclose(Predictor(module, batch_size=2).predict(matrix.tocsr()), expected, rtol=1e-6)


@pytest.mark.parametrize(("rows", "row"), [([None, Vectors.sparse(3, {1: 2.0})], 0), ([None], 0)])
def test_a_null_among_vectors_is_named(rows: list[Any], row: int) -> None:
    with pytest.raises(DataError, match=rf"input 0, row {row}: null"):
        loose.spread((rows,), {})
    with pytest.raises(DataError, match=r"input 'x', row 1: null"):
        loose.spread((), {"x": [Vectors.sparse(3, {1: 2.0}), None]})

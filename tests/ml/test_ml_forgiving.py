"""Rows that cannot be scored, beside those that can: onError="column"."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from support.ways import Shipped
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.ml import TorchModel
from sparkdl.ml.stages.forgiving import ForgivingScorer
from sparkdl.ml.stages.inference import inference_of
from sparkdl.ml.stages.sql import scorer_of

ROWS = 40


class Lookup(nn.Module):
    """An embedding of ten rows, on which other ids fail."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.arange(20.0).reshape(10, 2))

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        return found


def scorer(handle: str = "error") -> ForgivingScorer:
    """Return what the tasks of a transform of ids run."""
    model = TorchModel.from_module(Lookup(), example=np.zeros(2, np.int64), featuresCol="ids")
    shipped: Any = Shipped(model.module)
    made = scorer_of(inference_of(model.setHandleInvalid(handle)), shipped)
    return ForgivingScorer(type(made)(**{n: getattr(made, n) for n in made.__slots__} | {"names": ("o0",)}))


def answer(ids: Sequence[Any], size: int, kind: pa.DataType, **options: Any) -> tuple[list[Any], list[Any]]:
    """Return outputs and reasons of rows that come in batches of a size."""
    batches = (pa.array(ids[start : start + size], kind) for start in range(0, len(ids), size))
    rows = [row for part in scorer(**options)(batches) for row in part.to_pylist()]
    return [row["o0"] for row in rows], [row["error"] for row in rows]


@pytest.mark.parametrize("size", [1, 7, ROWS])
def test_the_rows_at_fault_have_reasons_and_the_others_their_outputs(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    ids: list[Any] = [n % 10 for n in range(ROWS)]
    bad: dict[int, tuple[Any, str]] = {
        3: (None, "'ids', row 3 of partition 0: null"),
        4: (2.5, "'ids', row 4 of partition 0: 2.5 does not fit int64"),
        17: (99.0, "expected integers from 0 to 9"),
        39: (-1.0, "expected integers from 0 to 9"),
    }
    for row, (value, _) in bad.items():
        ids[row] = value
    with caplog.at_level(logging.WARNING, "sparkdl"):
        outputs, reasons = answer(ids, size, pa.float64())
    for row in range(ROWS):
        expected = None if row in bad else [2.0 * (row % 10), 2.0 * (row % 10) + 1]
        assert outputs[row] == expected, row
        assert (reasons[row] is None) == (row not in bad), row
        if row in bad:
            assert bad[row][1] in reasons[row]
    assert "4 of 40 rows could not be scored" in caplog.text


def test_null_that_is_to_be_kept_is_no_error() -> None:
    outputs, reasons = answer([1, None, 50], 3, pa.int64(), handle="keep")
    assert outputs == [[2.0, 3.0], None, None]
    assert reasons[:2] == [None, None]
    assert "from 0 to 9" in reasons[2]


def test_a_module_that_fails_on_all_rows_is_an_error() -> None:
    with pytest.raises(ModelError, match="from 0 to 9"):
        answer([50, 60, 70, 80], 4, pa.int64())
    assert answer([5, 60, 70, 80], 4, pa.int64())[0] == [[10.0, 11.0], None, None, None]


@pytest.mark.jvm
def test_a_transform_goes_on_beside_bad_rows(spark: Any) -> None:
    model = TorchModel.from_module(Lookup(), example=np.zeros(2, np.int64), featuresCol="ids")
    df = spark.range(30).selectExpr("id", "if(id = 7, null, if(id = 20, 99, id % 10)) as ids")
    found = model.setOnError("column").transform(df)
    assert found.columns == ["id", "ids", "prediction", "error"]
    rows = found.orderBy("id").collect()
    assert (
        [row.id for row in rows if row.error is not None]
        == [7, 20]
        == [r.id for r in rows if not r.prediction]
    )
    assert [row.prediction[0] for row in rows if row.prediction] == [
        2.0 * (n % 10) for n in range(30) if n not in (7, 20)
    ]
    with pytest.raises(ConfigError, match="expected different names"):
        model.setErrorCol("prediction").transform(df)

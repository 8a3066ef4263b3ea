"""The model of a table as ONNX: one input per column, null among them, and the same outputs."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.exceptions import DataError
from sparkdl.nn.models.tabular import Tabular
from sparkdl.serve import Predictor
from sparkdl.table.calendar import VALUES
from sparkdl.table.encoding import Category, Number, TableEncoding
from sparkdl.table.onnx import feeds

NUMBERS = (
    Number("n", "number", 3.0, 2.0, missing=True, knots=(-1.0, 0.0, 1.0)),
    Number("b", "boolean", 0.5, 0.5),
    Number("d", "date", 19_000.0, 4_000.0),
    Number("t", "timestamp", 1.6e9, 1e8),
)
PARTS = (
    *(Category("d", "date", VALUES[part], part) for part in ("weekday", "month")),
    *(Category("t", "timestamp", VALUES[part], part) for part in ("weekday", "month", "hour")),
)
ENCODING = TableEncoding(NUMBERS, (Category("s", "string", ("red", "blue")), *PARTS), {}, 100)


def table(rows: int = 90) -> dict[str, Any]:
    day = [date(1960, 1, 30) + timedelta(days=431 * n) for n in range(rows)]
    moment = [datetime(1969, 12, 1, tzinfo=UTC) + timedelta(hours=7901 * n) for n in range(rows)]
    return {
        "n": [None if n % 5 == 0 else 0.1 * n for n in range(rows)],
        "b": [None if n % 7 == 0 else n % 2 == 0 for n in range(rows)],
        "d": [None if n % 11 == 0 else day[n] for n in range(rows)],
        "t": [None if n % 13 == 0 else moment[n] for n in range(rows)],
        "s": [[None, "red", "blue", "never seen"][n % 4] for n in range(rows)],
    }


def test_a_table_becomes_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    module = Tabular(ENCODING.cardinalities, ENCODING.width, 2, ENCODING.knots, hidden=(8,))
    predictor = Predictor(module, encoding=ENCODING)
    path = tmp_path / "model.onnx"
    predictor.to_onnx(path, table())  # compares all rows
    session = onnxruntime.InferenceSession(str(path))
    assert [entry.name for entry in session.get_inputs()] == ["n", "b", "d", "t", "s"]
    row = {name: np.array([1.0]) for name in "nbdt"} | {"s": np.array([""], object)}
    (found,) = session.run(None, row)
    expected = predictor(n=[1.0], b=[True], d=[1.0], t=[1.0], s=[None])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "text", "message"),
    [
        (("red",), "", "column 's', row 1: an empty text, which ONNX takes for null; leave"),
        (("red", ""), None, "column 's', row 1: null, which ONNX takes for a value, the empty text; leave"),
    ],
)
def test_texts_that_cannot_be_told_from_null_are_named(values: Any, text: Any, message: str) -> None:
    encoding = TableEncoding((), (Category("s", "string", values),), {}, 100)
    assert feeds(encoding, {"s": pa.array(["red", *({"", None} - {text})])})["s"].tolist() == ["red", ""]
    with pytest.raises(DataError, match=message) as caught:
        feeds(encoding, {"s": pa.array(["red", text])})
    assert caught.value.code == "data-value"

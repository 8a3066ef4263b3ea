"""Prediction as a Spark job: the module's output in the order of the source."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from support.shipping import Classifier, fit_spec, ship
from torch import nn

from sparkdl import Dataset
from sparkdl.exceptions import ModelError
from sparkdl.train.passes.predict import assemble, flatten, run_prediction
from sparkdl.wire import frame

pytestmark = pytest.mark.jvm  # DataFrames


class Several(nn.Module):
    """Returns a dict with a tuple in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Classifier()

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.inner(x)
        return {"logits": logits, "more": (logits.argmax(1), None, x.double().sum(1))}


def test_structure_and_order(spark: Any) -> None:
    df = spark.range(0, 120, numPartitions=5).filter("id < 30 or id > 55")
    df = df.select(F.array(*[F.sin(F.col("id") * (i + 1)).cast("float") for i in range(4)]).alias("x"), "id")
    df = df.orderBy(F.col("id") % 17, "id")
    x = torch.tensor([row.x for row in df.collect()], dtype=torch.float32)
    module = Several()
    found = []
    for partitions in (3, "input"):
        with (
            Dataset.from_dataframe(df, features="x", label="id", num_partitions=partitions) as data,
            ship(spark, fit_spec(module, data)) as to,
        ):
            if partitions == 3:
                data.store()
                shutil.rmtree(data.store().partitions[2].folder)
            found.append(run_prediction(to.access, to.fit, to.sent, data, to.weights, "a test", 8))
    module.eval()
    with torch.no_grad():
        expected = module(x)
    for output in found:
        assert list(output) == ["logits", "more"]
        assert output["more"][1] is None
        assert [output["logits"].dtype, output["more"][0].dtype, output["more"][2].dtype] == [
            "f4",
            "i8",
            "f8",
        ]
        np.testing.assert_allclose(output["logits"], expected["logits"], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(output["more"][0], expected["more"][0])
        np.testing.assert_allclose(output["more"][2], expected["more"][2])


class Mean(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean()


def test_an_output_without_rows_is_refused(spark: Any) -> None:
    x = np.ones((10, 4), np.float32)
    with (
        Dataset.from_numpy(x, spark=spark, num_partitions=1) as data,
        ship(spark, fit_spec(Mean(4, 1), data)) as to,
        pytest.raises(
            ModelError, match=r"partition 0, rows 0 to 9: the output float32\[\] has float32\[\] in it"
        ),
    ):
        run_prediction(to.access, to.fit, to.sent, data, to.weights, "a test")


# -- without Spark ------------------------------------------------------------------------------


def outputs(output: Any, positions: list[int]) -> Any:
    structure, arrays = flatten(output, len(positions))
    arrays["positions"] = np.array(positions)
    return frame.unpack(frame.join(frame.pack({"structure": structure}, arrays)))


@pytest.mark.parametrize(
    "tree",
    [
        torch.arange(3),
        (torch.arange(3), torch.rand(3, 2)),
        {"a": torch.rand(3, 1, 4), "b": (torch.tensor([True, False, True]), None)},
        {"empty": torch.empty(3, 0)},
        (),
    ],
    ids=["tensor", "tuple", "dict", "empty rows", "nothing"],
)
def test_trees_survive(tree: Any) -> None:
    def same(found: Any, expected: Any) -> None:
        assert type(found) is (np.ndarray if isinstance(expected, torch.Tensor) else type(expected))
        if isinstance(expected, torch.Tensor):
            np.testing.assert_array_equal(found, expected.numpy())
            assert found.dtype == expected.numpy().dtype
        elif expected is not None:
            keys = expected if isinstance(expected, dict) else range(len(expected))
            assert len(found) == len(expected)
            for key in keys:
                same(found[key], expected[key])

    same(assemble([outputs(tree, [4, 5, 6])]), tree)


def test_rows_are_ordered_by_position() -> None:
    frames = [
        outputs(torch.tensor([10, 40]), [1, 4 << 33]),
        outputs(torch.tensor([30]), [3]),
        outputs(torch.tensor([20, 0]), [2, 0]),
    ]
    assert assemble(frames).tolist() == [0, 10, 20, 30, 40]
    assert frames == []


@pytest.mark.parametrize(
    "tree", [3.0, torch.tensor(1.0), torch.rand(2), {1: torch.rand(3)}, (torch.rand(3), "x")]
)
def test_what_cannot_be_predicted(tree: Any) -> None:
    with pytest.raises(
        ModelError, match="prediction needs tensors whose first dimension counts the batch's 3 rows"
    ):
        flatten(tree, 3)


@pytest.mark.parametrize("second", [torch.rand(1, 3), torch.rand(1, 2).double(), (torch.rand(1, 2),)])
def test_batches_that_differ(second: Any) -> None:
    with pytest.raises(ModelError, match="the module's output differs between batches"):
        assemble([outputs(torch.rand(1, 2), [0]), outputs(second, [1])])

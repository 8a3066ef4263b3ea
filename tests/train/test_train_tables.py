"""A DataFrame straight into ``fit``, with the validation rows split off or given."""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.data import digits
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Column, Dataset, Trainer, seeding
from sparkdl.data.streams import RowShare
from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.train import Checkpoint, Elastic, Hook, MaxEpoch


def table(rows: int = 200) -> pd.DataFrame:
    x, y = digits(rows)
    return pd.DataFrame({"x": list(x), "y": y, "w": np.ones(rows, np.float32), "s": ["a"] * rows})


def trainer(**options: Any) -> Trainer:
    torch.manual_seed(0)
    options = {"batch_size": 40, "end_when": MaxEpoch(2), "progress": False} | options
    sgd = partial(torch.optim.SGD, lr=0.1)
    return Trainer(nn.Linear(64, 10), loss=nn.CrossEntropyLoss(reduction="none"), optimizer=sgd, **options)


def weights(result: Any) -> Any:
    return [p.detach().numpy() for p in result.module.parameters()]


def same(first: Any, second: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(weights(first), weights(second), strict=True))


def test_a_table_is_trained_like_its_dataset(spark: Any) -> None:
    df, held = table(), table(80)
    columns: dict[str, Any] = {"features": Column("x", dtype="float32"), "label": "y", "weight": "w"}
    with (
        Dataset.from_dataframe(df, **columns) as data,
        Dataset.from_dataframe(held, **columns) as validation,
    ):
        expected = trainer().fit(data, validation)
        found = trainer().fit(df, held, **columns)
        mixed = trainer().fit(df, {"tables": held, "set": validation}, **columns)
    assert same(expected, found)
    assert found.scores == expected.scores
    assert mixed.scores["tables/loss"] == mixed.scores["set/loss"] == found.scores["val/loss"]


def test_a_share_of_the_rows_is_kept_for_validation(spark: Any) -> None:
    df = table()
    metric = {"accuracy": MulticlassAccuracy(10)}
    found = trainer(metrics=metric).fit(df, validation=0.25, features="x", label="y")
    again = trainer(metrics=metric).fit(df, validation=0.25, features="x", label="y")
    rows = np.random.default_rng(seeding.derive(seeding.ORDER, 0)).permutation(200)
    train, held = df.drop(df.index[rows[:50]]), df.loc[sorted(df.index[rows[:50]])]
    assert (len(train), len(held)) == (150, 50)
    assert sorted([*train.index, *held.index]) == list(range(200))
    by_hand = trainer(metrics=metric).fit(train, held, features="x", label="y")
    assert same(found, again)
    assert same(found, by_hand)
    assert found.scores == again.scores == by_hand.scores
    assert found.history[-1]["samples"] + found.history[-2]["samples"] <= 80
    other = trainer(seed=1).fit(df, validation=0.25, features="x", label="y")
    assert other.scores["val/loss"] != found.scores["val/loss"]


def test_mistakes_are_told_before_work(spark: Any) -> None:
    df = table(40)
    with pytest.raises(ConfigError, match=r"features=None: a DataFrame needs.*fit\(df, features="):
        trainer().fit(df)
    with pytest.raises(ConfigError, match=r"features=None"):
        trainer().fit(df, validation=0.1)
    for wrong in (0, 1, 1.5, -0.1, True, float("nan")):
        with pytest.raises(ConfigError, match=r"validation=.*above 0 and below 1"):
            trainer().fit(df, features="x", label="y", validation=wrong)
    with pytest.raises(DataError, match="label column 'z' is not in the DataFrame"):
        trainer().fit(df, features="x", label="z", validation=0.1)
    with pytest.raises(DataError, match="column 's', row 0: 'a' is not a number"):
        trainer().fit(df, features=["x", "s"], label="y")
    with pytest.raises(DataError, match=r"validation=0.001: no row is left for validation"):
        trainer().fit(df, features="x", label="y", validation=0.001)
    with pytest.raises(ConfigError, match=r"data: found a builtins.list.*fit takes a DataFrame"):
        trainer().fit([1, 2])
    with (
        Dataset.from_numpy(np.ones((4, 64), np.float32), np.zeros(4, np.int64), spark=spark) as data,
        pytest.raises(ConfigError, match=r"label=\.\.\.: a Dataset knows its columns"),
    ):
        trainer().fit(data, label="y")
    assert not getattr(spark.sparkContext, "jobs", [])  # a JVM has no such list


@pytest.mark.jvm
def test_rows_of_spark(spark: Any) -> None:
    df = spark.createDataFrame(table()[["x", "y"]].assign(x=lambda t: t.x.map(list)))
    columns: dict[str, Any] = {"features": "x", "label": "y"}
    found = trainer().fit(df.repartition(3), validation=0.2, **columns)
    again = trainer().fit(df.repartition(5), validation=0.2, **columns)
    assert found.scores["val/loss"] == pytest.approx(again.scores["val/loss"], abs=0.05)
    samples = sum(row["samples"] for row in found.history if row["epoch"] == 1)
    assert 120 < samples < 190
    assert samples == sum(row["samples"] for row in again.history if row["epoch"] == 1)
    with pytest.raises(DataError, match="features column 'z' is not in the DataFrame"):
        trainer().fit(df, features="z", validation=0.2)


def test_a_table_is_evaluated_and_predicted_like_its_dataset(spark: Any) -> None:
    df, columns = table(), {"features": Column("x", dtype="float32"), "label": "y"}
    found = trainer()
    with pytest.raises(ConfigError, match=r"features=None: a DataFrame needs.*evaluate\(df, features="):
        found.evaluate(df)
    found.fit(df, **columns)
    with Dataset.from_dataframe(df, **columns) as data:
        expected, outputs = found.evaluate(data), found.predict(data)
        with pytest.raises(ConfigError, match=r"features=\.\.\.: a Dataset knows its columns"):
            found.predict(data, features="x")
    assert found.evaluate(df) == found.evaluate(df, **columns) == expected
    assert np.array_equal(found.predict(df), outputs)  # the columns of the fit, without the label
    assert np.array_equal(found.predict(df[["x"]], features=columns["features"]), outputs)
    with pytest.raises(ConfigError, match="data: found a builtins.str.*predict takes a DataFrame as well"):
        found.predict("rows")


def test_a_frozen_module_is_evaluated_and_not_trained(spark: Any) -> None:
    df, columns = table(80), {"features": Column("x", dtype="float32"), "label": "y"}
    expected = trainer().evaluate(df, **columns)
    frozen = trainer()
    frozen.module.requires_grad_(False)
    module = frozen.module
    options: dict[str, Any] = {"batch_size": 40, "end_when": MaxEpoch(1), "progress": False}
    adam = {"weight": torch.optim.Adam, "bias": torch.optim.SGD}
    loss = nn.CrossEntropyLoss(reduction="none")
    found = Trainer(module, loss=loss, optimizer=adam, **options)
    assert found.evaluate(df, **columns) == expected
    assert found.predict(df, features=columns["features"]).shape == (80, 10)
    with pytest.raises(ModelError, match="Linear has no parameter with requires_grad=True: there is nothing"):
        found.fit(df, **columns)
    assert trainer().evaluate(df, module=module, **columns) == expected
    assert not any(parameter.requires_grad for parameter in module.parameters())


class Half(nn.Linear):
    """Has weights that cannot be trained."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.bfloat16()).float()


@pytest.mark.parametrize(
    "module",
    [nn.Identity(), Half(64, 10).bfloat16().requires_grad_(False), nn.BatchNorm1d(64, affine=False)],
    ids=lambda module: type(module).__name__,
)
def test_a_module_of_which_nothing_can_be_trained_is_evaluated(spark: Any, module: nn.Module) -> None:
    x, y = digits(80)
    found = Trainer(module, loss=nn.CrossEntropyLoss(reduction="none"), optimizer=torch.optim.Adam)
    with Dataset.from_numpy(x, y, spark=spark, num_partitions=2) as data, torch.no_grad():
        output = module.eval()(torch.from_numpy(x))
        expected = nn.functional.cross_entropy(output, torch.from_numpy(y))
        assert found.evaluate(data)["loss"] == pytest.approx(expected.item(), rel=1e-5)
        assert trainer().evaluate(data, module=module) == found.evaluate(data)
        np.testing.assert_allclose(found.predict(data), output.numpy(), rtol=1e-5)


def test_a_share_of_a_dataset_is_held_out_as_by_hand(spark: Any) -> None:
    """One partition has the rows of a share in their order, and the bits are those of these rows alone."""
    x, y = digits(203)
    drawn = RowShare(0.0, 0.25, False, seeding.derive(seeding.ORDER, 3, 0) % (1 << 62)).rows(203)
    others = np.setdiff1d(np.arange(203), drawn)
    with Dataset.from_numpy(x, y, spark=spark, num_partitions=1) as data:
        found = trainer(seed=3, shuffle=False).fit(data, validation=0.25)
        again = trainer(seed=3, shuffle=False).fit(data, validation=0.25)
        assert len(data) == 203
    with (
        Dataset.from_numpy(x[others], y[others], spark=spark, num_partitions=1) as train,
        Dataset.from_numpy(x[drawn], y[drawn], spark=spark, num_partitions=1) as held,
    ):
        expected = trainer(seed=3, shuffle=False).fit(train, held)
    assert len(drawn) == 51
    assert same(found, expected)
    assert same(found, again)
    assert found.scores == expected.scores


def test_a_run_resumes_with_its_share_of_a_dataset(spark: Any, tmp_path: Any) -> None:
    x, y = digits(120)
    with Dataset.from_numpy(x, y, spark=spark, num_partitions=2) as data:
        expected = trainer().fit(data, validation=0.25)
    hooks = [Checkpoint(str(tmp_path / "run"))]
    with Dataset.from_numpy(x, y, spark=spark, num_partitions=2) as data:
        trainer(end_when=MaxEpoch(1), hooks=hooks).fit(data, validation=0.25)
        found = trainer(hooks=hooks).fit(data, validation=0.25, resume=True)
        with pytest.raises(ConfigError, match="rows is 120 now and was 90"):
            trainer(hooks=hooks, end_when=MaxEpoch(3)).fit(data, resume=True)
    assert same(found, expected)
    assert found.scores == expected.scores


def test_a_share_of_a_dataset_needs_rows(spark: Any) -> None:
    x, y = digits(20)
    with Dataset.from_numpy(x, y, spark=spark, num_partitions=5) as data:
        with pytest.raises(DataError, match="from 0 to 0.1 is taken .* the largest has 4 "):
            trainer().fit(data, validation=0.1)
        with pytest.raises(ConfigError, match="validation=2: expected the share"):
            trainer().fit(data, validation=2)
    with (
        Dataset.from_numpy(x, y, spark=spark) as data,
        pytest.raises(ConfigError, match=r"elastic: the Dataset was made with num_partitions=\d"),
    ):
        trainer(elastic=Elastic()).fit(data, validation=0.5)


def test_a_share_whose_files_are_lost_is_made_again(spark: Any) -> None:
    _lose_files(spark)


@pytest.mark.jvm
def test_a_share_whose_files_are_lost_is_made_again_by_spark(spark: Any) -> None:
    _lose_files(spark)


def _lose_files(spark: Any) -> None:
    x, y = digits(120)

    class Loses(Hook):
        def on_iteration_end(self, run: Any) -> None:
            if run.state.iteration in (2, 4):
                for token in data.store().partitions:
                    shutil.rmtree(token.folder)

    with Dataset.from_numpy(x, y, spark=spark, num_partitions=2) as data:
        expected = trainer().fit(data, validation=0.25)
        found = trainer(hooks=[Loses()]).fit(data, validation=0.25)
    assert same(found, expected)
    assert found.scores == expected.scores


class Minus(nn.Module):
    """Two inputs whose order matters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.scale * left - right


def test_columns_with_the_names_of_other_arguments_are_refused(spark: Any) -> None:
    df = pd.DataFrame({"left": [1.0, 2.0], "right": [3.0, 5.0], "y": [0.0, 0.0]})
    options: dict[str, Any] = {"loss": nn.MSELoss(), "optimizer": partial(torch.optim.SGD, lr=0.0)}
    by_place = Trainer(Minus(), progress=False, **options)
    refused = pytest.raises(ConfigError, match=r"\['right', 'left'\] are given by position to Minus.forward")
    with refused:
        by_place.fit(df, features=["right", "left"], label="y")
    with Dataset.from_dataframe(df, features=["right", "left"], label="y") as data, refused:
        by_place.fit(data)
    losses = [
        by_place.fit(df, features=features, label="y").history[0]["loss"]
        for features in (
            ["left", "right"],
            {"right": "right", "left": "left"},
            {"left": "right", "right": "left"},
        )
    ]
    assert losses == [6.5, 6.5, 6.5], "of differences of -2 and -3, and of 2 and 3"
    found = by_place.predict(df.rename(columns={"left": "a", "right": "b"}), features=["b", "a"])
    assert found.tolist() == [2.0, 3.0]

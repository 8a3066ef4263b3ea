"""Hashed words, up to 2^18 features, as sparse vectors: fitted, saved, applied in every way."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark.ml.feature import HashingTF, Tokenizer
from pyspark.sql import functions as F
from support.serving import centred
from torch import nn

from sparkdl import Column, Dataset, TorchClassifier, TorchRegressor, Trainer
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml import TorchClassificationModel
from sparkdl.nn import SparseLinear, SparseMLP
from sparkdl.serve import Predictor
from sparkdl.serve.served import ServedModel
from sparkdl.train import MaxIteration

SIZE = 1 << 18
FEW = 1 << 13
"""Features that are still taken for sparse."""
STEPS = 3


class Weighted(nn.Module):
    """Arguments with names of their own."""

    def __init__(self):
        super().__init__()
        self.words = SparseLinear(SIZE, 2)
        self.length = nn.Linear(1, 2)

    def forward(self, words_indices, words_values, length):
        return self.words(words_indices, words_values) + self.length(length[:, None])


@pytest.fixture
def words(spark):
    """Lines of two pages of this project's own, as words that are counted."""
    pages = Path(__file__).parents[2]
    rows = [
        (line, float(label))
        for label, page in enumerate((pages / "LICENSE", pages / "docs/design/decisions.md"))
        for line in page.read_text(encoding="utf-8").splitlines()[:24]
        if line.strip()
    ]
    return Tokenizer(inputCol="text", outputCol="words").transform(
        spark.createDataFrame(rows, "text string, label double")
    )


def hashed(words, size):
    return HashingTF(inputCol="words", outputCol="features", numFeatures=size).transform(words)


@pytest.fixture
def texts(words):
    return hashed(words, SIZE)


def test_training_equals_that_of_dense_rows_in_plain_torch(texts, spark, tmp_path):
    torch.manual_seed(0)
    start = SparseLinear(SIZE, 2)
    rows = texts.select("features", "label").collect()
    dense = torch.tensor(np.stack([row.features.toArray() for row in rows])).float()
    labels = torch.tensor([int(row.label) for row in rows])
    linear = nn.Linear(SIZE, 2)
    with torch.no_grad():
        linear.weight.copy_(start.table.weight.T)
        linear.bias.copy_(start.bias)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.5)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(linear(dense), labels).backward()
        optimizer.step()

    estimator = TorchClassifier(
        module=start,
        optimizer=partial(torch.optim.SGD, lr=0.5),
        batchSize=len(rows),
        maxIter=STEPS,
    )
    model = estimator.fit(texts)
    assert model.getInputTypes() == ["sparse"]
    assert not estimator.isSet(estimator.inputTypes)
    torch.testing.assert_close(model.module.table.weight.T, linear.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.module.bias, linear.bias, rtol=1e-5, atol=1e-6)

    model.save(str(tmp_path / "model"))
    read = TorchClassificationModel.load(str(tmp_path / "model"))
    expected = linear(dense).detach().numpy()
    found = {row.text: row for row in read.transform(texts).collect()}
    words = [row.text for row in texts.select("text").collect()]
    np.testing.assert_allclose(
        [found[text].rawPrediction.toArray() for text in words], centred(expected), rtol=1e-4, atol=1e-5
    )
    raw = read.predictRaw(rows[5].features).toArray()
    np.testing.assert_allclose(raw, centred(expected[5]), rtol=1e-4, atol=1e-5)
    served = Predictor.load(str(tmp_path / "model"))
    np.testing.assert_allclose(served([row.features for row in rows]), expected, rtol=1e-4, atol=1e-5)
    assert read.evaluate(texts)["loss"] == pytest.approx(
        nn.functional.cross_entropy(torch.tensor(expected), labels).item(), rel=1e-4
    )
    udf = spark.udf.register("of_words", read.asUdf())
    assert [row.p for row in texts.select(udf("features").alias("p")).collect()] == list(expected.argmax(1))


def test_the_store_holds_what_is_there(texts):
    column = Column("features", dtype="sparse")
    present = sum(row.n for row in texts.selectExpr("size(array_distinct(words)) AS n").collect())
    with Dataset.from_dataframe(texts, features=column, label="label") as data:
        count = len(data)
        # A label of 4 bytes, a position, and the ends of indices and values.
        assert sum(token.nbytes for token in data.store().partitions) <= 8 * present + count * (4 + 3 * 8)


def test_by_name_beside_other_columns_with_null_left_out(texts, spark):
    df = texts.selectExpr(
        "IF(length(text) % 7 = 0, NULL, features) AS words", "double(length(text)) / 100 AS length", "label"
    )
    left = df.where("words IS NOT NULL").count()
    estimator = TorchClassifier(
        module=Weighted,
        featuresCols=["words", "length"],
        inputNames=["words", "length"],
        handleInvalid="keep",
        maxIter=1,
    )
    model = estimator.fit(df)
    assert [spec.key for spec in model.signature.inputs] == ["words_indices", "words_values", "length"]
    rows = model.transform(df).collect()
    assert sum(row.prediction is not None for row in rows) == left < len(rows)
    row = next(row for row in rows if row.prediction is not None)
    assert model.predict((row.words, row.length)) == row.prediction


def test_what_cannot_be_sparse(texts):
    with pytest.raises(
        DataError, match="features column 'label' has type double: only ML vectors can be sparse"
    ):
        Dataset.from_dataframe(texts, features=Column("label", dtype="sparse"))
    beside = TorchClassifier(featuresCols=["features", "label"], inputTypes=["sparse", None])
    with pytest.raises(
        ConfigError, match="the default module takes no sparse column such as 'features' beside others"
    ):
        beside.fit(texts)


def test_vectors_stay_sparse_by_themselves(words):
    texts = hashed(words, FEW)  # the default module has a hundred weights for each
    model = TorchClassifier(maxEpochs=6, batchSize=16).fit(texts)
    assert isinstance(model.module, SparseMLP)
    assert model.module.first.inputs == FEW
    rows = model.transform(texts).collect()
    assert np.mean([row.prediction == row.label for row in rows]) > 0.9
    if hasattr(texts, "toArrow"):  # from Spark 4.0 on
        found = ServedModel(model)(texts.select("features").toArrow()).column("prediction").to_pylist()
        assert found == [row.prediction for row in rows]
    length = texts.selectExpr("features", "1000.0 + 100 * length(text) AS label")
    regression = TorchRegressor(maxEpochs=1).fit(length)
    assert regression.module.output_mean.item() > 1000


@pytest.mark.whole
def test_a_trainer_leaves_vectors_sparse_for_a_module_that_takes_them(words):
    texts = hashed(words, FEW)
    trainer = Trainer(
        SparseLinear(FEW, 2),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.5),
        end_when=MaxIteration(1),
        progress=False,
    )
    found = trainer.fit(
        texts.withColumn("label", F.col("label").cast("int")), features="features", label="label"
    )
    assert found.module.table.weight.shape == (FEW, 2)
    assert trainer.predict(texts).shape == (texts.count(), 2)


def test_a_module_that_takes_dense_vectors_alone_gets_them_with_a_hint(texts):
    narrow = HashingTF(inputCol="words", outputCol="narrow", numFeatures=5000).transform(texts)
    with (
        pytest.warns(UserWarning, match="column 'narrow': its vectors have 5,000 values"),
        Dataset.from_dataframe(narrow, features="narrow") as data,
    ):
        assert data.peek()["features"].shape == (2, 5000)

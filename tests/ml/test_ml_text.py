"""Texts in DataFrames: vocabulary, numbers, pipelines, streams, a training."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import RegexTokenizer, StopWordsRemover, Tokenizer
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import Dataset, Trainer
from sparkdl.data.text import TextIndex
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.ml.stages.text import TextIndexer, TextIndexerModel
from sparkdl.train import MaxEpoch

TEXTS = [(0, "The cat sat."), (1, "the dog SAT"), (2, ""), (3, "a cat, a cat!"), (4, None)]


@pytest.fixture
def texts(spark: Any) -> Any:
    return spark.createDataFrame(TEXTS, "id int, text string").coalesce(1)


def numbers(df: Any) -> list[Any]:
    return [row.x for row in df.orderBy("id").collect()]


# -- vocabulary ---------------------------------------------------------------------------------


def test_a_vocabulary_is_ordered_by_count_then_alphabet(texts: Any) -> None:
    model = TextIndexer(inputCol="text", outputCol="x").fit(texts)
    assert model.vocabulary == ("<pad>", "<unk>", "cat", "a", "sat", "the", "dog")


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"maxSize": 4}, ["cat", "a"]),
        ({"minCount": 2}, ["cat", "a", "sat", "the"]),
        ({"minCount": 2, "maxSize": 3}, ["cat"]),
        ({"toLowercase": False}, ["cat", "a", "SAT", "The", "dog", "sat", "the"]),
        ({"pattern": r"\S+"}, ["a", "the", "cat", "cat!", "cat,", "dog", "sat", "sat."]),
        ({"unknownToken": "the", "padToken": "cat"}, ["a", "sat", "dog"]),
    ],
)
def test_limits_and_patterns(texts: Any, params: dict[str, Any], expected: list[str]) -> None:
    model = TextIndexer(inputCol="text", outputCol="x", **params).fit(texts)
    assert list(model.vocabulary[2:]) == expected


def test_sparks_own_tokenizers_fit_in_front(texts: Any) -> None:
    words = Tokenizer(inputCol="text", outputCol="words").transform(texts.na.drop())
    model = TextIndexer(inputCol="words", outputCol="x", maxLength=3).fit(words)
    assert set(model.vocabulary[2:]) == {"the", "cat", "sat.", "dog", "sat", "", "a", "cat,", "cat!"}
    assert numbers(model.transform(words))[0] == [model.vocabulary.index(t) for t in ("the", "cat", "sat.")]
    gaps = words.select("id", F.array(F.lit("cat"), F.lit(None), F.lit("the")).alias("words"))
    assert "cat" in TextIndexer(inputCol="words", outputCol="x").fit(gaps).vocabulary
    assert numbers(model.transform(gaps))[0] == [*map(model.vocabulary.index, ("cat", "<unk>", "the"))]


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({}, ConfigError, "TextIndexer: inputCol is not set"),
        ({"inputCol": "texts"}, DataError, "inputCol 'texts' is not in the DataFrame; it has id, text"),
        ({"inputCol": "id"}, DataError, r"inputCol 'id' has type int: expected string or array<string>"),
        (
            {"inputCol": "text", "maxSize": 2},
            ConfigError,
            "maxSize=2: expected more than padding and unknown",
        ),
        ({"inputCol": "text", "minCount": 9}, DataError, "holds no token that occurs minCount=9 times"),
        ({"inputCol": "text", "maxLength": 0}, ConfigError, "length=0"),
        ({"inputCol": "text", "pattern": "("}, ConfigError, r"pattern='\('"),
        ({"inputCol": "text", "padToken": "x", "unknownToken": "x"}, ConfigError, "1 of them different"),
    ],
)
def test_a_fit_that_cannot_be(texts: Any, params: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TextIndexer(**params).fit(texts)


def test_no_text_at_all(texts: Any) -> None:
    with pytest.raises(DataError, match="there is no vocabulary to learn"):
        TextIndexer(inputCol="text").fit(texts.filter("text is null"))


# -- numbers ------------------------------------------------------------------------------------


def test_texts_become_rows_of_one_length(texts: Any) -> None:
    model = TextIndexer(inputCol="text", outputCol="x", maxLength=3).fit(texts)
    df = model.transform(texts.na.drop())
    assert df.columns == ["id", "text", "x"]
    assert df.schema["x"].dataType.simpleString() == "array<int>"
    assert df.schema["x"].metadata == {"sparkdl": {"shape": [3], "dtype": "int64"}}
    assert numbers(df) == [[5, 2, 4], [5, 6, 4], [0, 0, 0], [3, 2, 3]]
    assert [model.index(text) for _, text in TEXTS[:4]] == numbers(df)
    assert numbers(model.transform(df.drop("x").filter("id > 9"))) == []
    start = model.copy({model.padding: "start", model.truncation: "start", model.maxLength: 4})
    assert numbers(start.transform(texts.na.drop()))[1:3] == [[0, 5, 6, 4], [0] * 4]


def test_null_texts_follow_handle_invalid(texts: Any) -> None:
    model = TextIndexer(inputCol="text", outputCol="x", maxLength=2).fit(texts)
    with pytest.raises(Exception, match="DataError: column 'text', row 4 of partition 0: null"):
        model.transform(texts).collect()
    assert numbers(model.setHandleInvalid("keep").transform(texts)) == [[5, 2], [5, 6], [0, 0], [3, 2], None]
    assert len(numbers(model.setHandleInvalid("skip").transform(texts))) == 4


def test_a_dataset_finds_length_and_dtype_by_itself(texts: Any) -> None:
    model = TextIndexer(inputCol="text", outputCol="x", maxLength=3, handleInvalid="skip").fit(texts)
    found = Dataset.from_dataframe(model.transform(texts), features="x").peek()["features"]
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, [[5, 2, 4], [5, 6, 4]])


def test_a_vocabulary_made_elsewhere(texts: Any) -> None:
    words = ["[PAD]", "[UNK]", "cat", "dog"]
    model = TextIndexerModel.from_vocabulary(words, inputCol="text", outputCol="x", maxLength=2)
    assert numbers(model.transform(texts.na.drop())) == [[1, 2], [1, 3], [0, 0], [1, 2]]
    with pytest.raises(ConfigError, match="expected padding, unknown"):
        TextIndexerModel.from_vocabulary(["cat", "cat", "dog"])


@pytest.mark.whole
def test_on_a_stream(spark: Any, texts: Any, tmp_path: Path) -> None:
    model = TextIndexer(inputCol="text", outputCol="x", maxLength=3, handleInvalid="skip").fit(texts)
    texts.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(texts.schema).parquet(str(tmp_path / "in"))
    query = (
        model.transform(stream)
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == numbers(model.transform(texts))


# -- Params and persistence ---------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "inputCol": "text",
    "outputCol": "x",
    "maxLength": 7,
    "maxSize": 9,
    "minCount": 2,
    "padToken": "[PAD]",
    "unknownToken": "[UNK]",
    "pattern": r"\S+",
    "toLowercase": False,
    "padding": "start",
    "truncation": "start",
    "handleInvalid": "keep",
}


def by_name(stage: Any) -> dict[str, Any]:
    return {param.name: value for param, value in stage.extractParamMap().items()}


def test_every_param_is_set_read_explained_and_kept(texts: Any, tmp_path: Path) -> None:
    stage = TextIndexer()
    for name, value in VALUES.items():
        capital = name[0].upper() + name[1:]
        assert getattr(stage, f"set{capital}")(value) is stage
        assert getattr(stage, f"get{capital}")() == value
        assert name in stage.explainParams()
    assert by_name(TextIndexer(**VALUES)) == by_name(TextIndexer().setParams(**VALUES)) == VALUES
    path = str(tmp_path / "stage")
    stage.save(path)
    again = TextIndexer.load(path)
    assert (again.uid, by_name(again)) == (stage.uid, VALUES)
    model = stage.fit(texts)
    assert model.uid == stage.uid
    shared = {"maxSize", "minCount", "padToken", "unknownToken"} ^ set(VALUES)
    assert by_name(model) == {name: VALUES[name] for name in shared}
    assert "[PAD]" not in model.explainParams()  # a vocabulary is no Param
    assert model.copy().vocabulary == model.vocabulary


def test_a_model_is_saved_and_read(texts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TextIndexer(inputCol="text", outputCol="x", maxLength=3, pattern=r"\S+").fit(texts)
    path = str(tmp_path / "model")
    model.save(path)
    again = TextIndexerModel.load(path)
    assert (again.uid, again.vocabulary) == (model.uid, model.vocabulary)
    assert again.index == model.index == TextIndex(model.vocabulary, 3, r"\S+")
    assert again.extractParamMap() == model.extractParamMap()
    with pytest.raises(Exception, match="already exists"):
        model.save(path)
    odd = ["<pad>", "<unk>", 'line\nbreak "quoted"', "кот", "😺"]
    TextIndexerModel.from_vocabulary(odd).write().overwrite().save(path)
    assert list(TextIndexerModel.load(path).vocabulary) == odd
    (file,) = Path(path).glob("metadata/part-*")
    metadata = json.loads(file.read_text()) | {"formatVersion": 2}
    del metadata["sparkdl"]  # as the first release had it, without a checksum
    monkeypatch.setattr("sparkdl.ml.persistence.stored.read_metadata", lambda *_: metadata)
    with pytest.raises(ConfigError, match="format version 2, this sparkdl reads up to 1"):
        TextIndexerModel.load(path)


def test_what_is_damaged_or_of_another_class_is_told(texts: Any, tmp_path: Path) -> None:
    path = tmp_path / "in[dex]"
    TextIndexerModel.from_vocabulary(["<pad>", "<unk>", "cat"]).save(str(path))
    assert TextIndexerModel.load(str(path)).vocabulary[2] == "cat"
    with pytest.raises(ConfigError, match="holds a TextIndexerModel, expected a TextIndexer"):
        TextIndexer.load(str(path))
    with pytest.raises(ConfigError, match="nothing complete was saved there"):
        TextIndexer.load(str(tmp_path / "index"))
    (file,) = path.glob("metadata/part-*")
    for crc in path.glob("metadata/.*.crc"):
        crc.unlink()
    sound = file.read_text()
    for damaged, message in (
        (sound.replace("cat", "hat"), "the metadata is damaged"),
        (sound.replace("sparkdl.ml.stages.text.TextIndexerModel", "sparkdl_tripwire.Fly"), "holds a Fly"),
        (sound[:-9], "is not JSON"),
    ):
        file.write_text(damaged)
        with pytest.raises(ConfigError, match=message):
            TextIndexerModel.load(str(path))


@pytest.mark.whole
def test_in_a_saved_pipeline(texts: Any, tmp_path: Path) -> None:
    df = texts.na.drop()
    stages = [
        RegexTokenizer(inputCol="text", outputCol="words", pattern=r"\W+"),
        StopWordsRemover(inputCol="words", outputCol="content"),
        TextIndexer(inputCol="content", outputCol="x", maxLength=2),
    ]
    Pipeline(stages=stages).save(str(tmp_path / "pipeline"))
    model = Pipeline.load(str(tmp_path / "pipeline")).fit(df)
    model.save(str(tmp_path / "model"))
    again = PipelineModel.load(str(tmp_path / "model"))
    assert again.stages[-1].vocabulary == ("<pad>", "<unk>", "cat", "sat", "dog")
    assert numbers(again.transform(df)) == numbers(model.transform(df)) == [[2, 3], [4, 3], [0, 0], [2, 2]]


# -- training -----------------------------------------------------------------------------------


def sentences() -> list[tuple[str, int]]:
    """Sentences of Python's reference and of numpy's docstrings, by turns."""
    prose = [" ".join(topics[name] for name in sorted(topics))]
    prose += [" ".join(str(getattr(np, name).__doc__) for name in sorted(dir(np)))]
    found = [re.findall(r"[A-Z][a-z]+ [a-z][^.*`=>]{40,200}\.", re.sub(r"\s+", " ", text)) for text in prose]
    return [(text, label) for pair in zip(*found, strict=False) for label, text in enumerate(pair)]


class Bag(nn.Module):
    """The mean of the embeddings of a sentence's tokens, and a linear layer."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 16, padding_idx=0)
        self.linear = nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        count = (tokens != 0).sum(1, keepdim=True).clamp(min=1)
        out: Tensor = self.linear(self.embedding(tokens).sum(1) / count)
        return out


@pytest.mark.whole
def test_sentences_are_told_apart(spark: Any) -> None:
    rows = sentences()[:1600]
    assert len(rows) == 1600
    df = spark.createDataFrame(rows, "text string, label int").coalesce(2)
    train, test = df.filter(F.crc32("text") % 4 > 0), df.filter(F.crc32("text") % 4 == 0)
    model = TextIndexer(inputCol="text", outputCol="tokens", maxLength=32, maxSize=2000, minCount=2).fit(
        train
    )
    assert 1000 < len(model.vocabulary) <= 2000
    torch.manual_seed(0)
    trainer = Trainer(
        Bag(2000),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=0.02),
        batch_size=64,
        end_when=MaxEpoch(6),
        seed=1,
        progress=False,
    )
    with Dataset.from_dataframe(model.transform(train), features="tokens", label="label") as data:
        module = trainer.fit(data).module.eval()
    held_out = model.transform(test).collect()
    with torch.no_grad():
        predicted = module(torch.tensor([row.tokens for row in held_out])).argmax(1)
    accuracy = (predicted == torch.tensor([row.label for row in held_out])).double().mean()
    assert len(held_out) > 300
    assert accuracy > 0.85

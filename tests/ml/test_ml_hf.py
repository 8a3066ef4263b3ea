"""Tokenisers and models of Hugging Face as stages: pipelines, ragged rows, files, embeddings, generation."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.sql import functions as F

pytest.importorskip("transformers")
from support.hf import TEXTS, bert, llama, tokenizer

from sparkdl import TorchClassifier, TorchEstimator
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.hf import Generator
from sparkdl.hf.labels import class_names, name_classes
from sparkdl.ml import (
    EmbeddingModel,
    HFDecoder,
    HFTokenizer,
    TorchClassificationModel,
    TorchModel,
    load,
    save,
)
from sparkdl.ml.persistence.local import save_local
from sparkdl.ml.stages.forgiving import ForgivingScorer
from sparkdl.serve import Predictor

ROWS = [(n, text, float(len(text) > 60)) for n, text in enumerate(TEXTS[:48])]


@pytest.fixture
def texts(spark: Any) -> Any:
    return spark.createDataFrame(ROWS, "id int, text string, y double").coalesce(2)


def stage(**params: Any) -> HFTokenizer:
    return HFTokenizer(tokenizer=tokenizer(), **{"inputCol": "text", "maxLength": 32, **params})


# -- the stage, without Spark's jobs --------------------------------------------------------------


def test_a_text_without_spark() -> None:
    expected = tokenizer()(TEXTS[0], truncation=True, max_length=32)
    assert stage().encoding.tokens(TEXTS[0]) == {n: expected[n] for n in ("input_ids", "attention_mask")}


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_fixed_length(side: str) -> None:
    found = stage(padding="max_length", paddingSide=side, maxLength=12).encoding.tokens("a mat")
    ids = tokenizer()("a mat")["input_ids"]
    missing = [0] * (12 - len(ids))
    assert found["input_ids"] == (ids + missing if side == "right" else missing + ids)
    assert sum(found["attention_mask"]) == len(ids)


@pytest.mark.parametrize("side", ["right", "left"])
def test_long_texts_are_cut_off_as_by_transformers(side: str, tmp_path: Path) -> None:
    plain = tokenizer()
    plain.truncation_side = side
    expected = [plain(TEXTS[0], truncation=True, max_length=n)["input_ids"] for n in (2, 3, 5)]
    assert len({tuple(ids[:2]) for ids in expected}) > 1
    plain.save_pretrained(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"truncation_side": side}))
    for given in (plain, tmp_path):
        made = HFTokenizer(tokenizer=given, inputCol="text")
        assert made.getTruncationSide() == side
        found = [made.setMaxLength(n).encoding.tokens(TEXTS[0])["input_ids"] for n in (2, 3, 5)]
        assert found == expected


def test_special_tokens_within_a_text_are_what_they_are_in_transformers(spark: Any, tmp_path: Path) -> None:
    text = f"{TEXTS[0]} [SEP] {TEXTS[1]}"
    plain = tokenizer()
    plain.save_pretrained(tmp_path / "plain")
    split = type(plain).from_pretrained(tmp_path / "plain", split_special_tokens=True)
    expected = {given is split: given(text)["input_ids"] for given in (plain, split)}
    assert len(expected[True]) > len(expected[False])
    split.save_pretrained(tmp_path / "saved")
    for given in (split, split.backend_tokenizer, tmp_path / "saved"):
        made = HFTokenizer(tokenizer=given, inputCol="text")
        assert made.encoding.tokens(text)["input_ids"] == expected[True]
    made.save(str(tmp_path / "stage"))
    again = HFTokenizer.load(str(tmp_path / "stage"))
    assert again.encoding.tokens(text)["input_ids"] == expected[True]
    assert made.setSplitSpecialTokens(False).encoding.tokens(text)["input_ids"] == expected[False]
    assert HFTokenizer(tokenizer=plain, inputCol="text").encoding.tokens(text)["input_ids"] == expected[False]


def test_a_tokeniser_of_a_folder_or_a_file(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)
    expected = stage().encoding.tokens(TEXTS[0])
    for given in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path), tokenizer().backend_tokenizer):
        made = HFTokenizer(tokenizer=given, inputCol="text", maxLength=32)
        assert made.encoding.tokens(TEXTS[0]) == expected
        assert made.getPadToken() == "[PAD]"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: HFTokenizer(tokenizer="no/such"), "expected a tokenizer.json"),
        (lambda: HFTokenizer(tokenizer=3), "a fast tokeniser of transformers"),
        (lambda: HFTokenizer(inputCol="text").encoding, "tokenizer is not set"),
        (lambda: stage(padToken="[NONE]").encoding, r"no token '\[NONE\]'"),
        (lambda: stage(outputCols=["a", "a"]).encoding, "two or three different names"),
        (
            lambda: stage(outputCols=["input_ids", "token_type_ids", "attention_mask"]).encoding,
            "the column 'token_type_ids' would hold 'attention_mask'",
        ),
        (lambda: stage(outputCols=["input_ids", "token_type_ids"]).encoding, "would hold 'attention_mask'"),
        (lambda: stage(maxLength=0).encoding, "maxLength=0"),
        (lambda: stage(maxLength=1).encoding, "at least 2, for so many special tokens"),
        (lambda: stage(padding="longest"), "expected one of"),
    ],
)
def test_what_cannot_work(make: Any, expected: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=expected):
        make()


# -- columns --------------------------------------------------------------------------------------


def test_a_text_that_is_missing_has_a_reason() -> None:
    task = ForgivingScorer(stage().encoding)
    given: list[str | None] = [TEXTS[0], None, TEXTS[1]]
    found = [row for part in task(iter([pa.array(given), pa.array(given)])) for row in part.to_pylist()]
    for number, text in enumerate(given * 2):
        if text is None:
            assert found[number]["input_ids"] is None
            assert f"'text', row {number} of partition 0: null" in found[number]["error"]
        else:
            assert found[number] == {**stage().encoding.tokens(text), "error": None}


@pytest.mark.whole
def test_rows_that_cannot_be_used_go_through_all_stages(texts: Any) -> None:
    df = texts.withColumn("text", F.expr("if(id = 3, null, text)"))
    begin = stage(onError="column", errorCol="tokenError")
    tokens = begin.transform(df)
    # an id outside of the vocabulary
    columns = begin.getOutputCols()
    changed = [
        F.expr(f"if(id = 5, array({value}), {name})").alias(name, metadata=tokens.schema[name].metadata)
        for name, value in zip(columns, (100_000, 1), strict=True)
    ]
    tokens = tokens.select("id", "tokenError", *changed)
    write = TorchModel.from_module(
        Generator(llama(), max_new_tokens=2), featuresCols=columns, predictionCol="ids"
    )
    for model, name in ((EmbeddingModel.of(bert()), "embedding"), (write, "ids")):
        found = {row.id: row for row in model.setOnError("column").transform(tokens).collect()}
        assert [n for n, row in found.items() if row[name] is None] == [3, 5]
        assert [n for n, row in found.items() if row.error is not None] == [3, 5]
        assert [n for n, row in found.items() if row.tokenError is not None] == [3]
        assert "null" in found[3].error
        assert "expected integers from 0 to" in found[5].error
    with pytest.raises(ConfigError, match="expected different names"):
        begin.setErrorCol("input_ids").transform(texts)


def test_columns_of_tokens(texts: Any) -> None:
    df = texts.withColumn("text", F.when(F.col("id") != 1, F.col("text")))
    pairs = stage(pairCol="text", outputCols=["i", "m", "t"], handleInvalid="keep").transform(df)
    rows = pairs.orderBy("id").head(3)
    assert rows[1].i is None
    expected = tokenizer()(TEXTS[2], TEXTS[2], truncation=True, max_length=32, return_token_type_ids=True)
    assert [rows[2].i, rows[2].m, rows[2].t] == [
        expected[n] for n in ("input_ids", "attention_mask", "token_type_ids")
    ]
    assert pairs.schema["i"].metadata == {"sparkdl": {"dtype": "int64", "fill": 0}}
    assert stage(handleInvalid="skip").transform(df).count() == len(ROWS) - 1
    with pytest.raises(Exception, match="column 'text', row 1 of partition 0: null"):
        stage().transform(df).collect()
    with pytest.raises(DataError, match="inputCol 'y' has type double"):
        stage(inputCol="y").transform(df)
    with pytest.raises(DataError, match="'y' is in the DataFrame already"):
        stage(outputCols=["y", "m"]).transform(df)


@pytest.mark.whole
def test_a_pipeline_of_texts_of_any_length(texts: Any, tmp_path: Path) -> None:
    tokens = stage()
    model = TorchClassifier(
        module=bert(),
        featuresCols=tokens.getOutputCols(),
        labelCol="y",
        learningRate=3e-3,
        batchSize=16,
        maxEpochs=2,
    )
    fitted = Pipeline(stages=[tokens, model]).fit(texts)
    save(fitted, str(tmp_path / "model"))
    back = load(str(tmp_path / "model"))
    before, after = (
        np.array([row.probability for row in p.transform(texts).orderBy("id").collect()])
        for p in (fitted, back)
    )
    np.testing.assert_array_equal(before, after)
    udf = texts.sparkSession.udf.register("of_texts", back.stages[1].asUdf())
    decided = (
        stage().transform(texts).orderBy("id").select(udf(*stage().getOutputCols()).alias("p")).collect()
    )
    assert [row.p for row in decided] == list(before.argmax(1))
    # Each text by itself, with transformers.
    module = fitted.stages[1].module
    for n in (0, 7):
        encoded = tokenizer()(TEXTS[n], truncation=True, max_length=32, return_tensors="pt")
        logits = module(encoded["input_ids"], attention_mask=encoded["attention_mask"]).logits
        np.testing.assert_allclose(before[n], logits.softmax(-1).detach().numpy()[0], rtol=1e-3)
    files = [json.loads(p.read_text()) for p in (tmp_path / "model").rglob("part-*.txt") if p.stat().st_size]
    (kept,) = [file["tokenizer"] for file in files if "tokenizer" in file]
    assert json.loads(kept) == json.loads(tokens.json)
    assert not list((tmp_path / "model").rglob("code"))


@pytest.mark.parametrize("named", [True, False])
def test_classes_are_numbered_as_transformers_names_them(texts: Any, named: bool, tmp_path: Path) -> None:
    """Most texts are long, and so the first by count; a model that names its classes has its own order."""
    from transformers import AutoModelForSequenceClassification

    names = {"id2label": {0: "short", 1: "long"}, "label2id": {"short": 0, "long": 1}} if named else {}
    rows = texts.withColumn("way", F.when(F.length("text") > 40, "long").otherwise("short"))
    tokens = stage().transform(rows)
    make = partial(bert, **names)
    for module in (make if named else make(),):
        classifier = TorchClassifier(
            module=module, featuresCols=stage().getOutputCols(), labelCol="way", learningRate=1e-2, maxIter=2
        )
        model = classifier.fit(tokens)
        expected = ("short", "long") if named else ("long", "short")
        assert model.labels == expected
        model.module.save_pretrained(tmp_path / "pretrained")
        there = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pretrained")
        assert tuple(there.config.id2label.values()) == expected
        assert there.config.label2id == {name: n for n, name in enumerate(expected)}
        save_local(model, tmp_path / f"model of {type(module).__name__}")
        back = Predictor.load(str(tmp_path / f"model of {type(module).__name__}"))
        assert back.labels == expected == class_names(back._module)
        assert TorchClassificationModel.from_module(there, inputNames=["input_ids"]).labels == expected
    assert class_names(bert()) == () == class_names(torch.nn.Linear(2, 2))
    assert not name_classes(bert(num_labels=1), ("a", "b"))
    assert name_classes(three := bert(num_labels=3), ("a", "b"))
    assert three.config.id2label == {0: "a", 1: "b", 2: "LABEL_2"}


@pytest.mark.whole
def test_an_estimator_takes_the_models_own_loss(texts: Any) -> None:
    tokens = stage(padding="max_length").transform(texts.withColumn("y", F.col("y").cast("int")))
    model = TorchEstimator(
        module=bert(),
        featuresCols=["input_ids", "attention_mask"],
        labelCol="y",
        predictionCol="logits",
        maxEpochs=1,
    ).fit(tokens)
    assert len(model.transform(tokens).first().logits) == 2
    assert set(model.evaluate(tokens)) == {"loss"}


def test_embeddings(texts: Any, tmp_path: Path) -> None:
    bert("").save_pretrained(tmp_path / "bert")
    embed = EmbeddingModel.of(tmp_path / "bert", normalize=True, inferenceBatchSize=8)
    tokens = stage().transform(texts)
    found = embed.transform(tokens).orderBy("id").collect()
    embed.save(str(tmp_path / "stage"))
    back = EmbeddingModel.load(str(tmp_path / "stage")).transform(tokens).orderBy("id").collect()
    assert [row.embedding for row in found] == [row.embedding for row in back]
    np.testing.assert_allclose(np.linalg.norm([row.embedding for row in found], axis=1), 1, rtol=1e-5)
    ids = torch.tensor([found[3].input_ids])
    np.testing.assert_allclose(embed.module(ids).detach().numpy()[0], found[3].embedding, atol=1e-5)
    with pytest.raises(ConfigError, match="config.json and model.safetensors"):
        EmbeddingModel.of(tmp_path / "none")


def test_generation_and_its_text(texts: Any) -> None:
    tokens = stage()
    model = TorchModel.from_module(
        Generator(llama(), 5), featuresCols=tokens.getOutputCols(), predictionCol="ids"
    )
    df = model.transform(tokens.transform(texts.limit(6)))
    rows = HFDecoder(tokenizer=tokenizer(), inputCol="ids", outputCol="said").transform(df).collect()
    assert len(rows) == 6
    for row in rows:
        assert row.said == tokenizer().decode([int(n) for n in row.ids], skip_special_tokens=True)


def test_a_saved_tokeniser_cleans_texts_up_as_it_did(spark: Any, tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path / "plain")
    fast = type(tokenizer()).from_pretrained(tmp_path / "plain", clean_up_tokenization_spaces=True)
    ids = fast("a mat , and so on .", add_special_tokens=False)["input_ids"]
    HFTokenizer(tokenizer=fast, inputCol="text").save(str(tmp_path / "stage"))
    decoder = HFTokenizer.load(str(tmp_path / "stage")).decoder("ids", "said")
    found = decoder.transform(spark.createDataFrame([(ids,)], "ids array<int>")).first().said
    assert found == fast.decode(ids) != tokenizer().decode(ids)


@pytest.mark.whole
def test_one_model_in_each_process(texts: Any) -> None:
    """Models are unpickled once in a Python worker, whatever the number of tasks."""
    model = TorchModel.from_module(
        Counting(bert("")), featuresCols=["input_ids", "attention_mask"], outputCols=["pid", "copies"]
    )
    df = model.transform(stage().transform(texts.repartition(4)))
    found = {(row.pid, row.copies) for row in df.collect() + df.collect()}
    assert len({copies for _, copies in found}) == 1  # later tasks make no more
    assert len({pid for pid, _ in found}) == len(found)


class Counting(torch.nn.Module):
    """Tells its process, and how many copies of the model came into it."""

    copies = 0

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        Counting.copies += 1

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        import os

        rows = torch.ones(len(input_ids))
        return rows * os.getpid(), rows * Counting.copies

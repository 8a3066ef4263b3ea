"""Tokens per second of texts as vectors and of generation, beside PySpark's own way and a plain loop.

    python benchmarks/texts.py --json texts.json

Texts are lines and paragraphs of Python's manual, from 5 to 500 tokens. Models are made here, with random
weights: a BERT whose tokens are averaged, and a Llama that continues beginnings by 24 tokens. Three ways take
turns, each on one core with one thread of torch:

    sparkdl   ``HFTokenizer`` and ``EmbeddingModel`` or ``Generator``, with their defaults
    udf       PySpark's ``predict_batch_udf``, which tokenises, and fills each batch up to its longest text
    loop      a loop of transformers in this process, which does the same

The two others have the best of the batch sizes 1, 2, 4, 8 and 32. Tokens are counted without padding; for
generation new tokens count. One JSON object a task: tokens per second, the median of the turns, and
sparkdl's over each of the others'.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is there, and for Spark's workers

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median
from typing import Any

import keeping
import numpy as np
import torch
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from sparkdl import session
from sparkdl.hf import Generator
from sparkdl.ml import EmbeddingModel, HFTokenizer, TorchModel

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.hf import tokenizer

LONGEST, NEW = 500, 24
SIZES = (1, 2, 4, 8, 32)


def texts_of(count: int, longest: int) -> list[str]:
    """Return texts of very different lengths: words that follow each other in the manual."""
    words = " ".join(text for _, text in sorted(topics.items())).split()
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(3.2, 1.0, count), 3, longest).astype(int)
    starts = draw.integers(0, len(words) - longest, count)
    return [" ".join(words[start : start + n]) for start, n in zip(starts, lengths, strict=True)]


def bert(vocabulary: int) -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 768}
    return BertModel(BertConfig(vocab_size=vocabulary, max_position_embeddings=512, **sizes)).eval()


def llama(vocabulary: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    config = LlamaConfig(vocab_size=vocabulary, num_key_value_heads=4, max_position_embeddings=1024, **sizes)
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, 2, None
    return LlamaForCausalLM(config).eval()


def encoded(fast: Any, texts: Sequence[str], side: str) -> Any:
    fast.padding_side = side
    return fast(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")


def vectors(model: Any, fast: Any, texts: Sequence[str]) -> np.ndarray:
    """Return the mean of each text's tokens, as a plain program of transformers has it."""
    with torch.inference_mode():
        batch = encoded(fast, texts, "right")
        hidden = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).float()
        found: np.ndarray = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
        return found


def continued(model: Any, fast: Any, texts: Sequence[str]) -> np.ndarray:
    """Return the numbers of new tokens."""
    with torch.inference_mode():
        batch = encoded(fast, texts, "left")
        given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        out = model.generate(**given, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
        found: np.ndarray = out[:, batch["input_ids"].shape[1] :].numpy()
        return found


def looped(work: Callable[..., np.ndarray], texts: Sequence[str], size: int) -> np.ndarray:
    return np.concatenate([work(texts[n : n + size]) for n in range(0, len(texts), size)])


def udf(work: Callable[..., np.ndarray], kind: T.DataType, size: int) -> Any:
    """Return what PySpark calls with batches of texts."""

    def make() -> Any:
        torch.set_num_threads(1)
        return lambda batch: work([str(text) for text in batch])

    return predict_batch_udf(make, return_type=T.ArrayType(kind), batch_size=size)


def seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def drained(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def measure(
    name: str, ways: dict[str, Callable[[], Any]], tokens: int, turns: int, check: Callable[[], None]
) -> dict[str, Any]:
    """Return tokens per second of each way; the first turn does not count."""
    check()
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way, run in ways.items():
            taken = seconds(run)
            if turn:
                spent[way].append(taken)
    speed = {way: tokens / median(each) for way, each in spent.items()}
    best = {
        kind: max((way for way in ways if way.startswith(kind)), key=speed.__getitem__)
        for kind in ("udf", "loop")
    }
    return {
        "task": name,
        "tokens": tokens,
        "tokens_per_second": {way: round(value) for way, value in speed.items()},
        "best": best,
        "over_udf": round(speed["sparkdl"] / speed[best["udf"]], 3),
        "over_loop": round(speed["sparkdl"] / speed[best["loop"]], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--beginnings", type=int, default=300)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    spark = session.builder("local[1]", "benchmark texts").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    fast = tokenizer(2000)
    results = []
    for name, count, longest, model, work, kind in (
        ("embedding", args.texts, 300, bert(len(fast)), vectors, T.FloatType()),
        ("generation", args.beginnings, 150, llama(len(fast)), continued, T.LongType()),
    ):
        texts = texts_of(count, longest)
        rows = spark.createDataFrame([(text,) for text in texts], "text string").coalesce(1).cache()
        rows.count()
        plain = partial(work, model, fast)
        encoder = HFTokenizer(tokenizer=fast, inputCol="text", maxLength=LONGEST)
        names = {"featuresCols": ["input_ids", "attention_mask"], "predictionCol": "found"}
        stage: Any
        if name == "embedding":
            stage = EmbeddingModel.of(model, **names)
            tokens = sum(map(len, fast(texts, truncation=True, max_length=LONGEST)["input_ids"]))
        else:
            stage = TorchModel.from_module(Generator(model, NEW), **names)
            tokens = NEW * len(texts)
        ours = stage.transform(encoder.transform(rows)).select("found")
        ways: dict[str, Callable[[], Any]] = {"sparkdl": partial(drained, ours)}
        for size in SIZES:
            ways[f"udf {size}"] = partial(drained, rows.select(udf(plain, kind, size)("text")))
            ways[f"loop {size}"] = partial(looped, plain, texts, size)

        def check(ours: DataFrame = ours, texts: list[str] = texts, plain: Any = plain) -> None:
            found = np.array([row[0] for row in ours.limit(64).collect()])
            np.testing.assert_allclose(found, looped(plain, texts[:64], 1), rtol=1e-3, atol=1e-4)

        results.append(measure(name, ways, tokens, args.turns, check))
        print(json.dumps(results[-1]), flush=True)
        rows.unpersist()
    keeping.write(args.json, results)
    spark.stop()


if __name__ == "__main__":
    main()

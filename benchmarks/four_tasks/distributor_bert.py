"""TorchDistributor: BERT, by the Trainer of transformers in each process."""

import sys

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def train(folder, tokenizer):
    import pandas as pd
    import torch
    from transformers import (
        AutoTokenizer,
        BertConfig,
        BertForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    fast = AutoTokenizer.from_pretrained(tokenizer)

    class Rows(torch.utils.data.Dataset):
        def __init__(self, part):
            rows = pd.read_parquet(f"{folder}/{part}")
            self.rows = [
                {**fast(text, truncation=True, max_length=16), "labels": label}
                for text, label in zip(rows["text"], rows["label"])
            ]

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]

    config = BertConfig(
        vocab_size=len(fast),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=3,
    )
    arguments = TrainingArguments(
        f"{folder}/out",
        per_device_train_batch_size=8,
        num_train_epochs=5,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        arguments,
        train_dataset=Rows("train"),
        eval_dataset=Rows("test"),
        data_collator=DataCollatorWithPadding(fast),
        compute_metrics=lambda found: {
            "accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())
        },
    )
    trainer.train()
    scores = trainer.evaluate()
    trainer.save_model(f"{folder}/model")
    return scores["eval_accuracy"]


spark = SparkSession.builder.master("local[2]").getOrCreate()
texts = spark.read.parquet(sys.argv[1])
ways = [row.way for row in texts.select("way").distinct().orderBy("way").collect()]
texts = texts.withColumn("label", F.array_position(F.array(*map(F.lit, ways)), F.col("way")).cast("int") - 1)
for part, name in zip(texts.randomSplit([0.8, 0.2], seed=1), ("train", "test")):
    part.write.mode("overwrite").parquet(f"{sys.argv[3]}/{name}")
accuracy = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(
    train, sys.argv[3], sys.argv[2]
)
print(f"accuracy={accuracy:.4f}")

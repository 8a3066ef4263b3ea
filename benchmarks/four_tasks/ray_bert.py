"""Ray Train: BERT, by the Trainer of transformers in each worker."""

import sys

import pandas as pd
import ray
import ray.train
import ray.train.huggingface.transformers
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config):
    from transformers import (
        AutoTokenizer,
        BertConfig,
        BertForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    fast = AutoTokenizer.from_pretrained(config["tokenizer"])
    rows = pd.read_parquet(config["texts"]).sample(frac=1, random_state=1)
    ways = sorted(rows["way"].unique())
    encoded = [
        {**fast(text, truncation=True, max_length=16), "labels": ways.index(way)}
        for text, way in zip(rows["text"], rows["way"])
    ]
    cut = int(0.8 * len(encoded))
    bert = BertConfig(
        vocab_size=len(fast),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=3,
    )
    arguments = TrainingArguments(
        f"{config['folder']}/out",
        per_device_train_batch_size=8,
        num_train_epochs=5,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    trainer = Trainer(
        BertForSequenceClassification(bert),
        arguments,
        train_dataset=encoded[:cut],
        eval_dataset=encoded[cut:],
        data_collator=DataCollatorWithPadding(fast),
        compute_metrics=lambda found: {
            "accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())
        },
    )
    trainer = ray.train.huggingface.transformers.prepare_trainer(trainer)
    torch.manual_seed(0)
    trainer.train()
    scores = trainer.evaluate()
    trainer.save_model(f"{config['folder']}/model")
    return scores["eval_accuracy"]


if __name__ == "__main__":
    ray.init(num_cpus=4)
    trainer = TorchTrainer(
        train,
        train_loop_config={"texts": sys.argv[1], "tokenizer": sys.argv[2], "folder": sys.argv[3]},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=sys.argv[3]),
    )
    print(f"accuracy={trainer.fit().return_value:.4f}")

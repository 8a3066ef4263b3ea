"""Lightning: BERT."""

import sys

import lightning.pytorch as lightning
import pandas as pd
import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, DataCollatorWithPadding

fast = AutoTokenizer.from_pretrained(sys.argv[2])
rows = pd.read_parquet(sys.argv[1]).sample(frac=1, random_state=1)
ways = sorted(rows["way"].unique())
encoded = [
    {**fast(text, truncation=True, max_length=16), "labels": ways.index(way)}
    for text, way in zip(rows["text"], rows["way"])
]
train, test = encoded[: int(0.8 * len(encoded))], encoded[int(0.8 * len(encoded)) :]


class Lit(lightning.LightningModule):
    def __init__(self, config):
        super().__init__()
        self.bert = BertForSequenceClassification(config)

    def training_step(self, batch, batch_idx):
        return self.bert(**batch).loss

    def validation_step(self, batch, batch_idx):
        right = self.bert(**batch).logits.argmax(1) == batch["labels"]
        self.log("accuracy", right.float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


config = BertConfig(
    vocab_size=len(fast),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    num_labels=3,
)
model, collate = Lit(config), DataCollatorWithPadding(fast)
trainer = lightning.Trainer(
    max_epochs=5, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False
)
trainer.fit(
    model,
    DataLoader(train, 16, shuffle=True, collate_fn=collate),
    DataLoader(test, 64, collate_fn=collate),
)
model.bert.save_pretrained("bert")
fast.save_pretrained("bert")
print(f"accuracy={trainer.callback_metrics['accuracy']:.4f}")

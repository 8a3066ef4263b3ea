"""The code that people bring."""

from functools import partial

import torch
from safetensors.torch import save_file
from torchmetrics.classification import MulticlassAccuracy
from words import Net, Words, collate

from sparkdl import Dataset, Trainer, session
from sparkdl.train import MaxEpoch

spark = session.builder("local[2]").getOrCreate()
with (
    Dataset.from_torch(Words(600), spark=spark, collate=collate) as data,
    Dataset.from_torch(Words(200, seed=1), spark=spark, collate=collate) as held,
):
    trainer = Trainer(
        Net(),
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=1e-2),
        metrics={"accuracy": MulticlassAccuracy(2)},
        batch_size=64,
        end_when=MaxEpoch(3),
    )
    result = trainer.fit(data, held)
save_file(result.module.state_dict(), "words.safetensors")
print(f"accuracy={result.scores['val/accuracy']:.4f}")

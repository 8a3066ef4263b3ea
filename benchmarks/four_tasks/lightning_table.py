"""Lightning: the table, which leaves Spark as files."""

import sys

import lightning.pytorch as lightning
import pandas as pd
import torch
from net import Net
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

TEXTS, NUMBERS = ["job", "city"], ["age", "income", "member"]


class Lit(lightning.LightningModule):
    def __init__(self, *sizes):
        super().__init__()
        self.net = Net(*sizes)

    def training_step(self, batch, batch_idx):
        *inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.net(*inputs), labels)

    def validation_step(self, batch, batch_idx):
        *inputs, labels = batch
        self.log("accuracy", (self.net(*inputs).argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


rows = pd.read_parquet(sys.argv[1]).sample(frac=1, random_state=1)
train, test = rows[: int(0.8 * len(rows))], rows[int(0.8 * len(rows)) :]
moments = {
    name: (train[name].astype("float32").mean(), train[name].astype("float32").std()) for name in NUMBERS
}
counts = {name: train[name].value_counts() for name in TEXTS}
known = {
    name: {value: n + 2 for n, value in enumerate(found.index[found >= 10])} for name, found in counts.items()
}
labels = sorted(train["bought"].unique())


def encoded(rows):
    numbers, categories = [], []
    for name in NUMBERS:
        values = torch.tensor(rows[name].astype("float32").to_numpy())
        mean, deviation = moments[name]
        numbers += [torch.where(values.isnan(), 0, (values - mean) / deviation), values.isnan().float()]
    for name in TEXTS:
        categories.append(torch.tensor([0 if v is None else known[name].get(v, 1) for v in rows[name]]))
    classes = torch.tensor([labels.index(v) for v in rows["bought"]])
    return TensorDataset(torch.stack(categories, 1), torch.stack(numbers, 1), classes)


model = Lit([len(known[name]) + 2 for name in TEXTS], 2 * len(NUMBERS), len(labels))
trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False
)
trainer.fit(model, DataLoader(encoded(train), 256, shuffle=True), DataLoader(encoded(test), 256))
save_file(model.net.state_dict(), "table.safetensors")
print(f"accuracy={trainer.callback_metrics['accuracy']:.4f}")

"""Lightning: the code that people bring."""

import lightning.pytorch as lightning
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader
from words import Net, Words, collate


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.net(*inputs), labels)

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        self.log("accuracy", (self.net(*inputs).argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


model = Lit()
trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False
)
trainer.fit(
    model,
    DataLoader(Words(600), 64, shuffle=True, collate_fn=collate),
    DataLoader(Words(200, 1), 200, collate_fn=collate),
)
save_file(model.net.state_dict(), "words.safetensors")
print(f"accuracy={trainer.callback_metrics['accuracy']:.4f}")

"""LightningModules trained by Spark jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.data import as_dataset, partitioned
from support.models import mlp
from support.reference import assert_bit_equal, plain, threads
from torch import nn

from sparkdl import Trainer
from sparkdl.train import MaxEpoch

lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")


class Digits(lightning.LightningModule):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


@pytest.mark.jvm
def test_a_lightning_module_needs_neither_loss_nor_optimizer(spark: Any) -> None:
    parts = partitioned([200])
    with as_dataset(spark, parts) as data:
        trainer = Trainer(Digits(), batch_size=60, seed=3, end_when=MaxEpoch(3), progress=False)
        result = trainer.fit(data, validation=data)
        predicted = trainer.predict(data)
    made: list[Any] = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made.append(torch.optim.Adam(parameters, lr=1e-2))
        made.append(torch.optim.lr_scheduler.StepLR(made[0], 1, gamma=0.5))
        return made[0]

    def step(iteration: int, *_: Any) -> None:
        if (iteration + 1) % 4 == 0:
            made[1].step()

    with threads(2):
        expected = plain(mlp(), nn.CrossEntropyLoss(), optimizer, parts, 60, 12, 3, on_step=step)
    assert_bit_equal(result.module.net, expected)
    assert result.history.column("lr") == [1e-2] * 4 + [5e-3] * 4 + [2.5e-3] * 4
    assert result.history.column("extras.train_loss") == pytest.approx(result.history.column("loss"))
    assert result.scores["val/loss"] < result.history[0]["loss"]
    assert predicted.shape == (200, 10)


def test_another_optimizer_takes_the_place_of_the_modules_own_with_its_schedule() -> None:
    own = Trainer(Digits())
    other = Trainer(Digits(), optimizer=partial(torch.optim.SGD, lr=0.5))
    assert own.config.schedule is not None
    assert other.config.schedule is None  # it would have brought the learning rate of the module's own


class Logs(Digits):
    def on_train_epoch_start(self) -> None:
        self.weight = 1.0 / (1 + self.current_epoch)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("step", self.global_step)
        self.log("weight", self.weight)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y))
        self.log("row", x.mean(dim=1).mean())
        self.log("epoch_now", self.current_epoch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


def test_logs_of_validations_are_scores_and_steps_know_their_place(in_process: Any) -> None:
    parts = partitioned([130, 70])
    with as_dataset(in_process, parts) as data:
        options: dict[str, Any] = {"batch_size": 100, "end_when": MaxEpoch(3), "progress": False}
        trainer = Trainer(Logs(), validation_batch_size=33, **options)
        result = trainer.fit(data, validation=data)
    x = torch.from_numpy(np.concatenate([part.x for part in parts]))
    assert result.history.column("extras.step") == [0, 1, 2, 3, 4, 5]
    assert result.history.column("extras.weight") == pytest.approx([1, 1, 1 / 2, 1 / 2, 1 / 3, 1 / 3])
    assert [row["epoch_now"] for row in result.history.validations] == [0, 1, 2]
    assert result.scores["val/row"] == pytest.approx(x.mean().item())
    assert result.scores["val/val_loss"] == pytest.approx(result.scores["val/loss"])
    assert result.state.best_score == min(row["val_loss"] for row in result.history.validations)
    assert "val/train_loss" not in result.scores

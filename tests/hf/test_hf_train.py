"""Training with the engine: a model's own loss, losses over logits, adapters, collators of transformers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.hf import TEXTS, bert, llama, lora, tokenizer
from support.reference import assert_bit_equal
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer
from sparkdl.data import Pad
from sparkdl.train import Checkpoint, MaxIteration
from sparkdl.train.checkpoint import latest, read_point

SGD = partial(torch.optim.SGD, lr=0.05)
OPTIONS: dict[str, Any] = {"optimizer": SGD, "progress": False, "batch_size": 8}
IDS = np.random.default_rng(0).integers(5, 300, (32, 6))
MASK = np.ones_like(IDS)
LABEL = IDS[:, 0] % 2


class Texts(torch.utils.data.Dataset[Any]):
    """Rows of different lengths, by the names of a model's arguments."""

    def __init__(self, labels: bool = False) -> None:
        encoded = tokenizer()(TEXTS[:24], truncation=True, max_length=24)
        self.rows = [torch.tensor(ids) for ids in encoded["input_ids"]]
        self.labels = labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        ids = self.rows[index]
        row = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return (row, ids) if self.labels else row


def data(spark: Any, **options: Any) -> Dataset:
    rows = {"input_ids": IDS, "attention_mask": MASK}
    return Dataset.from_numpy(rows, LABEL, spark=spark, num_partitions=1, **options)


def by_hand(model: Any, step: Any, steps: int = 3) -> Any:
    model.train()
    optimizer = SGD([p for p in model.parameters() if p.requires_grad])
    for n in range(steps):
        rows = slice(8 * n, 8 * n + 8)
        optimizer.zero_grad()
        step(model, torch.from_numpy(IDS[rows]), torch.from_numpy(LABEL[rows])).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()])
def test_a_fit_has_the_bits_of_plain_torch(spark: Any, loss: Any) -> None:
    def step(model: Any, ids: Any, label: Any) -> Any:
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=label)
        return output.loss if loss is None else loss(output.logits, label)

    with data(spark) as rows:
        result = Trainer(bert(), loss=loss, shuffle=False, end_when=MaxIteration(3), **OPTIONS).fit(rows)
    assert_bit_equal(result.module, by_hand(bert(), step))


def test_metrics_see_logits(spark: Any) -> None:
    trainer = Trainer(bert(), metrics=MulticlassAccuracy(2), **OPTIONS)
    with data(spark) as rows:
        scores = trainer.fit(rows, rows).scores
        assert trainer.predict(rows).shape == (32, 2)
    assert set(scores) == {"val/loss", "val/multiclass_accuracy"}


def test_only_adapters_travel_and_are_checkpointed(spark: Any, tmp_path: Path) -> None:
    model = lora(llama())
    adapters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    size = sum(4 * p.numel() for p in adapters.values())
    assert 20 * size < sum(4 * p.numel() for p in model.parameters())
    rows = Dataset.from_numpy({"input_ids": IDS, "attention_mask": MASK}, IDS, spark=spark, num_partitions=2)
    checkpoint = Checkpoint(tmp_path, every=MaxIteration(1))
    with rows:
        result = Trainer(model, hooks=[checkpoint], **OPTIONS).fit(rows)
    header = 64 + 16
    for row in result.history:
        assert size <= row["bytes"]["gradients"] / 2 <= size + header  # two ranks
        assert row["bytes"]["shards"] in (0, size)
    state, before = result.module.state_dict(), model.state_dict()
    changed = {name for name in state if not torch.equal(state[name], before[name])}
    assert changed
    assert changed <= set(adapters)
    point = read_point(latest(tmp_path))
    assert 4 * point.snapshot.params.size == size
    # Adapters alone, as peft saves them; and merged into a plain model.
    result.module.save_pretrained(tmp_path / "adapters")
    saved = tmp_path / "adapters" / "adapter_model.safetensors"
    assert size <= saved.stat().st_size <= size + 8192
    assert json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())["peft_type"] == "LORA"
    ids = torch.from_numpy(IDS[:4])
    expected = result.module.eval()(input_ids=ids).logits
    merged = result.module.merge_and_unload()
    assert type(merged) is transformers.LlamaForCausalLM
    torch.testing.assert_close(merged(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-5)


def test_padding_of_a_causal_model_is_no_label(spark: Any) -> None:
    rows = Texts(labels=True)
    model = llama().eval()
    losses = [model(input_ids=ids[None], labels=ids[None]).loss.item() * (len(ids) - 1) for ids in rows.rows]
    pad = Pad(value={"input_ids": 0, "attention_mask": 0}, lengths=False)
    with Dataset.from_torch(rows, spark=spark, num_partitions=1, collate=pad) as ragged:
        found = Trainer(model, **OPTIONS).evaluate(ragged)["loss"]
    assert found == pytest.approx(sum(losses) / sum(len(ids) - 1 for ids in rows.rows), rel=1e-4)


def test_collators_of_transformers(spark: Any) -> None:
    collator = transformers.DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.3)
    runs = []
    for _ in range(2):
        with Dataset.from_torch(
            Texts(), spark=spark, has_label=False, num_partitions=2, collate=collator
        ) as rows:
            runs.append(Trainer(bert("MaskedLM"), **OPTIONS).fit(rows))
    losses = [[row["loss"] for row in run.history] for run in runs]
    assert losses[0] == losses[1]  # masks follow from the seed
    assert np.isfinite(losses[0]).all()

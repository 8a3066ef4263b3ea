"""All summaries of one real fit, read back."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data import as_dataset, partitioned
from support.models import mlp
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Trainer
from sparkdl.summary import JsonLines, LogLine, TensorBoard
from sparkdl.train import Checkpoint, EveryIterations, GradientNorms, MaxEpoch, latest, load_weights


def test_everything_a_fit_leaves_to_read(spark: Any, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "sparkdl")
    norms = GradientNorms(EveryIterations(2))
    hooks = [
        TensorBoard(str(tmp_path / "events"), histograms=EveryIterations(2), graph=True),
        JsonLines(str(tmp_path / "history.jsonl")),
        Checkpoint(str(tmp_path / "checkpoints"), keep=1),
        LogLine(EveryIterations(2)),
        norms,
    ]
    with as_dataset(spark, partitioned([90, 110])) as data:
        result = Trainer(
            mlp(),
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.Adam, lr=1e-3),
            metrics={"accuracy": MulticlassAccuracy(10)},
            batch_size=60,
            end_when=MaxEpoch(2),
            hooks=hooks,
            timeline=str(tmp_path / "timeline.json"),
            progress=False,
        ).fit(data, validation=data)

    events = EventAccumulator(str(tmp_path / "events"), size_guidance={"histograms": 0, "scalars": 0})
    events.Reload()
    tags = events.Tags()
    (loss_tag,) = [tag for tag in tags["scalars"] if tag.endswith("loss") and "val" not in tag]
    losses = [event.value for event in events.Scalars(loss_tag)]
    assert losses == pytest.approx(result.history.column("loss"), rel=1e-6)
    assert events.Scalars("val/accuracy")[-1].value == pytest.approx(result.scores["val/accuracy"])
    assert any("0.weight" in tag for tag in tags["histograms"])
    assert any("grad" in tag for tag in tags["histograms"])
    assert tags["graph"]

    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert len(lines) == 1 + 8 + 2 + 1

    trace = json.loads((tmp_path / "timeline.json").read_text())
    trace = trace if isinstance(trace, list) else trace["traceEvents"]
    names = {event["name"] for event in trace}
    assert {"compute", "update", "weights_in"} <= names
    assert all(event["dur"] >= 0 for event in trace if event["ph"] == "X")

    restored = mlp(seed=1)
    load_weights(latest(str(tmp_path / "checkpoints")), restored)
    for name, value in result.module.state_dict().items():
        assert torch.equal(restored.state_dict()[name], value)

    assert len(norms.rows) == 3
    assert any("loss" in record.message for record in caplog.records)
    frame = result.history.to_pandas()
    assert len(frame) == 8
    assert frame["loss"].tolist() == result.history.column("loss")

"""Rows of different lengths straight from a DataFrame: ``Trainer.fit(df, collate=)``."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from sparkdl import Dataset, Trainer
from sparkdl.data import Pad
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.train import MaxEpoch


@pytest.fixture
def spark(in_process: Any) -> Any:
    return in_process


class Mean(nn.Module):
    """The mean over a row's words, whatever the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        known = torch.arange(words.shape[1]) < lengths[:, None]
        return self.head((self.embed(words) * known[..., None]).sum(1) / lengths[:, None])


def frame() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    rows = [draw.integers(1, 9, draw.integers(1, 6)).tolist() for _ in range(60)]
    return pd.DataFrame({"words": rows, "label": [int(max(row) > 6) for row in rows]})


def trainer() -> Trainer:
    torch.manual_seed(0)
    adam = partial(torch.optim.Adam, lr=0.05)
    loss = nn.CrossEntropyLoss()
    return Trainer(Mean(), loss=loss, optimizer=adam, batch_size=20, end_when=MaxEpoch(8), progress=False)


def collate(rows: list[Any]) -> Any:
    """As torch's ``collate_fn``; every row must have a label."""
    words = [torch.as_tensor(words) for words, _ in rows]
    lengths = torch.tensor([len(row) for row in words])
    padded = nn.utils.rnn.pad_sequence(words, batch_first=True)
    return (padded, lengths), torch.tensor([int(label) for _, label in rows])


@pytest.mark.parametrize("collate", [Pad(), collate])
def test_rows_of_different_lengths_need_no_dataset(spark: Any, collate: Any) -> None:
    df = frame()
    fits = trainer()
    result = fits.fit(df, features="words", label="label", collate=collate, validation=0.2)
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert "val/loss" in result.scores
    outputs = fits.predict(df)
    (padded, lengths), labels = Pad()([(np.array(w), np.array(y)) for w, y in df.itertuples(index=False)])
    with torch.no_grad():
        expected = result.module(padded, lengths)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    loss = nn.functional.cross_entropy(expected, labels)
    assert fits.evaluate(df)["loss"] == pytest.approx(loss.item(), abs=1e-5)
    # Batches are made so of other columns, too.
    others = df.rename(columns={"words": "text", "label": "kind"})
    assert fits.evaluate(others, features="text", label="kind")["loss"] == fits.evaluate(df)["loss"]
    renamed = df.rename(columns={"words": "text"})
    np.testing.assert_array_equal(fits.predict(renamed, features="text"), outputs)


def test_rows_without_a_label_are_predicted(spark: Any) -> None:
    fits = trainer()
    fits.fit(frame(), features="words", label="label", collate=Pad())
    np.testing.assert_allclose(fits.predict(frame()[["words"]]), fits.predict(frame()), atol=1e-6)


def test_what_is_said_of_rows_of_different_lengths(spark: Any) -> None:
    with pytest.raises(DataError, match=r"collate=Pad\(\) of a Dataset or of Trainer.fit pads each batch"):
        trainer().fit(frame(), features="words", label="label")
    with (
        Dataset.from_dataframe(frame(), features="words", label="label", collate=Pad()) as data,
        pytest.raises(ConfigError, match="collate=...: a Dataset knows its columns"),
    ):
        trainer().fit(data, collate=Pad())

"""A fit on windows in the store has the bits of plain torch on windows that numpy copies; without Spark."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from support.reference import Partition, assert_bit_equal, plain, threads

from sparkdl import Dataset, Trainer
from sparkdl.access.alone import AloneAccess, LazyFrames
from sparkdl.data.store.build import StoreSource
from sparkdl.data.store.partition import read_rows
from sparkdl.nn.models.forecaster import Forecaster, absolute_error
from sparkdl.series.frequency import Frequency
from sparkdl.series.layout import PanelLayout
from sparkdl.series.source import Cut, _plan, write_windows
from sparkdl.session import TRANSPORT
from sparkdl.train import MaxEpoch

LAYOUT = PanelLayout(id="id", time="time", target="y", frequency=Frequency(), steps=6, horizon=2)


class OneToken(StoreSource):
    def __init__(self, token: Any) -> None:
        self.token = token

    def peek(self, plan: Any, rows: int) -> Any:
        return read_rows(self.token, np.arange(rows))

    def tokens(self, access: Any, plan: Any, store: str, partitions: Any) -> Any:
        return LazyFrames(1, lambda _: [self.token.to_frame()])


def test_bits_of_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    values = np.random.default_rng(0).normal(5, 2, (3, 20))
    ids = np.repeat(np.arange(3), 20)
    columns = {"__hash": ids, "__id": ids, "__time": np.tile(np.arange(20), 3), "target": values.ravel()}
    token = write_windows("store", 0, LAYOUT, Cut(), pa.table(columns).to_batches())
    scaled = ((values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)).astype(np.float32)
    windows = np.concatenate([np.lib.stride_tricks.sliding_window_view(row, 8) for row in scaled])
    torch.manual_seed(3)
    module = Forecaster(6, 2, blocks=2, width=8)
    optimizer = partial(torch.optim.Adam, lr=1e-3)
    with threads(1):
        rows = [Partition(windows[:, :6].copy(), windows[:, 6:].copy())]
        expected = plain(
            module, lambda output, label: absolute_error(output, label).mean(), optimizer, rows, 8, 10, 3
        )
        access = AloneAccess({TRANSPORT: "shuffle"})
        data = Dataset(None, _plan(LAYOUT), OneToken(token), 1, None, access=access)  # type: ignore[arg-type]
        assert len(data) == len(windows) == 39
        trainer = Trainer(
            module,
            loss=absolute_error,
            optimizer=optimizer,
            batch_size=8,
            seed=3,
            end_when=MaxEpoch(2),
            progress=False,
        )
        found = trainer.fit(data)
    assert_bit_equal(found.module, expected)

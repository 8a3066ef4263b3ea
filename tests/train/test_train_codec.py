"""Training with gradients in half precision on their way."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.data import as_dataset, partitioned
from support.models import mlp
from torch import nn

from sparkdl import Trainer
from sparkdl.exceptions import ConfigError, NonFiniteError
from sparkdl.train import MaxEpoch, TopK

PARTS = partitioned([300, 400])


def train(spark: Any, codec: Any, **options: Any) -> Any:
    with as_dataset(spark, PARTS) as data:
        return Trainer(
            options.pop("module", None) or mlp(),
            loss=nn.CrossEntropyLoss(),
            optimizer=partial(torch.optim.Adam, lr=5e-3),
            batch_size=100,
            progress=False,
            end_when=MaxEpoch(3),
            num_shards=2,
            gradient_codec=codec,
            **options,
        ).fit(data)


def test_half_as_many_bytes_and_nearly_the_same_losses(spark: Any) -> None:
    full = train(spark, "fp32")
    for codec in ("bf16", "fp16"):
        half = train(spark, codec)
        np.testing.assert_allclose(half.history.column("loss"), full.history.column("loss"), rtol=0.02)
        assert half.history.column("loss") != full.history.column("loss")
        received = half.history[-1]["bytes"]["gradients"] / full.history[-1]["bytes"]["gradients"]
        assert received < 0.6


def test_gradients_that_are_not_finite_are_found(spark: Any) -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Any) -> Any:
            y = self.inner(x)
            if len(x) > 2:
                y.register_hook(lambda gradient: gradient * float("inf"))
            return y

    for codec in ("bf16", "fp16", "int8", TopK(0.1)):
        with pytest.raises(NonFiniteError, match="inner"):
            train(spark, codec, module=Bad())


def test_an_unknown_codec() -> None:
    with pytest.raises(
        ConfigError, match=r"gradient_codec='int4': expected one of 'fp32', 'bf16', 'fp16', 'int8'"
    ):
        Trainer(mlp(), loss=nn.MSELoss(), optimizer=torch.optim.SGD, gradient_codec="int4")

"""Sparse buffers travel with the module; one that forward changes is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparkdl import Dataset, Trainer
from sparkdl.exceptions import ModelError
from sparkdl.nn.flat import FlatModule
from sparkdl.train import MaxIteration

LAYOUTS = ["coo", "csr"]


class Graph(nn.Module):
    def __init__(self, layout: str, changes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        dense = torch.tensor([[0.0, 1.0, 0.5], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
        self.register_buffer("adjacency", getattr(dense, f"to_sparse_{layout}")())
        self.register_buffer("mean", torch.zeros(3))
        self.layer, self.changes = nn.Linear(3, 1), changes

    def forward(self, x: Tensor) -> Tensor:
        if self.changes:
            self.adjacency = self.adjacency * 0.5
        return self.layer((self.adjacency @ x.T).T).squeeze(1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_sparse_adjacency_trains_as_in_torch(spark: Any, layout: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 3, generator=generator), torch.randn(8, generator=generator)
    trainer = Trainer(
        Graph(layout),
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=8,
        end_when=MaxIteration(3),
        shuffle=False,
        progress=False,
    )
    with Dataset.from_numpy(x.numpy(), y.numpy(), num_partitions=1) as data:
        found = trainer.fit(data).module
    plain = Graph(layout)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(found.layer.weight, plain.layer.weight)
    assert torch.equal(found.adjacency.to_dense(), plain.adjacency.to_dense())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_sparse_buffer_that_changes_is_refused(layout: str) -> None:
    replica = FlatModule(Graph(layout, changes=True))
    assert [place.name for place in replica.layout.buffers] == ["mean"]
    replica.check_gradients()
    replica.module(torch.ones(2, 3))
    with pytest.raises(ModelError, match="'adjacency', which is sparse"):
        replica.check_gradients()

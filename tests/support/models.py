"""Modules that the tests train."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp(inputs: int = 64, outputs: int = 10, seed: int = 0) -> nn.Module:
    """A small perceptron with reproducible weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs))


class Everything(nn.Module):
    """BatchNorm, dropout, tied and frozen weights, an unused parameter, an integer buffer."""

    def __init__(self, inputs: int = 64, outputs: int = 10, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(inputs, 24)
        self.norm = nn.BatchNorm1d(24)
        self.tied_a = nn.Linear(24, 24)
        self.tied_b = nn.Linear(24, 24)
        self.tied_b.weight = self.tied_a.weight
        self.frozen = nn.Linear(24, 24)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(24, outputs)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.tied_b(torch.relu(self.tied_a(x))))
        return self.head(self.dropout(self.frozen(x))) * (1 + self.scale)


class TwoTowers(nn.Module):
    """Two keyword inputs, a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 4)
        self.dense = nn.Linear(3, 4)
        self.head = nn.Linear(8, 1)

    def forward(self, item: Tensor, context: Tensor) -> dict[str, Tensor]:
        both = torch.cat([self.embed(item), self.dense(context)], dim=-1)
        return {"score": self.head(both).squeeze(-1), "code": both}


class VisitCounter(nn.Module):
    """Its weight of row i falls by 1/batch each time row i is visited (with SGD, lr 1)."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.visits = nn.Embedding(rows, 1)
        nn.init.zeros_(self.visits.weight)

    def forward(self, row: Tensor) -> Tensor:
        return self.visits(row)


class Factors(nn.Module):
    """Two tables and a dense part, with a buffer that every batch changes."""

    def __init__(self, sparse: bool = True, users: int = 400, items: int = 90, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.user = nn.Embedding(users, width, sparse=sparse)
        self.item = nn.Embedding(items, width, sparse=sparse)
        self.norm = nn.BatchNorm1d(2 * width)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        both = torch.cat([self.user(pairs[:, 0]), self.item(pairs[:, 1])], 1)
        return self.head(torch.relu(self.norm(both))).squeeze(-1)


class MeanOfTokens(nn.Module):
    """Means of token vectors under a mask: rows may be filled up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        share = attention_mask / attention_mask.sum(1, keepdim=True).clamp(min=1)
        return (self.table(input_ids) * share[:, :, None]).sum(1)


class SumOfTokens(nn.Module):
    """Sums of token vectors: what fills rows up would change them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 2)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.table(input_ids).sum(1)

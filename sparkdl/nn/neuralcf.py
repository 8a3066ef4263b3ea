"""Neural collaborative filtering."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class NeuralCF(nn.Module):
    """NeuMF: a matrix factorisation and a multi-layer perceptron over user and item embeddings.

    He et al., "Neural Collaborative Filtering", WWW 2017, equation 12.

    Args:
        users: number of users.
        items: number of items.
        embedding: width of the perceptron's embeddings.
        mf_embedding: width of the factorisation's embeddings.
        hidden: widths of the perceptron's layers.

    Shapes:
        input: user ids (rows,) and item ids (rows,), integers from 0.
        output: (rows,), the logit that the user interacts with the item.
    """

    def __init__(
        self,
        users: int,
        items: int,
        embedding: int = 64,
        mf_embedding: int = 64,
        hidden: Sequence[int] = (128, 64, 32),
    ) -> None:
        super().__init__()
        self.user = nn.Embedding(users, embedding)
        self.item = nn.Embedding(items, embedding)
        self.mf_user = nn.Embedding(users, mf_embedding)
        self.mf_item = nn.Embedding(items, mf_embedding)
        for table in (self.user, self.item, self.mf_user, self.mf_item):
            nn.init.normal_(table.weight, std=0.01)
        widths = [2 * embedding, *hidden]
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1] + mf_embedding, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the logit of each (user, item) pair."""
        deep = self.mlp(torch.cat([self.user(user), self.item(item)], dim=-1))
        shallow = self.mf_user(user) * self.mf_item(item)
        logit: Tensor = self.head(torch.cat([deep, shallow], dim=-1))
        return logit.squeeze(-1)

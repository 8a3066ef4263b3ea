"""Neural collaborative filtering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_sizes
from sparkdl.nn.models.parts import Cardinality, check_cardinalities, column_table, perceptron


class NeuralCF(nn.Module):
    """NeuMF: a matrix factorisation and a multi-layer perceptron over user and item embeddings.

    He et al., "Neural Collaborative Filtering", WWW 2017, equation 12. The paper's other two models are
    parts of it: ``embedding=0`` leaves GMF, the generalised matrix factorisation of equation 9, and
    ``mf_embedding=0`` leaves the perceptron of equation 10. What the paper calls the number of factors is
    the last of ``hidden``, and ``mf_embedding`` for GMF; each of its layers is half as wide as the one
    before, from ``2 * embedding`` on. Embeddings start as there, normal with a deviation of 0.01.

    Args:
        users: number of users; ``None`` for 64-bit ids of any number, in an
            :class:`sparkdl.nn.EmbeddingVariable`.
        items: number of items, likewise.
        embedding: width of the perceptron's embeddings; 0 to go without the perceptron.
        mf_embedding: width of the factorisation's embeddings; 0 to go without the factorisation.
        hidden: widths of the perceptron's layers.
        sparse: whether the embeddings' gradients are row-sparse, for large tables: optimizers such as
            ``SparseAdam`` then update the rows of the batch only.
        variables: options of the embedding variables, such as ``{"seed": 1, "min_count": 3}``.

    Shapes:
        input: user ids and item ids, integers from 0, of one shape, usually (rows,).
        output: of this shape, the logit that the user interacts with the item.

    Parameters, without embedding variables: (embedding + mf_embedding) * (users + items), those of a
    perceptron from 2 * embedding values through ``hidden``, and hidden[-1] + mf_embedding + 1.

    Raises:
        ConfigError: if a size cannot work.
        IndexError: from ``forward``, if an id is out of range.
    """

    def __init__(
        self,
        users: Cardinality,
        items: Cardinality,
        embedding: int = 64,
        mf_embedding: int = 64,
        hidden: Sequence[int] = (128, 64, 32),
        sparse: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.hidden = tuple(hidden)
        check_cardinalities(name, variables, users=users, items=items)
        check_sizes(name, hidden=self.hidden)
        check_sizes(name, least=0, embedding=embedding, mf_embedding=mf_embedding)
        if not embedding and not mf_embedding:
            raise ConfigError(f"{name}: embedding=0 and mf_embedding=0: expected one of them to be positive")
        self.users, self.items, self.sparse = users, items, sparse
        self.variables = None if variables is None else dict(variables)
        self.embedding, self.mf_embedding = embedding, mf_embedding
        width = mf_embedding
        if embedding:
            self.user = self._table(users, embedding, 0)
            self.item = self._table(items, embedding, 1)
            widths = (2 * embedding, *self.hidden)
            self.mlp = perceptron(widths)
            width += widths[-1]
        if mf_embedding:
            self.mf_user = self._table(users, mf_embedding, 2)
            self.mf_item = self._table(items, mf_embedding, 3)
        for table in self.children():
            if isinstance(table, nn.Embedding):
                nn.init.normal_(table.weight, std=0.01)
        self.head = nn.Linear(width, 1)

    def _table(self, size: Cardinality, width: int, number: int) -> nn.Module:
        return column_table(size, width, self.variables, number, 0.01, self.sparse)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the logit of each (user, item) pair."""
        parts = []
        if self.embedding:
            parts.append(self.mlp(torch.cat([self.user(user), self.item(item)], dim=-1)))
        if self.mf_embedding:
            parts.append(self.mf_user(user) * self.mf_item(item))
        logit: Tensor = self.head(torch.cat(parts, dim=-1))
        return logit.squeeze(-1)

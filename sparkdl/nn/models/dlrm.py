"""DLRM, the deep learning recommendation model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.nn.models.arguments import check_sizes
from sparkdl.nn.models.parts import (
    Cardinality,
    FieldEmbedding,
    check_cardinalities,
    check_numbers,
    perceptron,
)


class DLRM(nn.Module):
    """Embeddings and a bottom perceptron, their inner products, and a top perceptron.

    Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
    2019, section 2.2. The bottom perceptron turns the numeric columns into a vector as wide as an
    embedding; the top one gets this vector and the inner products of all pairs of vectors. The defaults
    are those of section 5.2, with about 540 million parameters on the Criteo Kaggle data.

    Args:
        cardinalities: number of values of each categorical column; ``None`` for 64-bit ids of any number, in
            an :class:`sparkdl.nn.EmbeddingVariable`.
        numbers: number of numeric columns; 13 on Criteo's data.
        embedding: width of each column's embedding, and of the bottom perceptron's output.
        bottom: widths of the bottom perceptron's hidden layers.
        top: widths of the top perceptron's hidden layers.
        variables: options of the embedding variables, such as ``{"seed": 1, "min_count": 3}``.

    Shapes:
        numbers: (rows, numbers), float; counts are usually given as log(1 + count).
        categories: (rows, len(cardinalities)), integers; those of column c from 0 to below its cardinality.
        output: (rows,), the logit of the positive class.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if numbers or categories have another shape.
        IndexError: from ``forward``, if an id is out of range.
    """

    def __init__(
        self,
        cardinalities: Sequence[Cardinality],
        numbers: int,
        embedding: int = 16,
        bottom: Sequence[int] = (512, 256, 64),
        top: Sequence[int] = (512, 256),
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.cardinalities, self.bottom, self.top = tuple(cardinalities), tuple(bottom), tuple(top)
        check_sizes(
            type(self).__name__,
            numbers=numbers,
            embedding=embedding,
            bottom=self.bottom,
            top=self.top,
        )
        check_cardinalities(type(self).__name__, variables, cardinalities=self.cardinalities)
        self.numbers, self.embedding = numbers, embedding
        self.variables = None if variables is None else dict(variables)
        self.embed = FieldEmbedding(self.cardinalities, embedding, variables=variables)
        for table in self.embed.tables:
            if isinstance(table, nn.Embedding):
                # As in the authors' code: the rarer a table's rows are seen, the smaller they start.
                bound = table.num_embeddings**-0.5
                nn.init.uniform_(table.weight, -bound, bound)
        self.below = perceptron((numbers, *self.bottom, embedding))
        vectors = len(self.cardinalities) + 1
        widths = (embedding + vectors * (vectors - 1) // 2, *self.top)
        self.above = perceptron(widths)
        self.head = nn.Linear(widths[-1], 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Return the logit of each row."""
        check_numbers(numbers, self.numbers, categories.shape[0])
        dense = self.below(numbers)
        vectors = torch.cat([dense.unsqueeze(1), self.embed(categories)], 1)
        products = vectors @ vectors.transpose(1, 2)
        one, other = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1, device=products.device)
        products = products[:, one, other]
        logit: Tensor = self.head(self.above(torch.cat([dense, products], 1)))
        return logit.squeeze(1)

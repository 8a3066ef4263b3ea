"""DeepFM: a factorisation machine and a perceptron over the same embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.nn.models.arguments import check_share, check_sizes
from sparkdl.nn.models.parts import (
    Cardinality,
    FieldEmbedding,
    check_cardinalities,
    check_numbers,
    perceptron,
    seeds_after,
)


class DeepFM(nn.Module):
    """A factorisation machine beside a perceptron; both read the same embeddings.

    Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017, equations
    1, 2 and 4. Unlike Wide & Deep it needs no crosses made by hand. The defaults are those of section 3.1.
    A numeric column is a field as well, whose vector and weight are multiplied by its value.

    Args:
        cardinalities: number of values of each categorical column; ``None`` for 64-bit ids of any number, in
            an :class:`sparkdl.nn.EmbeddingVariable`.
        numbers: number of numeric columns.
        embedding: width of each field's vector.
        hidden: widths of the perceptron's layers.
        dropout: share of each hidden layer's values that training sets to zero.
        variables: options of the embedding variables, such as ``{"seed": 1, "min_count": 3}``.

    Shapes:
        categories: (rows, len(cardinalities)), integers; those of column c from 0 to below its cardinality.
        numbers: (rows, numbers), float; left out if there are none.
        output: (rows,), the logit of the positive class.

    Parameters, without embedding variables: (embedding + 1) * (sum(cardinalities) + numbers) + 1, and those
    of a perceptron from embedding * (len(cardinalities) + numbers) values through ``hidden`` to one, without
    the last bias.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if categories or numbers have another shape.
        IndexError: from ``forward``, if an id is out of range.
    """

    def __init__(
        self,
        cardinalities: Sequence[Cardinality],
        numbers: int = 0,
        embedding: int = 10,
        hidden: Sequence[int] = (400, 400, 400),
        dropout: float = 0.5,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.cardinalities, self.hidden = tuple(cardinalities), tuple(hidden)
        name = type(self).__name__
        check_cardinalities(name, variables, cardinalities=self.cardinalities)
        check_sizes(name, embedding=embedding, hidden=self.hidden)
        check_sizes(name, least=0, numbers=numbers)
        check_share(name, dropout=dropout)
        self.numbers, self.embedding, self.dropout = numbers, embedding, dropout
        self.bias = nn.Parameter(torch.zeros(1))
        self.variables = None if variables is None else dict(variables)
        self.weight_of_value = FieldEmbedding(self.cardinalities, 1, variables=variables)
        after = seeds_after(variables, len(self.cardinalities))
        self.vector_of_value = FieldEmbedding(self.cardinalities, embedding, variables=after)
        self.weight_of_number = nn.Parameter(torch.zeros(numbers)) if numbers else None
        self.vector_of_number = nn.Parameter(0.01 * torch.randn(numbers, embedding)) if numbers else None
        widths = (embedding * (len(self.cardinalities) + numbers), *self.hidden)
        self.deep = perceptron(widths, dropout)
        self.head = nn.Linear(widths[-1], 1, bias=False)

    def forward(self, categories: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Return the logit of each row."""
        check_numbers(numbers, self.numbers, categories.shape[0])
        first_order = self.bias + self.weight_of_value(categories).sum((1, 2))
        vectors = self.vector_of_value(categories)
        if numbers is not None and self.weight_of_number is not None and self.vector_of_number is not None:
            first_order = first_order + numbers @ self.weight_of_number
            vectors = torch.cat([vectors, numbers.unsqueeze(2) * self.vector_of_number], 1)
        deep = self.head(self.deep(vectors.flatten(1))).squeeze(1)
        logit: Tensor = first_order + pairwise_products(vectors) + deep
        return logit


def pairwise_products(vectors: Tensor) -> Tensor:
    """Return the sum of the inner products of all pairs of a row's vectors, shape (rows, fields, width).

    In time linear in the number of vectors: half of the squared sum less the sum of squares. Rendle,
    "Factorization Machines", 2010, lemma 3.1.
    """
    return 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)

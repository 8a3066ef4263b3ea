"""Wide & Deep learning for tables with many categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.nn.embedding import EmbeddingBagVariable
from sparkdl.nn.models.arguments import check_share, check_sizes
from sparkdl.nn.models.parts import (
    Cardinality,
    FieldEmbedding,
    check_cardinalities,
    check_numbers,
    perceptron,
)


class WideAndDeep(nn.Module):
    """A linear model over sparse features beside a perceptron over embeddings, trained together.

    Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016, equation 3 and figure 4. The wide
    part memorises: it has one weight for each value and each cross of values. The deep part generalises.
    The paper trains the wide part by FTRL with an L1 penalty and the deep part by AdaGrad, which is
    ``optimizer={"wide.*": partial(Ftrl, l1=...), "*": partial(torch.optim.Adagrad, lr=...)}`` here.

    Args:
        wide_features: number of weights of the wide part; crosses are usually hashed into that many.
            ``None`` for 64-bit ids of any number: crosses need no buckets then.
        cardinalities: number of values of each categorical column of the deep part; ``None`` for 64-bit ids
            of any number, in an :class:`sparkdl.nn.EmbeddingVariable`.
        numbers: number of numeric columns of the deep part.
        embedding: width of each categorical column's embedding; 32 in the paper.
        hidden: widths of the perceptron's layers; 1024, 512 and 256 in the paper.
        dropout: share of each hidden layer's values that training sets to zero.
        variables: options of the embedding variables, such as ``{"seed": 1, "min_count": 3}``.

    Shapes:
        wide: (rows, active), integers from 0 to below ``wide_features``: the features that are 1 in a
            row, the same number in all rows.
        categories: (rows, len(cardinalities)), integers; those of column c from 0 to below its cardinality.
        numbers: (rows, numbers), float, about zero mean and unit deviation; left out if there are none.
        output: (rows,), the logit of the positive class.

    Parameters, without embedding variables: wide_features + 1, width * sum(cardinalities), and those of a
    perceptron from width * len(cardinalities) + numbers values through ``hidden`` to one.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if categories or numbers have another shape.
        IndexError: from ``forward``, if an id is out of range.
    """

    def __init__(
        self,
        wide_features: Cardinality,
        cardinalities: Sequence[Cardinality],
        numbers: int = 0,
        embedding: int = 32,
        hidden: Sequence[int] = (1024, 512, 256),
        dropout: float = 0.0,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.cardinalities, self.hidden = tuple(cardinalities), tuple(hidden)
        name = type(self).__name__
        check_cardinalities(name, variables, wide_features=wide_features, cardinalities=self.cardinalities)
        check_sizes(name, embedding=embedding, hidden=self.hidden)
        check_sizes(name, least=0, numbers=numbers)
        check_share(name, dropout=dropout)
        self.wide_features, self.numbers, self.embedding = wide_features, numbers, embedding
        self.dropout = dropout
        self.variables = None if variables is None else dict(variables)
        self.wide: nn.EmbeddingBag | EmbeddingBagVariable
        if wide_features is None:
            self.wide = EmbeddingBagVariable(1, "sum", **{**(variables or {}), "std": 0.0})
        else:
            self.wide = nn.EmbeddingBag(wide_features, 1, mode="sum")
            nn.init.zeros_(self.wide.weight)
        self.embed = FieldEmbedding(self.cardinalities, embedding, variables=variables)
        widths = (embedding * len(self.cardinalities) + numbers, *self.hidden)
        self.deep = perceptron(widths, dropout)
        self.head = nn.Linear(widths[-1], 1)

    def forward(self, wide: Tensor, categories: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Return the logit of each row."""
        check_numbers(numbers, self.numbers, categories.shape[0])
        deep = self.embed(categories).flatten(1)
        if numbers is not None:
            deep = torch.cat([deep, numbers], 1)
        logit: Tensor = self.wide(wide) + self.head(self.deep(deep))
        return logit.squeeze(1)

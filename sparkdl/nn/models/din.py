"""DIN, the deep interest network: a user's past items, weighed by how they bear on an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ModelError
from sparkdl.nn.models.arguments import check_share, check_sizes
from sparkdl.nn.models.parts import (
    Cardinality,
    FieldEmbedding,
    check_cardinalities,
    check_numbers,
    column_table,
    perceptron,
)


class DIN(nn.Module):
    """A perceptron over an item, the user's past items weighed by attention to it, and other columns.

    Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018, section 4.3. A small
    perceptron compares each past item with the item in question and gives its weight; as in the paper the
    weights are not normalised, so that their sum says how strong the interest is. ReLU stands in for Dice.

    Args:
        items: number of items; ``None`` for 64-bit ids of any number, in an
            :class:`sparkdl.nn.EmbeddingVariable`. Item and past items share one table.
        cardinalities: number of values of each further categorical column, or ``None``; none by default.
        numbers: number of numeric columns.
        embedding: width of each embedding.
        attention: widths of the hidden layers that weigh an item.
        hidden: widths of the perceptron's layers.
        dropout: share of each hidden layer's values that training sets to zero.
        variables: options of the embedding variables, such as ``{"seed": 1, "min_count": 3}``.

    Shapes:
        item: (rows,), integers.
        history: (rows, size), integers: past items, filled up at the end with any number.
        length: (rows,), integers from 0 to ``size``: how many are past items.
        categories: (rows, len(cardinalities)), integers; left out if there are none.
        numbers: (rows, numbers), float; left out if there are none.
        output: (rows,), the logit that the user takes the item.

    Raises:
        ConfigError: if an argument cannot work.
        ModelError: from ``forward``, if a tensor has another shape.
        IndexError: from ``forward``, if an id is out of range.
    """

    def __init__(
        self,
        items: Cardinality,
        cardinalities: Sequence[Cardinality] = (),
        numbers: int = 0,
        embedding: int = 16,
        attention: Sequence[int] = (80, 40),
        hidden: Sequence[int] = (200, 80),
        dropout: float = 0.0,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.cardinalities, self.attention, self.hidden = (
            tuple(cardinalities),
            tuple(attention),
            tuple(hidden),
        )
        name = type(self).__name__
        check_cardinalities(name, variables, items=items, cardinalities=self.cardinalities)
        check_sizes(name, embedding=embedding, attention=self.attention, hidden=self.hidden)
        check_sizes(name, least=0, numbers=numbers)
        check_share(name, dropout=dropout)
        self.items, self.numbers, self.embedding, self.dropout = items, numbers, embedding, dropout
        self.variables = None if variables is None else dict(variables)
        # The seeds of further columns come after that of the items.
        self.item_table = column_table(items, embedding, variables, len(self.cardinalities), 0.01)
        if isinstance(self.item_table, nn.Embedding):
            nn.init.normal_(self.item_table.weight, std=0.01)
        columns = len(self.cardinalities)
        self.embed = FieldEmbedding(self.cardinalities, embedding, variables=variables) if columns else None
        self.weigh = nn.Sequential(
            perceptron((4 * embedding, *self.attention)), nn.Linear((4 * embedding, *self.attention)[-1], 1)
        )
        widths = (embedding * (2 + columns) + numbers, *self.hidden)
        self.deep = perceptron(widths, dropout)
        self.head = nn.Linear(widths[-1], 1)

    def forward(
        self,
        item: Tensor,
        history: Tensor,
        length: Tensor,
        categories: Tensor | None = None,
        numbers: Tensor | None = None,
    ) -> Tensor:
        """Return the logit of each row."""
        check_numbers(numbers, self.numbers, item.shape[0])
        found = None if categories is None else categories.shape[1:]
        if found != ((len(self.cardinalities),) if self.cardinalities else None):
            raise ModelError(
                f"categories has shape {None if categories is None else tuple(categories.shape)}; expected "
                f"one id for each of {len(self.cardinalities)} cardinalities, or none",
                code="model-input",
            )
        target = self.item_table(item)
        parts = [target, self._interest(target, history, length)]
        if categories is not None and self.embed is not None:
            parts.append(self.embed(categories).flatten(1))
        if numbers is not None:
            parts.append(numbers)
        logit: Tensor = self.head(self.deep(torch.cat(parts, 1)))
        return logit.squeeze(1)

    def _interest(self, target: Tensor, history: Tensor, length: Tensor) -> Tensor:
        """Return the weighed sum of past items; nothing is looked up for the filling."""
        real = is_real(history, length)
        past = self.item_table(history[real])
        to = target.unsqueeze(1).expand(*history.shape, target.shape[1])[real]
        weights = self.weigh(torch.cat([past, to, past - to, past * to], 1))
        row = real.nonzero()[:, 0]
        return torch.zeros_like(target).index_add(0, row, weights * past)


def is_real(history: Tensor, length: Tensor) -> Tensor:
    """Return which elements of histories are items, bool, of the shape of ``history``."""
    if history.dim() != 2 or length.shape != history.shape[:1]:
        raise ModelError(
            f"history has shape {tuple(history.shape)} and length {tuple(length.shape)}; expected (rows, "
            "size) and (rows,)",
            code="model-input",
        )
    return torch.arange(history.shape[1], device=history.device) < length.unsqueeze(1)

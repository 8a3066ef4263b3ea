"""Parts that several models of tables share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError


def perceptron(widths: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Return linear layers, each followed by ReLU, and by dropout if there is any.

    Args:
        widths: values before, between and after the layers; one width alone gives no layer.
        dropout: share of each layer's values that training sets to zero.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


class FieldEmbedding(nn.Module):
    """A table of vectors for each categorical column, all of one width.

    Args:
        cardinalities: number of values of each column.
        width: values of a vector.
        deviation: standard deviation of the normal distribution that vectors start with.

    Shapes:
        input: (rows, columns), integers; those of column c from 0 to below ``cardinalities[c]``.
        output: (rows, columns, width).

    Raises:
        ConfigError: if there is no column.
        ModelError: from ``forward``, if the number of columns is another.
        IndexError: from ``forward``, if a value lies outside of its column's cardinality.
    """

    def __init__(self, cardinalities: Sequence[int], width: int, deviation: float = 0.01) -> None:
        super().__init__()
        if not cardinalities:
            raise ConfigError("cardinalities=(): expected at least one categorical column")
        self.cardinalities = tuple(cardinalities)
        self.width = width
        self.deviation = deviation
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in self.cardinalities)
        for table in self.tables:
            nn.init.normal_(table.weight, std=deviation)  # type: ignore[arg-type]

    def forward(self, categories: Tensor) -> Tensor:
        """Return the vectors of each row's values."""
        columns = len(self.tables)
        if categories.dim() != 2 or categories.shape[1] != columns:
            raise ModelError(
                f"categories has shape {tuple(categories.shape)}; expected (rows, {columns}): one id for "
                "each of the cardinalities",
                code="model-input",
            )
        return torch.stack([table(categories[:, c]) for c, table in enumerate(self.tables)], 1)


def check_numbers(numbers: Tensor | None, expected: int, rows: int) -> None:
    """Check the tensor of numeric columns.

    Raises:
        ModelError: if it is missing, not wanted, or of another shape.
    """
    found = None if numbers is None else tuple(numbers.shape)
    if found != ((rows, expected) if expected else None):
        wanted = f"shape ({rows}, {expected})" if expected else "none, as numbers=0 says"
        raise ModelError(f"numbers has shape {found}; expected {wanted}", code="model-input")

"""Parts that several models of tables share."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError, SparkdlWarning
from sparkdl.nn.embedding import EmbeddingVariable


def perceptron(
    widths: Sequence[int], dropout: float = 0.0, activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Return linear layers, each followed by an activation, and by dropout if there is any.

    ``widths`` are those before, between and after the layers; one alone gives no layer.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


Cardinality = int | None
"""Number of values of a categorical column, or ``None`` for 64-bit ids of any number."""


def variable(width: int, options: Mapping[str, Any] | None, number: int = 0, **own: Any) -> EmbeddingVariable:
    """Return the embedding variable of one column, with options of :class:`sparkdl.nn.EmbeddingVariable`.

    A ``seed`` is that of the first column; by their numbers others begin with other vectors. ``own`` are
    options that hold where ``options`` has no others.
    """
    return EmbeddingVariable(width, **{**own, **(seeds_after(options, number) or {})})


def seeds_after(variables: Mapping[str, Any] | None, columns: int) -> Mapping[str, Any] | None:
    """Return options whose seed comes after those of some columns, for tables with other first rows."""
    if variables is None or variables.get("seed") is None:
        return variables
    return {**variables, "seed": (variables["seed"] + columns) % (1 << 63)}


def column_table(
    size: Cardinality,
    width: int,
    variables: Mapping[str, Any] | None,
    number: int,
    deviation: float,
    sparse: bool = False,
) -> nn.Embedding | EmbeddingVariable:
    """Return the table of vectors of one column, an embedding variable if its ``size`` is ``None``.

    ``deviation`` is that with which a variable starts; an ``nn.Embedding`` is as torch makes it, for its
    owner to fill, and its gradients may be row-sparse.
    """
    if size is None:
        return variable(width, variables, number, std=deviation)
    return nn.Embedding(size, width, sparse=sparse)


def check_cardinalities(
    owner: str, variables: Mapping[str, Any] | None, /, **found: Sequence[Cardinality] | Cardinality
) -> None:
    """Check that cardinalities are integers from 1, or ``None``.

    A warning says if options of embedding variables are given, and there are none.
    """
    any_number = False
    for name, value in found.items():
        several = isinstance(value, list | tuple)
        sizes = value if isinstance(value, list | tuple) else [value]
        given = [size for size in sizes if size is not None]
        any_number |= len(given) < len(sizes)
        if any(isinstance(size, bool) or not isinstance(size, Integral) or size < 1 for size in given):
            expected = "integers of at least 1" if several else "an integer of at least 1"
            raise ConfigError(
                f"{owner}: {name}={value!r}: expected {expected}, or None for 64-bit ids of any number"
            )
    if variables and not any_number:
        message = (
            f"{owner}: variables={dict(variables)!r:.100} are options of embedding variables, and there are "
            f"none: that takes None among {', '.join(found)}"
        )
        warnings.warn(SparkdlWarning(message, code="config"), stacklevel=3)


class FieldEmbedding(nn.Module):
    """A table of vectors for each categorical column, all of one width.

    From (rows, columns), integers of which those of column c are from 0 to below its cardinality, to (rows,
    columns, width). Columns of cardinality ``None`` have embedding variables, with options ``variables``.
    ``deviation`` is that of the normal distribution that vectors start with.
    """

    def __init__(
        self,
        cardinalities: Sequence[Cardinality],
        width: int,
        deviation: float = 0.01,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not cardinalities:
            raise ConfigError("cardinalities=(): expected at least one categorical column")
        self.cardinalities = tuple(cardinalities)
        self.width = width
        self.deviation = deviation
        self.variables = None if variables is None else dict(variables)
        self.tables = nn.ModuleList(
            column_table(size, width, variables, c, deviation) for c, size in enumerate(self.cardinalities)
        )
        for table in self.tables:
            if isinstance(table, nn.Embedding):
                nn.init.normal_(table.weight, std=deviation)

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
    """Check the tensor of numeric columns."""
    found = None if numbers is None else tuple(numbers.shape)
    if found != ((rows, expected) if expected else None):
        wanted = f"shape ({rows}, {expected})" if expected else "none, as numbers=0 says"
        raise ModelError(f"numbers has shape {found}; expected {wanted}", code="model-input")

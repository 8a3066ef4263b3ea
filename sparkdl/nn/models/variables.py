"""Embedding variables put together: fewer rows, wider rows for frequent ids, shared rows for rare ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.models.arguments import check_choice, check_sizes
from sparkdl.nn.models.parts import variable

Operation = Literal["multiply", "add", "concatenate"]


class MultiHashVariable(nn.Module):
    """Rows of many ids from two small tables: by the quotient of an id, and by its remainder.

    Shi et al., "Compositional Embeddings Using Complementary Partitions for Memory-Efficient Recommendation
    Systems", KDD 2020. At most ``2 * buckets`` rows tell ``buckets**2`` ids apart: two ids share both rows
    only if they are equal modulo ``buckets**2``.

    Args:
        embedding_dim: elements of the result.
        buckets: most rows of each table.
        operation: ``"multiply"`` or ``"add"`` the two rows, or ``"concatenate"`` rows of half the width.
        variables: options of both tables, as of :class:`sparkdl.nn.EmbeddingVariable`.

    Attributes:
        quotients: rows by quotient.
        remainders: rows by remainder.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self,
        embedding_dim: int,
        buckets: int,
        operation: Operation = "multiply",
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, embedding_dim=embedding_dim)
        check_sizes(name, least=2, buckets=buckets)
        check_choice(name, "operation", operation, ("multiply", "add", "concatenate"))
        if buckets > 3_037_000_499:
            raise ConfigError(
                f"{name}: buckets={buckets}: expected at most 3037000499, whose square fits 64 bits"
            )
        if operation == "concatenate" and embedding_dim % 2:
            raise ConfigError(
                f"{name}: embedding_dim={embedding_dim}: expected an even number to concatenate"
            )
        self.embedding_dim, self.buckets, self.operation = embedding_dim, buckets, operation
        self.variables = None if variables is None else dict(variables)
        width = embedding_dim // 2 if operation == "concatenate" else embedding_dim
        self.quotients = variable(width, variables, 0)
        self.remainders = variable(width, variables, 1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids: a tensor with one more dimension, of ``embedding_dim`` elements."""
        numbers = ids.remainder(self.buckets**2)
        first = self.quotients(numbers.div(self.buckets, rounding_mode="floor"))
        second = self.remainders(numbers.remainder(self.buckets))
        if self.operation == "concatenate":
            return torch.cat([first, second], -1)
        found: Tensor = first * second if self.operation == "multiply" else first + second
        return found


class DynamicDimensionVariable(nn.Module):
    """Rows whose width depends on the id: frequent ids have more elements than rare ones.

    A row is a chain of blocks. The input says how many blocks each id has, for example by its class of
    frequency; the others are zeros, and take no memory.

    Args:
        block_dim: elements of a block.
        blocks: most blocks of an id.
        variables: options of all tables, as of :class:`sparkdl.nn.EmbeddingVariable`.

    Attributes:
        tables: of each block, the rows of the ids that have it.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(self, block_dim: int, blocks: int, variables: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        check_sizes(type(self).__name__, block_dim=block_dim, blocks=blocks)
        self.block_dim, self.blocks = block_dim, blocks
        self.variables = None if variables is None else dict(variables)
        self.tables = nn.ModuleList(variable(block_dim, variables, number) for number in range(blocks))

    def forward(self, ids: Tensor, blocks: Tensor) -> Tensor:
        """Return the rows of ids: a tensor with one more dimension, of ``block_dim * blocks`` elements.

        Args:
            ids: any shape.
            blocks: how many blocks each has, same shape.

        Raises:
            ModelError: if the shapes differ.
        """
        if ids.shape != blocks.shape:
            raise ModelError(
                f"ids have shape {tuple(ids.shape)} and blocks {tuple(blocks.shape)}; expected one shape",
                code="model-input",
            )
        found = []
        for number, table in enumerate(self.tables):
            chosen = blocks > number
            rows = table(ids[chosen])
            found.append(rows.new_zeros(*ids.shape, self.block_dim).index_put((chosen,), rows))
        return torch.cat(found, -1)


class AdaptiveVariable(nn.Module):
    """Own rows for frequent ids, and rows that several rare ids share.

    An :class:`sparkdl.nn.EmbeddingVariable` with ``min_count`` gives all ids without a row one row. Here
    they share ``buckets`` rows, so that rare ids differ from each other. An id that has been looked up often
    enough leaves its bucket.

    Args:
        embedding_dim: elements of a row.
        buckets: rows for ids that have none of their own.
        variables: options of the table of frequent ids, ``min_count`` above all; both have its ``seed``.

    Attributes:
        own: rows of frequent ids.
        shared: rows by the remainder of the id.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(self, embedding_dim: int, buckets: int, variables: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        check_sizes(type(self).__name__, embedding_dim=embedding_dim, buckets=buckets)
        self.embedding_dim, self.buckets = embedding_dim, buckets
        self.variables = None if variables is None else dict(variables)
        self.own = variable(embedding_dim, variables, 0)
        kept = {k: value for k, value in (variables or {}).items() if k in ("seed", "std", "dtype")}
        self.shared = variable(embedding_dim, kept, 1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids: a tensor with one more dimension, of ``embedding_dim`` elements."""
        rows, there = self.own.known(ids)
        # Which ids have a row is known only when the rows are there: all ask for a shared one.
        shared: Tensor = self.shared(ids.remainder(self.buckets))
        return torch.where(there.unsqueeze(-1), rows, shared)

"""Rows of embedding variables for services: exported without anything that only training needs."""

from __future__ import annotations

import os

import numpy as np
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.keyed.mix import Ids
from sparkdl.keyed.served import ROWS_PER_FILE, Rows, ServedRows, write_rows
from sparkdl.keyed.table import KeyedTable
from sparkdl.nn.embedding import EmbeddingVariable, embedding_variables

__all__ = ["ServedRows", "export_rows"]


def export_rows(module: nn.Module, folder: str | os.PathLike[str], per_file: int = ROWS_PER_FILE) -> None:
    """Write the rows of a module's embedding variables, for :class:`ServedRows` or any reader of safetensors.

    Args:
        module: a module that was trained.
        folder: a local folder, empty or not there yet.
        per_file: rows of a file; so many are in memory at a time, beside the module.

    Raises:
        ConfigError: if the module has no embedding variables, or the folder is not empty.
        OSError: if a file cannot be written.
    """
    variables = embedding_variables(module)
    if not variables:
        raise ConfigError(
            f"{type(module).__name__} has no embedding variables, so there are no rows to export"
        )
    write_rows(folder, {name: _rows(variable) for name, variable in variables.items()}, per_file)


def _rows(variable: EmbeddingVariable) -> Rows:
    table: KeyedTable = variable.store
    ids: Ids = np.sort(table.admitted)
    other = variable.weight.detach().cpu().numpy().reshape(-1)
    return Rows(ids, lambda some: table.look_up(some)[1], other)

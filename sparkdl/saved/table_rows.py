"""Rows of embedding variables for services: exported without anything that only training needs."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError
from sparkdl.keyed.mix import Ids
from sparkdl.keyed.table import KeyedTable
from sparkdl.nn.embedding import EmbeddingVariable, embedding_variables
from sparkdl.saved.identity import KEY, Identity, digest_of, identity_of, marked, told
from sparkdl.saved.served_rows import ROWS_PER_FILE, ExportedRows, ServedRows, write_rows

__all__ = ["ServedRows", "export_rows", "read_rows_from", "without_rows"]


_WEIGHTS = "weights"  # checksum of the other weights, beside the identity
_REMEDY = "Export the rows of the module that you save: export_rows(trained), then save without_rows(trained)"


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
    about = {KEY: marked(module).to_json(), _WEIGHTS: digest_of(module)}
    write_rows(folder, {name: _rows(variable) for name, variable in variables.items()}, per_file, about)


def without_rows(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose embedding variables have no rows; these are not copied first.

    Saved like this, a model is small, and reads its rows from files: ``Predictor.load(path, rows=folder)``.
    """
    marked(module)  # the rows stay of one run with the rest
    variables = embedding_variables(module).values()
    return copy.deepcopy(module, {id(own.store): KeyedTable(own.store.rule) for own in variables})


def read_rows_from(module: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Let a module look its rows up in the files of :func:`export_rows`, which are mapped to memory."""
    served, variables = ServedRows(folder), embedding_variables(module)
    for name, variable in variables.items():
        width = variable.store.rule.width
        found = served.width(name) if name in served.names else None
        if found != width:
            what = "is not there" if found is None else f"has rows of {found} elements"
            raise ConfigError(
                f"rows={str(folder)!r}: the table {name!r} {what}, expected rows of {width}; there are "
                f"{', '.join(served.names) or 'no tables'}",
                code="config-saved",
            )
    of_rows, own = _identity(served), identity_of(module)
    if of_rows is None or not of_rows.is_same(own):
        raise ConfigError(
            f"rows={str(folder)!r} and the model do not belong together: the first is of {told(of_rows)}, "
            f"the second of {told(own)}. {_REMEDY}",
            code="config-saved",
        )
    if served.about.get(_WEIGHTS) != digest_of(module):
        raise ConfigError(
            f"rows={str(folder)!r} and the model do not belong together: the rows were exported beside other "
            f"weights. {_REMEDY}",
            code="config-saved",
        )
    for name, variable in variables.items():
        variable.read_from(_Mapped(served, name))


def _identity(served: ServedRows) -> Identity | None:
    try:
        return Identity.parse(served.about.get(KEY))
    except (TypeError, ValueError, LookupError):
        return None


@dataclass(frozen=True, slots=True)
class _Mapped:
    """Rows of a table in files."""

    served: ServedRows
    name: str

    def __call__(self, table: EmbeddingVariable, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of the ids, -1 without a row, and rows."""
        wanted, inverse = np.unique(ids.detach().cpu().numpy().reshape(-1), return_inverse=True)
        there, rows = self.served.find(self.name, wanted)
        places = np.where(there, np.arange(len(wanted)), -1)[inverse]
        device = table.weight.device
        found = torch.from_numpy(places.astype(np.int64)).to(ids.device).view(ids.shape)
        return found, torch.from_numpy(rows).to(device, table.weight.dtype)


def _rows(variable: EmbeddingVariable) -> ExportedRows:
    table: KeyedTable = variable.store
    ids: Ids = np.sort(table.admitted)
    other = variable.weight.detach().cpu().numpy().reshape(-1)
    return ExportedRows(ids, lambda some: table.look_up(some)[1], other)

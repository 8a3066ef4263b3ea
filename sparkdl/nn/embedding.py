"""Embedding variables: tables from any 64-bit id to a row, without a fixed number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkdl.exceptions import ConfigError, ModelError, is_integer, is_number
from sparkdl.keyed.bloom import CountingBloom
from sparkdl.keyed.entries import ROW, Entries
from sparkdl.keyed.mix import Ids
from sparkdl.keyed.table import KeyedTable, TableRule

Mode = Literal["sum", "mean", "max"]
IDENTITY = "_sparkdl_identity"
"""Attribute that says of which run a module is: :mod:`sparkdl.saved.identity`."""
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


RowSource = Callable[["EmbeddingVariable", Tensor], tuple[Tensor, Tensor]]
"""Where the rows of a forward pass come from: gives for each id of a table the number of its row, -1 without
one, and the rows, shape (n, width)."""


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows of some ids, as a leaf that gets their gradient."""

    ids: Ids  # ascending
    # of each id, the number of its row in ``rows``; -1 for ids without a row
    places: np.ndarray[Any, np.dtype[np.int64]]
    rows: Tensor  # shape (n, width)

    def __call__(self, table: EmbeddingVariable, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of the ids, and the rows."""
        wanted = ids.detach().cpu().numpy().reshape(-1)
        # In order first: half the time of a search for each id where it comes.
        found, inverse = np.unique(wanted, return_inverse=True)
        at = np.minimum(np.searchsorted(self.ids, found), max(0, len(self.ids) - 1))[inverse]
        if len(wanted) and (not len(self.ids) or (self.ids[at] != wanted).any()):
            raise ModelError(
                "an embedding variable was asked for ids that were not found when the rows of this iteration "
                "were looked up: the ids must follow from the inputs alone, not from random numbers, weights "
                "or rows",
                code="model-output",
            )
        rows = self.rows if table.weight.requires_grad else self.rows.detach()
        places = self.places[at] if len(self.ids) else at
        return torch.from_numpy(places.astype(np.int64)).to(ids.device).view(ids.shape), rows


@dataclass(frozen=True, slots=True)
class Noted:
    """Notes which ids are asked for; their rows are zeros."""

    ids: list[Ids]

    def __call__(self, table: EmbeddingVariable, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Note the ids."""
        self.ids.append(np.array(ids.detach().cpu().numpy().reshape(-1)))
        return torch.zeros_like(ids, dtype=torch.int64), torch.zeros_like(table.weight)


def _own_rows(table: EmbeddingVariable, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return places and rows of the module's own store."""
    wanted, inverse = np.unique(ids.detach().cpu().numpy().reshape(-1), return_inverse=True)
    there, rows = table.store.look_up(wanted)
    places = np.where(there, np.cumsum(there) - 1, -1)[inverse].astype(np.int64)
    return torch.from_numpy(places).to(ids.device).view(ids.shape), torch.from_numpy(rows).to(
        table.weight.device
    )


class EmbeddingVariable(nn.Module):
    """Looks up a row for each 64-bit id, like ``nn.Embedding``, without a fixed number of rows.

    An id gets its row when it is first trained with, and the row begins with values that follow from ``seed``
    and the id, whatever came before. In a fit each rank owns the rows of some ids, by a hash; the others ask
    for the rows of their batch and send the gradients back. The rows are no parameters of the module. They
    are in its ``state_dict``, as ``ids`` and ``rows``.

    Ids without a row share the row ``weight``: those that a trained module meets for the first time, and with
    ``min_count`` those that are rare. It is a parameter, zero at first, and is trained where rare ids use it.
    The optimizer of ``weight`` is that of all rows; it must be one that leaves rows without gradient alone.

    Args:
        embedding_dim: elements of a row.
        seed: of first rows; drawn from torch's generator if ``None``.
        std: standard deviation of first rows.
        min_count: look-ups after which an id gets a row.
        max_age: iterations without a look-up after which an id is forgotten; ``None`` for no limit.
        min_norm: ids whose row has a smaller Euclidean norm are forgotten; 0 for none.
        evict_every: iterations from one look for such ids to the next.
        counters: count look-ups of ids that have no row, in few bytes for each; ``None`` counts them exactly.
        dtype: ``torch.float32`` or ``torch.float64``.

    Attributes:
        weight: row of the ids that have none, shape (1, embedding_dim).
        store: the rows.

    Raises:
        ConfigError: if an argument cannot work.
    """

    SAVED: ClassVar[tuple[str, ...]] = ("ids", "rows", "seed")
    """Names of the rows' entries in a ``state_dict``; their number of rows may change."""

    def __init__(
        self,
        embedding_dim: int,
        *,
        seed: int | None = None,
        std: float = 0.05,
        min_count: int = 1,
        max_age: int | None = None,
        min_norm: float = 0.0,
        evict_every: int = 1000,
        counters: CountingBloom | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if dtype not in _DTYPES:
            raise ConfigError(f"dtype={dtype}: expected torch.float32 or torch.float64")
        counts = {"embedding_dim": embedding_dim, "min_count": min_count, "evict_every": evict_every}
        for name, value in {**counts, **({"max_age": max_age} if max_age is not None else {})}.items():
            if not is_integer(value, 1):
                raise ConfigError(f"{name}={value!r}: expected an integer of at least 1")
        for name, number in {"std": std, "min_norm": min_norm}.items():
            if not is_number(number) or not 0 <= number < np.inf:
                raise ConfigError(f"{name}={number!r}: expected a number of at least 0")
        if seed is not None and not (is_integer(seed, 0) and seed < 1 << 63):
            raise ConfigError(f"seed={seed!r}: expected an integer from 0 to 2**63 - 1, or None")
        if counters is not None and not isinstance(counters, CountingBloom):
            raise ConfigError(f"counters={counters!r:.80}: expected sparkdl.nn.CountingBloom(...) or None")
        if counters is not None and min_count == 1:
            raise ConfigError(
                "counters=CountingBloom(...) with min_count=1: every id gets its row at once, and nothing is "
                "left to count; expected a min_count of at least 2, or no counters"
            )
        given = seed
        if seed is None:
            seed = int(torch.randint(0, 1 << 62, (), device="cpu"))
        rule = TableRule(
            embedding_dim,
            _DTYPES[dtype],
            seed,
            float(std),
            min_count,
            max_age,
            float(min_norm),
            evict_every,
            counters,
        )
        # Under these names a description of the module finds them.
        self.embedding_dim, self.seed, self.std, self.dtype = embedding_dim, given, std, dtype
        self.min_count, self.max_age = min_count, max_age
        self.min_norm, self.evict_every, self.counters = min_norm, evict_every, counters
        self.weight = nn.Parameter(torch.zeros(1, embedding_dim, dtype=dtype))
        self.store = KeyedTable(rule)
        self._source: RowSource | None = None

    def select(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each id the number of its row in a matrix, and this matrix.

        Raises:
            ModelError: if the ids are no integers.
        """
        places, rows = self._find(ids)
        if not len(rows) or bool((places < 0).any()):
            rows = torch.cat([rows, self.weight])
            places = torch.where(places < 0, len(rows) - 1, places)
        return places, rows

    def known(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of ids, zeros for those that have none, and which of them have one.

        Raises:
            ModelError: if the ids are no integers.
        """
        places, rows = self._find(ids)
        rows = torch.cat([rows, torch.zeros_like(self.weight)])
        there = places >= 0
        return functional.embedding(torch.where(there, places, len(rows) - 1), rows), there

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        if ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool:
            raise ModelError(
                f"an embedding variable got {ids.dtype} ids, expected integers; hash strings first, for "
                "example with pyspark.sql.functions.xxhash64",
                code="model-output",
            )
        return (self._source or _own_rows)(self, ids.to(torch.int64))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids: a tensor with one more dimension, of ``embedding_dim`` elements."""
        places, rows = self.select(ids)
        if rows.device.type != "cpu":
            return functional.embedding(places, rows)
        # Its backward adds up in the same order, in a third of the time.
        return rows.index_select(0, places.reshape(-1)).view(*places.shape, rows.shape[1])

    @contextmanager
    def reading(self, source: RowSource) -> Iterator[None]:
        """Take rows from somewhere else for a while."""
        before, self._source = self._source, source
        try:
            yield
        finally:
            self._source = before

    def read_from(self, source: RowSource) -> None:
        """Take rows from somewhere else from now on."""
        self._source = source

    @contextmanager
    def holding(self, entries: Entries) -> Iterator[None]:
        """Have other rows in the store for a while."""
        before = self.store
        self.fill(entries)
        try:
            yield
        finally:
            self.store = before

    def fill(self, entries: Entries) -> None:
        """Replace all rows of the store."""
        store = KeyedTable(self.store.rule)
        store.put(entries)
        self.store = store

    def extra_repr(self) -> str:
        """Describe the table."""
        return f"{self.store.rule.width}, rows={len(self.store)}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        kept = self.store.entries().sorted()
        destination[f"{prefix}ids"] = torch.from_numpy(kept.ids[kept.admitted])
        destination[f"{prefix}rows"] = torch.from_numpy(kept.columns[ROW])
        destination[f"{prefix}seed"] = torch.tensor(self.store.rule.seed)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        _, strict, missing, _, errors = arguments
        found = {name: state_dict.pop(f"{prefix}{name}", None) for name in self.SAVED}
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        state_dict |= {f"{prefix}{name}": value for name, value in found.items() if value is not None}
        if any(value is None for value in found.values()):
            if strict:
                missing += [f"{prefix}{name}" for name, value in found.items() if value is None]
            return
        problem = self._take_over(found)
        if problem:
            errors.append(f"{prefix}{problem}")

    def _take_over(self, found: Mapping[str, Tensor]) -> str:
        """Read the rows of a ``state_dict``; return what is wrong with them."""
        ids, rows, seed = (found[name].detach().cpu() for name in self.SAVED)
        rule = self.store.rule
        if ids.dtype != torch.int64 or ids.dim() != 1 or len(torch.unique(ids)) != len(ids):
            return f"ids: found shape {tuple(ids.shape)} of {ids.dtype}, expected distinct integers"
        if rows.shape != (len(ids), rule.width) or not rows.is_floating_point():
            return f"rows: found shape {tuple(rows.shape)} of {rows.dtype}, expected {(len(ids), rule.width)}"
        if seed.dim() or seed.is_floating_point():
            return f"seed: found shape {tuple(seed.shape)} of {seed.dtype}, expected one integer"
        values = np.array(rows.numpy().astype(rule.dtype))
        counts, last = np.full(len(ids), rule.min_count), np.zeros(len(ids), np.int64)
        self.__dict__.pop(IDENTITY, None)
        self.store = KeyedTable(replace(rule, seed=int(seed)))
        admitted = np.ones(len(ids), np.bool_)
        logged = np.iinfo(np.int64).max  # nobody knows when these rows have changed
        self.store.put(Entries(ids.numpy(), counts, last, admitted, {ROW: values}, logged=int(logged)))
        return ""


class EmbeddingBagVariable(nn.Module):
    """Sums, or means, of the rows of several ids, like ``nn.EmbeddingBag``, without a fixed number of rows.

    Args:
        embedding_dim: elements of a row.
        mode: ``"mean"``, ``"sum"`` or ``"max"`` of the rows of each bag.
        seed: see :class:`EmbeddingVariable`, also for the others.
        std: standard deviation of first rows.
        min_count: look-ups after which an id gets a row.
        max_age: iterations without a look-up after which an id is forgotten.
        min_norm: ids whose row has a smaller Euclidean norm are forgotten.
        evict_every: iterations from one look for such ids to the next.
        counters: count look-ups of ids that have no row, in few bytes for each; ``None`` counts them exactly.
        dtype: ``torch.float32`` or ``torch.float64``.
        padding_idx: an id that only fills bags up: it has no row and takes no part in sum, mean or maximum.

    Attributes:
        table: the rows.
        mode: as given.

    Raises:
        ConfigError: if an argument cannot work.
    """

    def __init__(
        self,
        embedding_dim: int,
        mode: Mode = "mean",
        *,
        seed: int | None = None,
        std: float = 0.05,
        min_count: int = 1,
        max_age: int | None = None,
        min_norm: float = 0.0,
        evict_every: int = 1000,
        counters: CountingBloom | None = None,
        dtype: torch.dtype = torch.float32,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__()
        if mode not in ("mean", "sum", "max"):
            raise ConfigError(f"mode={mode!r}: expected 'mean', 'sum' or 'max'")
        if isinstance(padding_idx, bool) or not isinstance(padding_idx, int | None):
            raise ConfigError(f"padding_idx={padding_idx!r}: expected an id, which is an integer, or None")
        self.table = EmbeddingVariable(
            embedding_dim,
            seed=seed,
            std=std,
            min_count=min_count,
            max_age=max_age,
            min_norm=min_norm,
            evict_every=evict_every,
            counters=counters,
            dtype=dtype,
        )
        self.mode, self.padding_idx = mode, padding_idx
        # Under these names a description of the module finds them.
        self.embedding_dim, self.seed, self.std, self.dtype = embedding_dim, seed, std, dtype
        self.min_count, self.max_age = min_count, max_age
        self.min_norm, self.evict_every, self.counters = min_norm, evict_every, counters

    def forward(
        self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Return a row for each bag; zeros for a bag without ids.

        Args:
            ids: of each bag, shape (bags, ids); or of all bags, one after the other, with ``offsets``.
            offsets: where each bag begins, shape (bags,).
            per_sample_weights: a factor for the row of each id, of the shape of ``ids``; in mode ``"sum"``
                only.

        Raises:
            ModelError: if the weights do not fit the ids or the mode, or the ids are no integers.
        """
        if per_sample_weights is not None and (self.mode != "sum" or per_sample_weights.shape != ids.shape):
            raise ModelError(
                f"per_sample_weights of shape {tuple(per_sample_weights.shape)} for ids of shape "
                f"{tuple(ids.shape)} in mode {self.mode!r}: expected the same shape, and mode 'sum'",
                code="model-output",
            )
        if self.padding_idx is not None and ids.dim() == (2 if offsets is None else 1):
            ids, offsets, per_sample_weights = self._without_padding(ids, offsets, per_sample_weights)
        places, rows = self.table.select(ids)
        return functional.embedding_bag(
            places, rows, offsets, mode=self.mode, per_sample_weights=per_sample_weights
        )

    def _without_padding(
        self, ids: Tensor, offsets: Tensor | None, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Leave the padding out before ids are looked up, so that it gets no row."""
        kept: Tensor = torch.ne(ids, self.padding_idx or 0)
        if offsets is None:
            offsets = torch.arange(ids.shape[0], device=ids.device) * ids.shape[1]
        before = functional.pad(kept.flatten().cumsum(0), (1, 0))
        return ids[kept], before[offsets.long()], None if weights is None else weights[kept]

    def extra_repr(self) -> str:
        """Describe the bag."""
        return f"mode={self.mode!r}"


def row_names(module: nn.Module) -> frozenset[str]:
    """Return the names in a ``state_dict`` of the rows of embedding variables, of which any number fits."""
    return frozenset(
        f"{name}.{own}" if name else own
        for name, part in module.named_modules(remove_duplicate=False)
        if isinstance(part, EmbeddingVariable)
        for own in EmbeddingVariable.SAVED
    )


def fill(module: nn.Module, rows: Mapping[str, Entries]) -> None:
    """Give the embedding variables of a module the rows that were trained."""
    variables = embedding_variables(module)
    for name, entries in rows.items():
        variables[name].fill(entries.rows_only())


def embedding_variables(module: nn.Module) -> dict[str, EmbeddingVariable]:
    """Return the embedding variables of a module by name, each once."""
    return {name: part for name, part in module.named_modules() if isinstance(part, EmbeddingVariable)}

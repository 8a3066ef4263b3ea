"""Columns and the tensors that they become.

A :class:`Structure` says how the user grouped columns (one, several positional, several named, or
none); a :class:`ColumnPlan` says how one column becomes one array of the partition store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sparkdl.data.ragged import TYPICAL, is_ragged
from sparkdl.exceptions import ConfigError, DataError, is_number

if TYPE_CHECKING:
    from pyspark.sql import Column as SqlColumn

METADATA = "sparkdl"
"""Key in a DataFrame column's metadata under which :func:`tensor_metadata` keeps shape and dtype."""

SPARSE = "sparse"
"""The dtype of a column whose vectors become indices and values, see :mod:`sparkdl.data.sparse`."""

PARTS = {"sparse.indices": "int32", "sparse.values": "float32"}
"""The dtypes of its two tensors as columns, and how they are stored."""

STORED_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
ROW_ID = "__row"


@dataclass(frozen=True, slots=True)
class Column:
    """A column with an explicit tensor shape or dtype.

    What is left open is taken from the column's metadata, see :func:`tensor_metadata`, or else from the
    first row.

    Args:
        name: column name.
        shape: shape of one row's tensor; flat arrays and binary columns are reshaped to it.
        dtype: numpy dtype name of the tensor. By default integers become int64, floats float32,
            booleans float32 (0 and 1) and bytes uint8. ``"sparse"``, for features of ML vectors alone, gives
            the module two tensors of shape (rows, longest): indices, int32, and values, float32, as
            :class:`sparkdl.nn.SparseLinear` and ``nn.EmbeddingBag`` take them. Of a named feature they are
            ``<name>_indices`` and ``<name>_values``. A row takes 8 bytes per value that is not 0.
            ``"sparse.indices"`` and ``"sparse.values"`` are one of these tensors, to name them otherwise.

    Raises:
        ConfigError: if a value cannot work.

    Examples:
        >>> Column("image", shape=(1, 28, 28), dtype="uint8")
        Column(name='image', shape=(1, 28, 28), dtype='uint8')
    """

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"Column name must be a non-empty string, got {self.name!r}")
        if self.dtype is not None and self.dtype not in (*STORED_DTYPES, SPARSE, *PARTS):
            known = ", ".join((*STORED_DTYPES, SPARSE))
            raise ConfigError(f"column {self.name!r}: dtype {self.dtype!r} is not one of {known}")
        if self.dtype in (SPARSE, *PARTS) and self.shape is not None:
            raise ConfigError(f"column {self.name!r}: a sparse column has no shape; leave shape= out")
        if self.shape is not None:
            shape = tuple(self.shape) if isinstance(self.shape, tuple | list) else (0,)
            if any(not isinstance(d, int) or d < 1 for d in shape):
                raise ConfigError(
                    f"column {self.name!r}: shape {self.shape!r} must be a tuple of positive integers"
                )
            object.__setattr__(self, "shape", shape)


def tensor_metadata(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """Return a DataFrame column's metadata with the shape and dtype of a :class:`Column`.

    Spark keeps metadata through selections, filters and Parquet files, so readers of such a column know its
    shape: ``df.select("*", expression.alias("x", metadata=...))``.
    """
    return {METADATA: {"shape": list(shape), "dtype": dtype}}


def ragged_metadata(fill: int) -> dict[str, Any]:
    """Return the metadata of a column of integers that differ in number and are padded in each batch."""
    return {METADATA: {"dtype": "int64", "fill": fill}}


def quoted(name: str) -> SqlColumn:
    """Return a column of exactly this name, dots included."""
    from pyspark.sql import functions as F

    return F.col(f"`{name.replace('`', '``')}`")


def described(column: Column, metadata: Mapping[str, Any]) -> tuple[Column, float | None]:
    """Fill in what metadata say of shape and dtype; explicit ones win. ConfigError if they cannot be.

    Beside the column, the number that fills shorter rows up; ``None`` if metadata name none, or a shape is
    known.
    """
    found = metadata.get(METADATA)
    if not isinstance(found, Mapping):
        return column, None
    known = Column(column.name, found.get("shape"), found.get("dtype"))
    shape = known.shape if column.shape is None else column.shape
    fill = found.get("fill") if shape is None else None
    if fill is not None and not is_number(fill):
        raise ConfigError(f"column {column.name!r}: its metadata has fill={fill!r:.50}; expected a number")
    return Column(column.name, shape, known.dtype if column.dtype is None else column.dtype), fill


ColumnLike = str | Column
Columns = ColumnLike | Sequence[ColumnLike] | Mapping[str, ColumnLike]


def as_column(chosen: ColumnLike) -> Column:
    """Return a column that may be chosen by its name alone."""
    return chosen if isinstance(chosen, Column) else Column(chosen)


def unread_bytes(what: str, name: str) -> DataError:
    """Return the error of a binary column for which no shape is given."""
    return DataError(
        f"{what} {name!r} is binary: say how to read its bytes, for example Column({name!r}, shape=(28, 28), "
        "dtype='uint8')",
        code="data-type",
    )


@dataclass(frozen=True, slots=True)
class Structure:
    """How stored columns group into what the module or the loss is called with."""

    # ``none``, ``single`` tensor, ``tuple`` of tensors or ``dict`` of tensors
    kind: Literal["none", "single", "tuple", "dict"]
    keys: tuple[str, ...] = ()  # names of the stored columns, in order
    names: tuple[str, ...] = ()  # keyword names for ``dict``

    def assemble(self, columns: Mapping[str, Any]) -> Any:
        """Group columns into ``None``, one value, a tuple or a dict."""
        if self.kind == "none":
            return None
        if self.kind == "single":
            return columns[self.keys[0]]
        if self.kind == "tuple":
            return tuple(columns[key] for key in self.keys)
        return {name: columns[key] for name, key in zip(self.names, self.keys, strict=True)}

    def disassemble(self, value: Any) -> dict[str, Any]:
        """Split a value grouped like :meth:`assemble` returns it into columns."""
        if self.kind == "none":
            return {}
        if self.kind == "single":
            return {self.keys[0]: value}
        if self.kind == "tuple":
            if not isinstance(value, tuple | list) or len(value) != len(self.keys):
                raise DataError(
                    f"expected a tuple of {len(self.keys)} values, got {value!r:.200}", code="data-shape"
                )
            return dict(zip(self.keys, value, strict=True))
        if not isinstance(value, Mapping) or set(value) != set(self.names):
            raise DataError(
                f"expected a dict with keys {list(self.names)}, got {value!r:.200}", code="data-shape"
            )
        return {key: value[name] for name, key in zip(self.names, self.keys, strict=True)}


def structure_of(value: Any, role: str) -> Structure:
    """Read the grouping off a value: ``None``, a list or tuple, a dict, or anything else."""
    if value is None:
        return Structure("none")
    if isinstance(value, Mapping):
        names = tuple(value)
        for name in names:
            if not isinstance(name, str) or not name.isidentifier():
                raise ConfigError(f"{role}: {name!r} is not a keyword name; dict keys name arguments")
        return Structure("dict", tuple(f"{role}_{name}" for name in names), names)
    if isinstance(value, list | tuple):
        if not value:
            raise ConfigError(f"{role}: expected at least one column, got {value!r}")
        return Structure("tuple", tuple(f"{role}_{i}" for i in range(len(value))))
    return Structure("single", (role,))


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How one source column becomes one array of the store."""

    key: str  # name in the store, such as ``"features_0"``
    source: str  # name of the DataFrame's column
    binary: bool = False  # whether values are raw tensor bytes
    dtype: str | None = None  # stored dtype, ``None`` until the first row is seen
    shape: tuple[int, ...] | None = None  # shape of one row, ``None`` until the first row is seen
    finite: bool = False  # whether NaN and infinities are errors (labels and weights)
    non_negative: bool = False  # whether negative values are errors (weights)
    ragged: bool = False  # whether rows may differ in their first dimension; see :mod:`sparkdl.data.ragged`
    # what fills the shorter rows of a batch up, where the column's metadata says so
    fill: float | None = None
    part: str = ""  # which tensor of a sparse column this is, one of ``PARTS``; empty for other columns
    role: str = "column"  # what errors call it, before its name

    @property
    def words(self) -> str:
        """What errors call it."""
        return f"{self.role} {self.source!r}" if self.source else self.role

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row, an estimate where rows differ in length; dtype and shape must be known."""
        assert self.dtype is not None
        assert self.shape is not None
        shape = (TYPICAL, *self.shape[1:]) if is_ragged(self.shape) else self.shape
        return int(np.dtype(self.dtype).itemsize * prod(shape))

    def resolved(self, dtype: str, shape: tuple[int, ...]) -> ColumnPlan:
        """Return the plan with dtype and shape known."""
        return replace(self, dtype=dtype, shape=shape)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The columns of a Dataset and how they group."""

    columns: tuple[ColumnPlan, ...]  # features, labels and weight, in this order
    features: Structure  # how columns group into what the module is called with
    label: Structure  # likewise for the loss
    weighted: bool  # whether the last column is a weight
    arrays: bool = False  # whether rows are those of arrays, whose positions are plain numbers

    def sources(self, group: Structure) -> tuple[str, ...]:
        """Return the names of the DataFrame's columns that features or labels are made of."""
        return tuple(dict.fromkeys(column.source for column in self.columns if column.key in group.keys))

    def name_row(self, position: int) -> str:
        """Name a row by its position in the source."""
        return f"row {position}" if self.arrays else name_id(position)

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row over all columns."""
        return sum(column.row_bytes for column in self.columns)


def name_id(row_id: int) -> str:
    """Name a row by Spark's ``monotonically_increasing_id``: input partition and row in it."""
    return f"row {row_id & ((1 << 33) - 1)} of input partition {row_id >> 33}"


def make_plan(
    features: Structure,
    label: Structure,
    sources: Mapping[str, ColumnPlan],
    weighted: bool,
    arrays: bool = False,
) -> TablePlan:
    """Order the column plans as features, label, weight; a weight is one number per row."""
    keys = [*features.keys, *label.keys, *(["weight"] if weighted else [])]
    columns = []
    for key in keys:
        if key == "weight":
            columns.append(replace(sources[key], shape=(), finite=True, non_negative=True))
        else:
            columns.append(replace(sources[key], finite=key in label.keys))
    return TablePlan(tuple(columns), features, label, weighted, arrays)


def plan_columns(
    features: Any,
    label: Any,
    weight: Any,
    planned: Callable[[str, Any, str], ColumnPlan],
    arrays: bool = False,
) -> TablePlan:
    """Plan what was chosen as features, label and weight, each column by a function of key, it and role."""
    groups = {"features": features, "label": label, "weight": weight}
    structures = {role: structure_of(value, role) for role, value in groups.items()}
    if structures["weight"].kind not in ("none", "single"):
        raise ConfigError(f"weight={weight!r:.100}: expected one column")
    plans = {
        key: planned(key, chosen, role)
        for role, value in groups.items()
        for key, chosen in structures[role].disassemble(value).items()
    }
    return make_plan(structures["features"], structures["label"], plans, weight is not None, arrays)

"""Columns to 64-bit ids by a hash that is the same in Spark, in Python, and in every version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DataType
from xxhash import xxh64_intdigest

from sparkdl.data.columns import quoted
from sparkdl.data.schema import STRINGS, check_collation
from sparkdl.exceptions import ConfigError, DataError, integer_option
from sparkdl.ml.stages.rowwise import find_field
from sparkdl.recsys.checks import check_columns, check_new

Values = Sequence[Any] | NDArray[Any]
Hashes = NDArray[np.uint64]

_SEED = 42  # seed with which Spark begins
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


@dataclass(frozen=True, slots=True)
class Collisions:
    """How many different values a hash has made one.

    Attributes:
        values: different values, or combinations of values.
        ids: different ids of them.
    """

    values: int
    ids: int

    @property
    def lost(self) -> int:
        """Values whose id is another value's, too, less one for each such id."""
        return self.values - self.ids


def with_hash(
    df: DataFrame, output: str, *columns: str, buckets: int | None = None, salt: str = ""
) -> DataFrame:
    """Add a column of ids: a hash of a column's value, or of the combination (*cross*) of several.

    Equal values have equal ids, whatever the width of an integer column, in Spark and in :func:`hash_ids`.
    Null is a value. An array column, given alone, becomes an array of ids.

    Args:
        df: the rows.
        output: the new column, ``bigint``.
        columns: integers, strings or booleans. Their order matters.
        buckets: how many ids there are, from 0; by default all 64-bit integers. Embedding variables need no
            buckets, tables of a fixed size do.
        salt: different salts give unrelated ids, for columns that share a table but no meaning.

    Raises:
        ConfigError: if there is no column to hash, or ``buckets`` cannot work.
        DataError: naming the column that is missing or of another type.
    """
    _check("with_hash", columns, buckets)
    check_columns(df, "with_hash", **{f"columns[{n}]": name for n, name in enumerate(columns)})
    check_new(df, "with_hash", output=output)
    types = [find_field(df, "column", name).dataType for name in columns]
    only = types[0]
    if isinstance(only, T.ArrayType) and len(columns) == 1:
        _check_type(columns[0], only.elementType)

        def of_element(value: Column) -> Column:
            return _hashed([value], [only.elementType], buckets, salt)

        return df.withColumn(output, F.transform(quoted(columns[0]), of_element))
    for name, found in zip(columns, types, strict=True):
        _check_type(name, found)
    return df.withColumn(output, _hashed([quoted(name) for name in columns], types, buckets, salt))


def hash_ids(*columns: Values, buckets: int | None = None, salt: str = "") -> NDArray[np.int64]:
    """Return the ids that :func:`with_hash` gives these values, without Spark.

    Args:
        columns: integers, strings or booleans, ``None`` for null; all of one length.
        buckets: as of :func:`with_hash`.
        salt: likewise.

    Raises:
        ConfigError: if there is no column to hash, or ``buckets`` cannot work.
        DataError: if columns differ in length, or hold something else.
    """
    _check("hash_ids", columns, buckets)
    lengths = [len(values) for values in columns]
    if len(set(lengths)) > 1:
        raise DataError(
            f"hash_ids: the columns have {lengths} values, expected equally many", code="data-shape"
        )
    start = xxh64_intdigest(salt.encode(), _SEED)
    hashes = np.full(lengths[0], start, np.uint64)
    for number, values in enumerate(columns):
        hashes = _combined(hashes, values, f"columns[{number}]")
    ids = hashes.view(np.int64)
    return ids if buckets is None else ids % buckets


def collisions(df: DataFrame, *columns: str, buckets: int | None = None, salt: str = "") -> Collisions:
    """Count how many different values :func:`with_hash` makes one, in one pass over the rows.

    Args:
        df: the rows.
        columns: as of :func:`with_hash`; no arrays.
        buckets: likewise.
        salt: likewise.

    Raises:
        ConfigError: if there is no column to hash, or ``buckets`` cannot work.
        DataError: naming the column that is missing or of another type.
    """
    name = "sparkdl_hash"
    distinct = with_hash(df, name, *columns, buckets=buckets, salt=salt)
    distinct = distinct.select(*(quoted(column) for column in columns), name).distinct()
    values, ids = distinct.agg(F.count(F.lit(1)), F.countDistinct(name)).collect()[0]
    return Collisions(values, ids)


def _check(owner: str, columns: Sequence[Any], buckets: int | None) -> None:
    if not columns:
        raise ConfigError(f"{owner}: columns=(): expected at least one column to hash")
    if buckets is not None:
        integer_option(owner, "buckets", buckets, 1)


def _check_type(name: str, data_type: DataType) -> None:
    if not isinstance(data_type, T.IntegralType | T.BooleanType | STRINGS):
        raise DataError(
            f"with_hash: column {name!r} has type {data_type.simpleString()}, expected integers, strings or "
            "booleans: cast it to a string, or put numbers into buckets first (with_buckets)",
            code="data-type",
        )
    check_collation(data_type, f"with_hash: column {name!r}")


def _hashed(values: Sequence[Column], types: Sequence[DataType], buckets: int | None, salt: str) -> Column:
    """Return the hash of values, each with a flag: Spark's own hash passes over nulls."""
    parts = [F.lit(salt)]
    for value, found in zip(values, types, strict=True):
        text = isinstance(found, STRINGS)
        parts += [F.isnull(value).cast("bigint"), value.cast("string" if text else "bigint")]
    hashed = F.xxhash64(*parts)
    return hashed if buckets is None else F.pmod(hashed, F.lit(buckets).cast("bigint"))


def _combined(hashes: Hashes, values: Values, name: str) -> Hashes:
    """Hash one more column into hashes."""
    if isinstance(values, np.ma.MaskedArray):  # what is masked is null, whatever lies below
        values = values.tolist()
    array = np.asarray(values)
    if array.dtype.kind == "u" and array.size:
        _check_long(int(array.max()), int(array.argmax()), name)
    if array.dtype.kind in "iub" and array.ndim == 1:
        flagged = _hash_of_integers(np.zeros(len(array), np.int64), hashes)
        return _hash_of_integers(array.astype(np.int64), flagged)
    null = np.array([value is None for value in values], np.int64)
    hashes = _hash_of_integers(null, hashes)
    found = hashes.copy()
    for at, value in enumerate(values):
        if isinstance(value, str):
            found[at] = xxh64_intdigest(value.encode(), int(hashes[at]))
        elif isinstance(value, bool | int | np.integer | np.bool_):
            _check_long(int(value), at, name)
            found[at] = _hash_of_integers(np.array([value], np.int64), hashes[at : at + 1])[0]
        elif value is not None:
            raise DataError(
                f"hash_ids: {name}, value {at} is {value!r:.60}, expected an integer, a string, a boolean or "
                "None",
                code="data-type",
            )
    return found


def _check_long(value: int, at: int, name: str) -> None:
    """Check that Spark has a type for an integer: the id of another one would be taken for its id."""
    if not -(1 << 63) <= value < 1 << 63:
        raise DataError(
            f"hash_ids: {name}, value {at} is {value}, expected an integer from -2**63 to 2**63 - 1, as "
            "Spark's bigint holds; pass larger ones as strings, here and to with_hash",
            code="data-type",
        )


def _hash_of_integers(values: NDArray[np.int64], seeds: Hashes) -> Hashes:
    """Return the xxHash64 of each integer, with a seed of its own, as Spark's ``xxhash64`` computes it.

    The package xxhash hashes one value with one seed, too slow for columns.
    """
    word = _rotated(values.view(np.uint64) * np.uint64(_P2), 31) * np.uint64(_P1)
    mixed = (seeds + np.uint64(_P5 + 8)) ^ word
    mixed = _rotated(mixed, 27) * np.uint64(_P1) + np.uint64(_P4)
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(_P2)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_P3)
    found: Hashes = mixed ^ (mixed >> np.uint64(32))
    return found


def _rotated(values: Hashes, by: int) -> Hashes:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))

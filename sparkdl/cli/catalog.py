"""Tables that Spark knows by name: what a starter has to know of them is computed by Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparkdl import session
from sparkdl.cli.arguments import command_error
from sparkdl.cli.source import UNFIT, Family, Kind
from sparkdl.exceptions import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import types as T

_FAMILIES: dict[str, Family] = {
    "string": "text",
    "boolean": "boolean",
    "number": "fraction",
    "date": "date",
    "timestamp": "date",
}


class CatalogTable:
    """A table of Spark's catalog, by the name that SQL has for it: parts with dots, in backticks or not."""

    def __init__(self, name: str, rows: DataFrame) -> None:
        self.name = self.address = name
        self._rows = rows
        self.kinds = {field.name: _kind(field.dataType) for field in rows.schema.fields}
        if bad := [column for column in self.kinds if "`" in column]:
            raise DataError(
                f"column {bad[0]!r} of {name}: Spark's functions take no backtick in a name: rename it",
                code="data-column",
            )

    def count(self) -> int:
        """Return the number of rows."""
        return self._rows.count()

    def nulls(self, columns: Sequence[str]) -> dict[str, int]:
        """Return the number of nulls in each of these columns."""
        from pyspark.sql import functions as F

        row: Any = self._rows.select(*(F.count_if(_column(name).isNull()) for name in columns)).first()
        return dict(zip(columns, row, strict=True))

    def distinct(self, column: str, most: int) -> list[Any]:
        """Return the different values of a column without null; one more than ``most`` if there are more."""
        values = self._rows.select(_column(column)).where(_column(column).isNotNull())
        return [row[0] for row in values.distinct().limit(most + 1).collect()]


@contextmanager
def opened(name: str, master: str | None, conf: Mapping[str, str]) -> Iterator[CatalogTable]:
    """Open a table in the session that is there, or in one with ``conf`` that ends with it."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    own = None
    try:
        spark = SparkSession.getActiveSession()
        if spark is None:
            spark = own = session.builder(master, "sparkdl-init", conf).getOrCreate()
        yield CatalogTable(name, spark.table(name))
    except PySparkException as error:
        raise command_error(
            f"--table {name!r} is no table that Spark can read: {str(error).strip().splitlines()[0]} --conf "
            "gives the confs of its catalog, and a part of a name with other characters than letters, digits "
            "and _ stands in backticks"
        ) from error
    finally:
        if own is not None:
            own.stop()


def _column(name: str) -> Any:
    from pyspark.sql import functions as F

    return F.col(f"`{name}`")


def _kind(type_: T.DataType) -> Kind:
    family = _family(type_)
    return Kind(type_.simpleString(), family, _unfit(type_) if family == "other" else "")


def _family(type_: T.DataType) -> Family:
    """Return what can be done with a type: as the estimators see it."""
    from pyspark.sql import types as T

    from sparkdl.ml.stages.tabular_fit import kind_of

    if isinstance(type_, T.IntegralType):
        return "integer"
    if isinstance(type_, T.DecimalType):
        return "decimal"
    kind = kind_of(type_)
    return _FAMILIES[kind] if kind is not None else "other"


def _unfit(type_: T.DataType) -> str:
    from pyspark.sql import types as T

    if isinstance(type_, T.ArrayType | T.MapType | T.StructType):
        return UNFIT["nested"]
    if isinstance(type_, T.BinaryType):
        return UNFIT["bytes"]
    # Spark 3.5 has no TimeType, and no version a common class of intervals.
    return UNFIT["time" if type_.typeName().endswith(("interval", "time")) else "other"]

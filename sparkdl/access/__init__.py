"""Access to a cluster: one interface, and what implements it for each kind of session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl._spark.session import is_connect
from sparkdl.access.base import Access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Access", "access_to"]


def access_to(spark: SparkSession) -> Access:
    """Return the access to a session's cluster."""
    if is_connect(spark):
        from sparkdl.access.connect.access import connect_access

        return connect_access(spark)
    from sparkdl.access.classic import ClassicAccess

    return ClassicAccess.of(spark)

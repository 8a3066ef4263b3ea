"""Access to a cluster: what training and models ask, and what implements it for each kind of session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from sparkdl._spark.session import is_connect
from sparkdl.access.base import Access
from sparkdl.access.models import ClassicModels, ModelAccess

__all__ = ["Access", "ModelAccess", "access_to", "models_in"]


def access_to(spark: SparkSession) -> Access:
    """Return the access to a session's cluster."""
    if is_connect(spark):
        from sparkdl.access.connect.access import connect_access

        return connect_access(spark)
    from sparkdl.access.classic import ClassicAccess

    return ClassicAccess.of(spark)


def models_in(spark: SparkSession) -> ModelAccess:
    """Return what models may ask of a session."""
    if is_connect(spark):
        from sparkdl.access.connect.models import ConnectModels

        return ConnectModels(spark)
    return ClassicModels(spark)

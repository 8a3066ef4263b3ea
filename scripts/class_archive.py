"""Let Spark's JVM load the classes of small jobs; ``scripts/setup`` has it write these down."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession


def same(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Return the batches as they are."""
    yield from batches


spark = SparkSession.builder.master("local[2]").getOrCreate()
rows = spark.sparkContext.parallelize([(i, float(i), str(i)) for i in range(100)], 4)
table = spark.createDataFrame(rows, "a int, b double, c string").repartition(2)
table = table.where("a > 1").mapInPandas(same, table.schema)
table.cache().count()
table.groupBy("a").avg("b").orderBy("a").collect()
table.rdd.map(lambda row: (row.a, row.b)).reduceByKey(max).collect()
spark.stop()

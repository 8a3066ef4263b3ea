"""The only place that touches PySpark's private API, and the JVM behind it.

Everything that moves during training is an RDD of raw byte arrays. PySpark's public RDD API would
pickle each record, build every RDD with a dozen round trips to the JVM and add a Python stage per
shuffle; :mod:`sparkdl._spark.jobs` builds the same Spark RDDs (``PythonRDD``, ``PairwiseRDD``,
``ShuffledRDD``) directly. Beside it lies what else needs the JVM: sessions, errors, Hadoop's file systems.
"""

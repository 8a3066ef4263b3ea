"""Offers of sessions beyond their public API; no PySpark is imported before it is needed."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkdl._spark.frames import JavaObject


def is_classic(spark_or_df: Any) -> bool:
    """Return whether a session or DataFrame has a JVM behind it, and is not of Spark Connect."""
    # Not both of the same object: a DataFrame of Connect takes any other name for a column's.
    is_df = hasattr(type(spark_or_df), "sparkSession")
    return hasattr(spark_or_df, "_jdf" if is_df else "_jsparkSession")


def is_connect(spark_or_df: Any) -> bool:
    """Return whether a session or DataFrame is of Spark Connect."""
    return type(spark_or_df).__module__.startswith("pyspark.sql.connect")


_VARYING = re.compile(
    r"\b(rand|randn|randstr|uniform|uuid|shuffle|monotonically_increasing_id|spark_partition_id|input_file_\w+"
    r"|first|first_value|last|last_value|any_value|collect_\w+|listagg|string_agg|reflect|java_method)\(",
    re.IGNORECASE,
)
"""Functions of Spark that it takes for such as may give another value each time."""

_MIXED_CHOICE = re.compile(
    r"^[ :+-]*(?:(?:Aggregate|Window|Join|Map|FlatMap|CoGroup)\w*\b|.*scalar-subquery#)"
    r"[\s\S]*?^[ :+-]*(?:GlobalLimit|Offset|Tail|Sample)\b",
    re.MULTILINE,
)
"""A plan's text where values follow from several rows of those that came first, or of a sample.

Rows that are chosen so and keep their values are no such: each is on its side, or on none.
"""

_SHOWN, _ALL = "spark.sql.debug.maxToStringFields", 100_000
"""How many columns of a plan its text has."""

_ANALYZED = "== Analyzed Logical Plan ==\n"


def is_deterministic(df: Any) -> bool:
    """Return whether a query has nothing by which values of a row may be others each time.

    That is by the text of the plan; where it is cut short, False. Of rows that are equal in some columns the
    optimizer keeps the first(), where all columns count it has none.
    """
    conf = df.sparkSession.conf
    own = conf.get(_SHOWN, None)
    conf.set(_SHOWN, str(_ALL))
    try:
        if is_classic(df):
            query = df._jdf.queryExecution()
            plan = f"{_ANALYZED}{query.analyzed().toString()}\n== {query.optimizedPlan().toString()}"
        else:
            plan = df._explain_string(extended=True)
    finally:
        conf.unset(_SHOWN) if own is None else conf.set(_SHOWN, own)
    analyzed = plan.partition(_ANALYZED)[2].partition("\n== ")[0]
    if _VARYING.search(plan) or _MIXED_CHOICE.search(analyzed) or " more fields" in plan:
        return False
    if is_classic(df):
        return bool(query.analyzed().deterministic())
    return not _has_varying_udf(df._plan.to_proto(df.sparkSession.client))


def _has_varying_udf(message: Any) -> bool:
    """Return whether a message of Spark Connect has a Python function that says so of itself."""
    if "deterministic" in message.DESCRIPTOR.fields_by_name and not message.deterministic:
        return True
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        parts = value.values() if hasattr(value, "values") else value if hasattr(value, "append") else [value]
        if any(_has_varying_udf(part) for part in parts if hasattr(part, "ListFields")):
            return True
    return False


def is_alive(sc: Any) -> bool:
    """Return whether a SparkContext can run jobs: neither stopped nor its JVM gone."""
    try:
        return sc._jsc is not None and not sc._jsc.sc().isStopped()
    except Exception:  # py4j's, or the socket's, when there is no JVM any more
        return False


def confs(sc: Any) -> Any:
    """Return the confs of a SparkContext, to be read alone."""
    # Its getConf copies them all, each with some calls to the JVM.
    return getattr(sc, "_conf", None) or sc.getConf()


def own_confs(spark: Any, prefix: str) -> list[str]:
    """Return the names of a session's confs that begin with a prefix."""
    if is_classic(spark):  # by one call: Python's dict of all confs takes some for each of them
        names: list[str] = str(spark._jsparkSession.conf().getAll().keySet().mkString("\n")).split("\n")
    else:
        names = list(getattr(spark.conf, "getAll", ()))
    return sorted(name for name in names if name.startswith(prefix))


def lost_context() -> bool:
    """Return whether this process has a SparkContext that ended although the program did not stop it."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    sc: Any = SparkContext._active_spark_context
    return sc is not None and not is_alive(sc)


@dataclass(frozen=True, slots=True)
class ExecutorSlots:
    """What an executor offers."""

    cores: int  # how many it has
    tasks: int  # that run there at a time, with the cores and other resources that the confs give a task
    ready: bool  # whether one has run there


def task_slots(sc: Any) -> list[ExecutorSlots]:
    """Return what each live executor besides the driver offers."""
    cores = [(info, info.totalCores()) for info in _live(sc)]
    return [
        ExecutorSlots(own, max(1, info.maxTasks()), info.completedTasks() > 0)
        for info, own in cores
        if own > 0
    ]


def live_executors(sc: Any) -> list[str]:
    """Return the ids of live executors besides the driver, oldest first."""
    return sorted((str(info.id()) for info in _live(sc)), key=lambda name: (len(name), name))


def _live(sc: Any) -> list[JavaObject]:
    listed = sc._jsc.sc().statusStore().executorList(True)
    infos = (listed.apply(i) for i in range(listed.size()))
    return [info for info in infos if info.id() != "driver"]


def planned_once(spark: SparkSession, df: DataFrame) -> DataFrame:
    """Return a DataFrame whose plan is made now and for all jobs that come.

    A plan made later may cut the files into other partitions, for more executors have come.
    """
    from pyspark.sql import DataFrame

    private: Any = df
    rows, schema = private._jdf.queryExecution().toRdd(), private._jdf.schema()
    planned: Any = spark._jsparkSession.internalCreateDataFrame(rows, schema, False)
    return DataFrame(planned, spark)


def task_profile(sc: Any, cpus: int, amounts: Mapping[str, float]) -> JavaObject | None:
    """Return the resource profile of tasks that need so much, ``None`` if the cluster manager has none."""
    from py4j.protocol import Py4JJavaError
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(cpus)
    for name, amount in amounts.items():
        requests = requests.resource(name, amount)
    profile = ResourceProfileBuilder().require(requests).build._java_resource_profile
    try:
        sc._jsc.sc().resourceProfileManager().isSupported(profile)
    except Py4JJavaError:
        return None
    return profile

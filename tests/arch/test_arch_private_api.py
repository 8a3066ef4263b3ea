"""Spark's private API, and the JVM behind it, are used in one room, ``sparkdl/_spark``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "sparkdl"
ROOM = PACKAGE / "_spark"

# What Spark and PySpark call their handles of JVM objects, and other attributes of theirs that are private.
# The protected methods of Params (_set, _copyValues, ...) are meant for subclasses, and not among them.
PRIVATE = re.compile(
    r"_j(vm|sc|df|rdd|c|expr|schema|conf|map|model|obj|reader|writer?|broadcast|session|sparkSession)"
    r"|_java\w+|_gateway|_sc|_active_spark_context|_python_includes|_serialize_to_jvm|_bypass_serializer"
    r"|_load_from_socket|_from_id|_value"
)
MODULES = re.compile(
    r"py4j(\..*)?"
    r"|pyspark\.(serializers|java_gateway|daemon|worker\w*|broadcast|rdd|util|shuffle|core|accumulators)(\..*)?"
    r"|pyspark\.(\w+\.)*_\w+"
)
ALLOWED = {("daemon.py", "pyspark.daemon")}  # it is PySpark's daemon, with one function changed


@cache
def names_in(path: Path) -> tuple[frozenset[str], ...]:
    """Return what each of the three functions below finds in a module, which is read once."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    return frozenset(used(nodes)), frozenset(told_apart(nodes)), frozenset(handles(nodes))


def used(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Iterate over the private names that a module uses."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own:
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PRIVATE.fullmatch(node.value):
            yield node.value
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if MODULES.fullmatch(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            yield from (name for name in sorted(names) if MODULES.fullmatch(name))


def test_private_api_is_used_in_its_room_alone() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        if ROOM not in path.parents
        for name in names_in(path)[0]
    }
    assert found <= ALLOWED


KINDS = re.compile(r"is_(classic|connect)|pyspark\.sql\.connect(\..*)?")
"""By which the kinds of sessions are told apart, which is for ``sparkdl/access`` alone."""


def told_apart(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Iterate over what a module tells kinds of sessions apart by."""
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        yield from (name for name in names if KINDS.fullmatch(name))


def test_only_access_tells_kinds_of_sessions_apart() -> None:
    rooms = (ROOM, PACKAGE / "access")
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        if not any(room in path.parents for room in rooms)
        for name in names_in(path)[1]
    }
    assert not found
    assert "is_connect" in names_in(PACKAGE / "access/__init__.py")[1]


HANDLES = re.compile(r"jobs|rdd|RDD|FrameJobs|JavaObject|frames_of|_jvm|_jsc")
"""Names of RDDs, of objects of the JVM, and of what makes jobs of them."""

TAKE_RDDS = {
    "data/dataset.py": {"RDD"},  # Dataset.from_rdd: the type of its argument
    "data/elements.py": {"RDD", "frames_of"},  # reads it
}
"""Where a user's own RDD becomes the frames of an ``Access``, and the names there. May only shrink."""


def handles(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Iterate over the names of RDDs and JVM objects that a module imports, or asks others for."""
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        yield from (name for name in names if HANDLES.fullmatch(name))


def test_rdds_and_objects_of_the_jvm_stay_behind_access() -> None:
    rooms = (ROOM, PACKAGE / "access")
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in PACKAGE.rglob("*.py")
        if not any(room in path.parents for room in rooms) and (names := names_in(path)[2])
    }
    assert found == TAKE_RDDS
    assert {"jobs", "FrameJobs", "JavaObject"} <= names_in(PACKAGE / "access/classic.py")[2]


def test_the_room_needs_what_it_is_for() -> None:
    found = {name for path in ROOM.glob("*.py") for name in names_in(path)[0]}
    assert {"_jvm", "_jsc", "_jdf", "py4j.protocol", "pyspark.serializers"} <= found


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x = spark._jvm.java.util.HashMap()", "_jvm"),
        ("x = df.select('a')._jdf", "_jdf"),
        ("x = hasattr(df, '_jdf')", "_jdf"),
        ("x = spark.sparkContext._jsc.sc()", "_jsc"),
        ("from py4j.protocol import Py4JJavaError", "py4j.protocol"),
        ("def f():\n    from pyspark.util import _load_from_socket", "pyspark.util"),
        ("from pyspark import daemon", "pyspark.daemon"),
        ("from pyspark.sql.utils import _private", "pyspark.sql.utils._private"),
    ],
)
def test_what_counts_as_private(source: str, name: str) -> None:
    assert name in set(used(ast.walk(ast.parse(source))))


@pytest.mark.parametrize(
    "source", ["x = self._joined", "from pyspark.sql import DataFrame", "x = '_jumbled'"]
)
def test_what_does_not(source: str) -> None:
    assert not set(used(ast.walk(ast.parse(source))))

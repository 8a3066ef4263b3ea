"""A table's encoding as part of an ONNX graph: one input per column in place of the module's arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparkdl.exceptions import DataError
from sparkdl.table.calendar import Part
from sparkdl.table.encoding import FIRST, MISSING, OTHER, Category, Number, TableEncoding
from sparkdl.wire.frame import Array

_PREFIX = "module/"
_DAY = 86400.0


def add_encoding(path: str | os.PathLike[str], encoding: TableEncoding) -> None:
    """Put an encoding in front of a module that was written as ONNX.

    The inputs are then the table's columns, each of shape (rows,): strings, where the empty one stands for
    null unless it was a value in the fit, and doubles for all others, where NaN stands for null; dates are
    days and timestamps seconds since 1970-01-01 in UTC.
    """
    import onnx
    from onnx import TensorProto, compose, helper

    model = onnx.load(os.fspath(path))
    arrays = [value.name for value in model.graph.input]
    outputs = [value.name for value in model.graph.output]
    targets = dict(zip(encoding.outputs, arrays, strict=True))
    if set(encoding.outputs) == set(arrays):  # by name, in the order of the forward method
        targets = {name: name for name in arrays}
    model = compose.add_prefix(model, _PREFIX)
    graph = _Graph()
    for kind, name in targets.items():
        parts = graph.numbers(encoding) if kind == "numbers" else graph.categories(encoding)
        graph.add("Concat", parts, name=_PREFIX + name, axis=1)
    ends = [helper.make_node("Identity", [_PREFIX + name], [name]) for name in outputs]
    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.STRING if encoding.kinds[name] == "string" else TensorProto.DOUBLE, ["rows"]
        )
        for name in encoding.columns
    ]
    nodes = [*graph.nodes, *model.graph.node, *ends]
    for value, name in zip(model.graph.output, outputs, strict=True):
        value.name = name
    del model.graph.node[:], model.graph.input[:]
    model.graph.node.extend(nodes)
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(graph.constants)
    if not any(entry.domain == "ai.onnx.ml" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx.save(model, os.fspath(path))


def feeds(encoding: TableEncoding, table: Mapping[str, Any]) -> dict[str, Array]:
    """Return the columns of a table as the inputs of such a graph.

    DataError names column and row of null, or of an empty text, where the two cannot be told apart.
    """
    found: dict[str, Array] = {}
    for name in encoding.columns:
        values = encoding.plain(name, table)
        if encoding.kinds[name] == "string":
            texts = values.to_pylist()
            _check_texts(
                name, texts, known=any(c.column == name and "" in c.values for c in encoding.categories)
            )
            values = np.array([text or "" for text in texts], object)
        found[name] = values
    return found


def _check_texts(name: str, texts: Sequence[str | None], *, known: bool) -> None:
    """Check that each empty text, and each null, is what the graph takes an empty text for."""
    wrong = None if known else ""
    if wrong in texts:
        what, other = ("null", "a value, the empty text") if known else ("an empty text", "null")
        raise DataError(
            f"column {name!r}, row {texts.index(wrong)}: {what}, which ONNX takes for {other}; leave such "
            "rows out of the example",
            code="data-value",
        )


class _Graph:
    """Nodes in the making."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._count = 0

    def add(
        self, operator: str, inputs: Sequence[str], *, name: str = "", domain: str = "", **more: Any
    ) -> str:
        """Add a node, and return the name of its output."""
        from onnx import helper

        name = name or self._name()
        self.nodes.append(helper.make_node(operator, list(inputs), [name], domain=domain, **more))
        return name

    def constant(self, value: Any, dtype: str) -> str:
        """Add a constant, and return its name."""
        from onnx import numpy_helper

        name = self._name()
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def _name(self) -> str:
        self._count += 1
        return f"encoding/{self._count}"

    def _column(self, value: str, kind: int) -> str:
        cast = self.add("Cast", [value], to=kind)
        return self.add("Unsqueeze", [cast, self.constant([1], "int64")])

    def numbers(self, encoding: TableEncoding) -> list[str]:
        """Return the names of standardised columns, shape (rows, 1)."""
        from onnx import TensorProto

        parts = []
        for number in encoding.numbers:
            null, scaled = self._scaled(number)
            parts.append(self._column(scaled, TensorProto.FLOAT))
            if number.missing:
                parts.append(self._column(null, TensorProto.FLOAT))
        return parts

    def _scaled(self, number: Number) -> tuple[str, str]:
        null = self.add("IsNaN", [number.column])
        shifted = self.add("Sub", [number.column, self.constant(number.mean, "float64")])
        scaled = self.add("Div", [shifted, self.constant(number.deviation, "float64")])
        return null, self.add("Where", [null, self.constant(0.0, "float64"), scaled])

    def categories(self, encoding: TableEncoding) -> list[str]:
        """Return the names of numbered columns, shape (rows, 1)."""
        from onnx import TensorProto

        numbered = (
            self._text(category) if category.part is None else self._part(category, category.part)
            for category in encoding.categories
        )
        return [self._column(values, TensorProto.INT32) for values in numbered]

    def _text(self, category: Category) -> str:
        keys = {"": MISSING, **{text: FIRST + n for n, text in enumerate(category.values)}}
        return self.add(
            "LabelEncoder",
            [category.column],
            domain="ai.onnx.ml",
            keys_strings=list(keys),
            values_int64s=list(keys.values()),
            default_int64=OTHER,
        )

    def _part(self, category: Category, part: Part) -> str:
        from onnx import TensorProto

        null = self.add("IsNaN", [category.column])
        values = self.add("Where", [null, self.constant(0.0, "float64"), category.column])
        days = values
        if category.kind != "date":
            days = self.add("Div", [values, self.constant(_DAY, "float64")])
        days = self.add("Cast", [self.add("Floor", [days])], to=TensorProto.INT64)
        if part == "hour":
            whole = self.add("Cast", [self.add("Floor", [values])], to=TensorProto.INT64)
            found = self._divided(self._whole("Mod", whole, 86400), 3600)
        elif part == "weekday":
            found = self._whole("Mod", self._whole("Add", days, 3), 7)
        else:
            found = self._month(days)
        shifted = self._whole("Add", found, FIRST)
        return self.add("Where", [null, self.constant(MISSING, "int64"), shifted])

    def _month(self, days: str) -> str:
        """Return the month of days since 1970-01-01, from 0.

        An era has 400 years. In years that begin in March, months follow a period of 153 days for each five,
        whatever the leap years.
        """
        day = self._whole("Mod", self._whole("Add", days, 719468), 146097)
        leap = self.add("Sub", [day, self._divided(day, 1460)])
        leap = self.add("Add", [leap, self._divided(day, 36524)])
        leap = self.add("Sub", [leap, self._divided(day, 146096)])
        year = self._divided(leap, 365)
        before = self.add("Add", [self._whole("Mul", year, 365), self._divided(year, 4)])
        before = self.add("Sub", [before, self._divided(year, 100)])
        of_year = self.add("Sub", [day, before])
        period = self._divided(self._whole("Add", self._whole("Mul", of_year, 5), 2), 153)
        return self._whole("Mod", self._whole("Add", period, 2), 12)

    def _whole(self, operator: str, value: str, number: int) -> str:
        return self.add(operator, [value, self.constant(number, "int64")])

    def _divided(self, value: str, by: int) -> str:
        """Return a whole quotient; values are not negative here, so that it is rounded down."""
        return self._whole("Div", value, by)

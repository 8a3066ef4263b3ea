"""Applying a trained module to the columns of a DataFrame."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, Literal

import numpy as np
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DataType, StructField
from torch import nn

from sparkdl.data.collate import tensor_of
from sparkdl.data.columns import ColumnPlan, Columns, Structure, TablePlan, quoted, structure_of
from sparkdl.data.convert import from_rows
from sparkdl.data.schema import check_dataframe, is_pandas, plan_dataframe, plan_pandas, same_names
from sparkdl.data.sparse import of_row, passed
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.hf.labels import all_named
from sparkdl.ml.stages import tabular_frame
from sparkdl.ml.stages.arrow_columns import null_message
from sparkdl.ml.stages.forgiving import ERROR, ForgivingScorer
from sparkdl.ml.stages.outputs import VECTORS, OutputColumn, check_thresholds
from sparkdl.ml.stages.scorer import Scorer
from sparkdl.ml.stages.shipped import ship
from sparkdl.ml.stages.udf import by_rows, has_arrow_udf, has_udt, make_udf
from sparkdl.nn.batch import group
from sparkdl.nn.int8 import quantize as quantized
from sparkdl.nn.signature import Signature, TensorSpec, check_outputs_order
from sparkdl.table.encoding import TableEncoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """What a transform computes; raises ConfigError if two columns have one name."""

    module: nn.Module  # the trained module, on the CPU; it is used in evaluation mode
    inputs: Columns  # its columns: one, a list for positional inputs, a dict for keyword inputs
    outputs: tuple[OutputColumn, ...]  # the columns to add
    batch_size: int | None = None  # rows per forward pass; by default 1 MiB of them, from 32 to 4096
    batch_tokens: int | None = None  # values per forward pass, padding included, where rows differ in length
    # what to do with rows that have null in a column, or in an array: ``error``, ``skip`` leaves them out,
    # ``keep`` gives null outputs for them. NaN is a value like others.
    handle_invalid: Literal["error", "skip", "keep"] = "error"
    # of a table, whose columns are read in place of ``inputs``; null is a value there
    encoding: TableEncoding | None = None
    columns: tuple[str, ...] = ()  # the table's columns, in the order in which a SQL function takes them
    # the column for the reasons why rows cannot be scored; by default the first such row is an error
    errors: str | None = None

    def __post_init__(self) -> None:
        names = [output.column for output in self.outputs] + ([self.errors] if self.errors else [])
        if len(set(names)) < len(names):
            raise ConfigError(f"output columns {names}: expected different names")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A DataFrame whose rows a scorer can take."""

    df: DataFrame  # the DataFrame, without the rows that are to be left out
    plan: TablePlan  # how columns become the module's inputs
    encoding: TableEncoding | None  # of a table
    arguments: list[SqlColumn]  # the scorer's columns
    scorer: Scorer | ForgivingScorer  # gives a struct for each row
    fields: list[StructField]  # of the struct
    columns: list[StructField]  # for each field the column that it becomes


def prepare(df: DataFrame, inference: Inference, *, direct: bool) -> Prepared:
    """Check a DataFrame, and return what scores its rows.

    With ``direct``, Spark gives the scorer Arrow arrays, and none come from pandas. Raises DataError for
    columns that are missing, no tensors or there already, SerializationError if the module cannot be pickled.
    """
    errors = inference.errors
    for name in [*(output.column for output in inference.outputs), *([errors] if errors else [])]:
        if same_names(df, name):
            raise DataError(
                f"output column {name!r} is in the DataFrame already; drop it or choose another name"
            )
    encoding = inference.encoding
    plan = _plan(df, inference)
    if inference.handle_invalid == "skip" and encoding is None:
        df = df.where(_valid(df, plan))
    if encoding is None:
        arguments = [quoted(column.source) for column in plan.columns]
    else:  # checks the columns, before a filter names one
        arguments = tabular_frame.arguments(df, encoding)
    if errors and not direct:
        raise ConfigError("onError='column' needs Spark 4.1 or later; 'raise' works with this one")
    if direct and (has_udt(df.schema) or any(output.kind in VECTORS for output in inference.outputs)):
        df = by_rows(df, plan.columns[0].source if encoding is None else encoding.columns[0])
    names = tuple(f"o{n}" for n in range(len(inference.outputs)))
    kinds = [output.sql_type(vectors=direct) for output in inference.outputs]
    fields = [T.StructField(name, kind) for name, kind in zip(names, kinds, strict=True)]
    columns = [
        T.StructField(output.column, output.sql_type(), metadata=dict(output.metadata or {}))
        for output in inference.outputs
    ]
    if not direct and encoding is None:
        arguments = _for_pandas(df, plan, arguments, inference.handle_invalid)
    chosen, places = passed(plan.columns) if encoding is None else (range(len(arguments)), ())
    arguments = [arguments[n] for n in chosen]
    scorer = Scorer(
        shipped=ship(df.sparkSession, inference.module),
        structure=plan.features,
        plans=plan.columns,
        outputs=inference.outputs,
        batch_size=inference.batch_size,
        batch_tokens=inference.batch_tokens,
        keep=inference.handle_invalid == "keep" or not direct,
        names=names,
        vectors=direct,
        encoding=encoding,
        columns=() if encoding is None else encoding.columns,
        places=places,
    )
    if errors:
        fields.append(T.StructField(ERROR, T.StringType()))
        columns.append(T.StructField(errors, T.StringType()))
    task = ForgivingScorer(scorer) if errors else scorer
    return Prepared(df, plan, encoding, arguments, task, fields, columns)


def apply(df: DataFrame, inference: Inference) -> DataFrame:
    """Add the module's outputs to a DataFrame; nothing is computed until its rows are asked for.

    All other columns stay as they are. Works on classic Spark and Spark Connect, on tables and streams. As
    with any UDF, Spark may evaluate the module twice where a filter follows on one of its outputs;
    ``cache()`` in between prevents it. Raises DataError for columns that are missing, no tensors or there
    already, SerializationError if the module cannot be pickled.
    """
    check_dataframe(df, "transform")
    direct = has_arrow_udf()
    found = prepare(df, inference, direct=direct)
    df = found.df
    if not inference.outputs:
        return df
    result = f"sparkdl_{uuid.uuid4().hex}"
    udf = make_udf(found.scorer, T.StructType(found.fields))
    scored = df.select("*", udf(*found.arguments).alias(result))
    added = []
    for n, (field, target) in enumerate(zip(found.fields, found.columns, strict=True)):
        column = F.col(result).getField(field.name)
        if not direct:
            column = _from_pandas(column, inference.outputs[n])
            column = F.when(_valid(df, found.plan), column) if inference.encoding is None else column
        added.append(column.alias(target.name, metadata=target.metadata))
    return scored.select("*", *added).drop(result)


def _plan(df: DataFrame, inference: Inference) -> TablePlan:
    """Return how columns become the module's inputs."""
    if inference.encoding is None:
        return plan_dataframe(df, inference.inputs, None, None)[0]
    structure = structure_of(inference.inputs, "features")
    plans = tabular_frame.plans_of(inference.encoding, structure.kind == "dict")
    return TablePlan(plans, structure, Structure("none"), weighted=False)


def _type_of(df: DataFrame, plan: ColumnPlan) -> DataType:
    return next(field.dataType for field in df.schema.fields if field.name == plan.source)


def _for_pandas(
    df: DataFrame, plan: TablePlan, arguments: list[SqlColumn], handle_invalid: str
) -> list[SqlColumn]:
    """Turn vectors into arrays, and find null here: pandas makes NaN of it."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT

    for n, column in enumerate(plan.columns):
        if isinstance(_type_of(df, column), VectorUDT) and not column.part:
            arguments[n] = F.when(arguments[n].isNotNull(), vector_to_array(arguments[n]))
        if handle_invalid == "error":
            failure = F.raise_error(null_message(column.source, "a row"))
            valid = _valid(df, replace(plan, columns=(column,)))
            arguments[n] = F.when(valid, arguments[n]).otherwise(failure)
    return arguments


def _from_pandas(column: SqlColumn, output: OutputColumn) -> SqlColumn:
    """Turn null back into NaN, which pandas took for the same, and arrays into vectors."""
    from pyspark.ml.functions import array_to_vector

    def restore(value: SqlColumn, data_type: DataType) -> SqlColumn:
        if isinstance(data_type, T.ArrayType):
            return F.transform(value, lambda item: restore(item, data_type.elementType))
        if isinstance(data_type, T.StringType | T.LongType):
            return value
        return F.coalesce(value, F.lit(float("nan")).cast(data_type))

    column = restore(column, output.sql_type(vectors=False))
    return F.when(column.isNotNull(), array_to_vector(column)) if output.kind in VECTORS else column


def _valid(df: DataFrame, plan: TablePlan) -> SqlColumn:
    """Return the condition that no column is null or has null in an array."""

    def has_null(value: SqlColumn, data_type: DataType) -> SqlColumn | None:
        """Return the condition that an array has null in it, ``None`` where its type rules that out."""
        if not isinstance(data_type, T.ArrayType):
            return None

        def is_bad(item: SqlColumn) -> SqlColumn:
            inside = has_null(item, data_type.elementType)
            return item.isNull() if inside is None else item.isNull() | inside

        nested = isinstance(data_type.elementType, T.ArrayType)
        return F.exists(value, is_bad) if data_type.containsNull or nested else None

    conditions = []
    for column in plan.columns:
        value = quoted(column.source)
        conditions.append(value.isNotNull())
        inside = has_null(value, _type_of(df, column))
        if inside is not None:
            conditions.append(~inside)
    return reduce(and_, conditions)


# -- fitted models ---------------------------------------------------------------------------------


def transform(model: Any, df: DataFrame) -> DataFrame:
    """Apply a fitted model to a DataFrame, as its Params say; see :func:`apply`.

    Where neither the fit nor an example told what the module gives, the first rows are looked at, which runs
    a small job. Raises DataError for columns that are missing, no tensors or there already, ConfigError for
    Params that do not fit.
    """
    check_dataframe(df, f"{type(model).__name__}.transform")
    return apply(df, inference_of(model, df))


def inference_of(model: Any, df: DataFrame | None = None, *, decision: bool = False) -> Inference:
    """Return what a fitted model computes.

    The first rows of ``df`` are looked at where the module's outputs are not known. With ``decision``, a
    classifier's prediction alone is computed, as SQL functions do. Raises ConfigError if Params do not fit
    the module, or outputs are not known.
    """
    from sparkdl.ml.params.columns import HasClassOutputs, HasOutputs, value_of

    if isinstance(model, HasClassOutputs):
        outputs = _class_outputs(model, decision)
    elif isinstance(model, HasOutputs):
        outputs = _module_outputs(model, df)
    else:
        outputs = _regression_outputs(model, decision)
    return Inference(
        module=quantized(model.module) if model.getQuantize() else model.module,
        inputs=model.inputColumns(),
        outputs=tuple(outputs),
        batch_size=value_of(model, model.inferenceBatchSize),
        batch_tokens=value_of(model, model.maxBatchTokens),
        handle_invalid=model.getHandleInvalid(),
        encoding=model.encoding,
        columns=tuple(model.featuresNames()),
        errors=model.getErrorCol() if model.getOnError() == "column" else None,
    )


def _class_outputs(model: Any, decision: bool) -> list[OutputColumn]:
    """Return a classifier's columns, with the metadata that Spark's own classifiers give theirs."""
    from sparkdl.ml.params.columns import value_of

    thresholds = value_of(model, model.thresholds)
    classes = model.numClasses
    if thresholds is not None and classes > 0:
        check_thresholds(thresholds, classes)
    group = {"ml_attr": {"num_attrs": classes}} if classes > 0 else None
    nominal: dict[str, Any] | None = None
    if model.labels:
        nominal = {"ml_attr": {"type": "nominal", "vals": list(all_named(model.labels, classes))}}
    elif classes > 0:
        nominal = {"ml_attr": {"type": "nominal", "num_vals": classes}}
    chosen = None if thresholds is None else tuple(thresholds)
    decided = OutputColumn(
        column=model.getPredictionCol() or "prediction", kind="class", thresholds=chosen, metadata=nominal
    )
    if decision:
        return [decided]
    outputs = []
    if model.getRawPredictionCol():
        outputs.append(OutputColumn(column=model.getRawPredictionCol(), kind="raw", metadata=group))
    if model.getProbabilityCol():
        outputs.append(OutputColumn(column=model.getProbabilityCol(), kind="probability", metadata=group))
    if model.getPredictionCol():
        outputs.append(decided)
    if model.labels and model.getPredictedLabelCol():
        name = model.getPredictedLabelCol()
        outputs.append(OutputColumn(column=name, kind="label", thresholds=chosen, labels=model.labels))
    return outputs


def _regression_outputs(model: Any, decision: bool) -> list[OutputColumn]:
    column = model.getPredictionCol() or ("prediction" if decision else "")
    outputs = model.signature.outputs
    several = bool(outputs) and outputs[0].shape is not None and int(np.prod(outputs[0].shape)) != 1
    if not column:
        return []
    if several:
        return [OutputColumn(column=column, kind="doubles")]
    as_sparks: dict[str, Any] = {"ml_attr": {}}
    return [OutputColumn(column=column, kind="number", metadata=as_sparks)]


def _module_outputs(model: Any, df: DataFrame | None) -> list[OutputColumn]:
    specs = model.signature.outputs
    if not specs:
        if df is None:
            raise ConfigError(
                "what the module gives is not known: use from_module(module, example=rows), or transform a "
                "DataFrame first"
            )
        model.signature = look(model, df)
        specs = model.signature.outputs
    names = model.outputNames()
    if len(names) != len(specs):
        raise ConfigError(
            f"outputCols={names}: the module returns {len(specs)} tensors; name as many columns"
        )
    check_outputs_order(names, [spec.key for spec in specs])
    outputs = []
    for name, spec in zip(names, specs, strict=True):
        shape = spec.shape or ()
        if int(np.prod(shape)) == 1 and len(shape) <= 1:
            kind: Literal["number", "long"] = "long" if spec.dtype == "int64" else "number"
            outputs.append(OutputColumn(column=name, kind=kind, key=spec.key))
        else:
            outputs.append(OutputColumn(column=name, kind=_array_of(spec), key=spec.key, dims=len(shape)))
    return [output for output in outputs if output.column]


def _array_of(spec: TensorSpec) -> Literal["floats", "doubles", "longs"]:
    """Return the narrowest array that holds the values of a tensor; ids need all bits of an integer."""
    if spec.dtype == "int64":
        return "longs"
    low = spec.dtype in ("float32", "bfloat16", "float16", "bool", "uint8", "int8", "int16")
    return "floats" if low else "doubles"


def look(model: Any, df: Any) -> Signature:
    """Run a model's module on the first rows of a DataFrame, of Spark or pandas, and describe it.

    Raises ConfigError for no rows or a stream, DataError for missing or unusable columns, or ModelError.
    """
    if is_pandas(df):
        plan, arrays = plan_pandas(df.head(2), model.inputColumns(), None, None)
        tensors = [tensor_of(column, arrays[column.key]) for column in plan.columns]
        return Signature.of_rows(model.module, group(tensors, plan.features.names))
    if df.isStreaming:
        raise ConfigError(
            "what the module gives is not known, and the rows of a stream cannot be looked at: use "
            "from_module(module, example=rows)"
        )
    plan, _ = plan_dataframe(df, model.inputColumns(), None, None)
    rows = df.where(_valid(df, plan)).select(*(quoted(c.source) for c in plan.columns)).head(2)
    if not rows:
        raise ConfigError(
            "what the module gives is not known, and the DataFrame has no row without null: use "
            "from_module(module, example=rows)"
        )
    tensors = []
    for n, column in enumerate(plan.columns):
        values: Any = [_plain(row[n], column) for row in rows]
        column = replace(column, binary=False)
        if column.shape and not column.ragged:  # a number is an array of one, and flat arrays are reshaped
            values = from_rows(replace(column, shape=None), values, lambda index: f"row {index}")
        tensors.append(tensor_of(column, from_rows(column, values, lambda index: f"row {index}").copy()))
    found = Signature.of_rows(model.module, group(tensors, plan.features.names))
    return found.of_any_length([column.ragged for column in plan.columns])


def _plain(value: Any, plan: ColumnPlan) -> Any:
    """Return a row's value as numbers."""
    if plan.part:
        return of_row(value, f"column {plan.source!r}")[plan.part == "sparse.values"]
    if plan.binary:
        return np.frombuffer(value, plan.dtype).reshape(plan.shape or (-1,))
    return value.toArray() if hasattr(value, "toArray") else value

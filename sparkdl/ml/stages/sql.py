"""A fitted model as a function for SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from sparkdl.access.models import Lasting
from sparkdl.data.collate import MASK
from sparkdl.data.columns import ColumnPlan, as_column, structure_of
from sparkdl.data.sparse import passed, planned, spread
from sparkdl.exceptions import ConfigError
from sparkdl.ml.stages.inference import Inference, inference_of
from sparkdl.ml.stages.scorer import Scorer
from sparkdl.ml.stages.shipped import ship
from sparkdl.ml.stages.udf import has_arrow_udf, make_udf
from sparkdl.table.zones import zone_named


def as_udf(model: Any) -> Any:
    """Return a fitted model as a function for SQL, to be registered with ``spark.udf.register``.

    It takes the features columns, in order; rows of different lengths where the module has an
    ``attention_mask`` or the column is sparse. It returns the prediction of a classifier or regression, or
    the output of another module; of one with several outputs a struct of them, by column name. Rows with
    null fail if ``handleInvalid`` is ``error``, else they give null.

    In a session that :mod:`sparkdl.session` did not make, Spark 4.3 may fail on tables with ML vectors: set
    ``spark.sql.execution.arrow.pythonUDF.columnarInput.enabled`` to ``false`` there.

    Raises:
        ConfigError: if there is no active Spark session, or the module's outputs are not known.
    """
    return inference_udf(inference_of(model, decision=True), free_inputs(model))


def free_inputs(model: Any) -> list[bool]:
    """Return for each input of a model's module whether its rows may differ in length."""
    inputs = model.signature.inputs
    # A mask hides what fills shorter texts up; else only metadata tell what does, which transform sees.
    masked = any(spec.key == MASK for spec in inputs)
    return [masked and spec.shape is None and spec.dtype is not None for spec in inputs]


def inference_udf(inference: Inference, ragged: Sequence[bool] = ()) -> Any:
    """Return a function of an inference's columns that gives its output, or a struct of several.

    ``ragged`` tells for each input whether its rows may differ in length; none may by default.
    """
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise ConfigError(
            "there is no active Spark session; make one first, for example sparkdl.session.builder"
        )
    encoding, vectors = inference.encoding, has_arrow_udf()
    if encoding is not None and not vectors:  # pandas gets what the clock of this session shows
        zone = zone_named(str(spark.conf.get("spark.sql.session.timeZone")))
        inference = replace(inference, encoding=replace(encoding, zone=zone))
    scorer = scorer_of(inference, ship(spark, inference.module), ragged, vectors=vectors)
    kinds = [output.sql_type(vectors=vectors) for output in inference.outputs]
    if not scorer.names:
        return make_udf(scorer, kinds[0])
    fields = zip(scorer.names, kinds, strict=True)
    return make_udf(scorer, T.StructType([T.StructField(name, kind) for name, kind in fields]))


def scorer_of(
    inference: Inference, shipped: Lasting, ragged: Sequence[bool] = (), *, vectors: bool = True
) -> Scorer:
    """Return what scores an inference's columns in the tasks, where no DataFrame tells their types."""
    inputs = spread(inference.inputs)
    structure = structure_of(inputs, "features")
    plans = []
    for key, chosen in structure.disassemble(inputs).items():
        column = as_column(chosen)
        plans.append(planned(ColumnPlan(key, column.name, False, column.dtype, column.shape)))
    if len(ragged) == len(plans):
        plans = [replace(p, ragged=p.ragged or free) for p, free in zip(plans, ragged, strict=True)]
    outputs = inference.outputs
    names = tuple(output.column for output in outputs) if len(outputs) > 1 else ()
    return Scorer(
        shipped=shipped,
        structure=structure,
        plans=tuple(plans),
        outputs=outputs,
        batch_size=inference.batch_size,
        batch_tokens=inference.batch_tokens,
        keep=inference.handle_invalid != "error",
        names=names,
        vectors=vectors,
        encoding=inference.encoding,
        columns=inference.columns,
        places=passed(plans)[1] if inference.encoding is None else (),
    )

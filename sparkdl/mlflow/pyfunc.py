"""The model that :mod:`mlflow.pyfunc` loads, for ``spark_udf``, ``mlflow models serve`` and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import torch

from sparkdl.ml.stages.udf import to_pandas
from sparkdl.serve.served import ServedModel
from sparkdl.table.values import arrow
from sparkdl.table.zones import zone_named


class PyFunc:
    """A model from columns to columns, as its ``transform``."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served

    def predict(self, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        """Return the columns that ``transform`` adds, for rows that MLflow has compared with the signature.

        They have the index of the rows, by which pandas puts them beside these.

        Raises:
            DataError: naming column and row of what cannot become a tensor.
        """
        columns = [name for name in self._served.columns if name in model_input.columns]
        table = pa.table({name: arrow(name, model_input[name]) for name in columns})
        found: pd.DataFrame = to_pandas(self._served(table))
        return found.set_axis(model_input.index)


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> PyFunc:
    """Load a model; MLflow calls it by this name."""
    from pyspark import TaskContext

    served = ServedModel.load(path, trust=list((model_config or {}).get("trust", ())))
    context = TaskContext.get()
    if context is not None:  # in a task of Spark, whose cores are not all of the machine's
        torch.set_num_threads(context.cpus())
        zone = context.getLocalProperty("spark.sql.session.timeZone")
        if zone is not None and served.encoding is not None:  # pandas gets what this session's clock shows
            served.encoding = replace(served.encoding, zone=zone_named(zone))
    return PyFunc(served)

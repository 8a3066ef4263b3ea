"""Loss and metrics of a fitted model on a DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from pyspark.ml.classification import ProbabilisticClassificationModel
from pyspark.ml.regression import RegressionModel
from pyspark.sql import DataFrame
from torch import Tensor

from sparkdl.data.columns import Column, Columns
from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import ConfigError
from sparkdl.metrics import LOSS
from sparkdl.ml.estimators import fitting, tables
from sparkdl.ml.params.columns import value_of
from sparkdl.ml.params.training import HasLabelCols
from sparkdl.nn.batch import tensors_of
from sparkdl.nn.int8 import quantize as quantized
from sparkdl.nn.losses import binary_cross_entropy, cross_entropy, squared_error
from sparkdl.train.given import knows_loss
from sparkdl.train.trainer import Trainer

Loss = Callable[[Any, Any], Any]


def evaluate(model: Any, df: DataFrame, metrics: Any, loss: Loss | None) -> dict[str, float]:
    """Compute loss and metrics of a fitted model of this package; see its method of this name."""
    fitting.check_rows(type(model).__name__, df, "evaluate")
    label, own = _label_and_loss(model)
    chosen = loss if loss is not None else own
    measured = chosen is not None or knows_loss(model.module)
    if not measured and metrics is None:
        raise ConfigError(
            f"{type(model).__name__}.evaluate: give metrics=, or loss=, a callable loss(output, label): the "
            "model does not know the loss that it was fitted with"
        )
    weight = value_of(model, model.weightCol) or None
    names = [column.name for column in (label if isinstance(label, list) else [label]) if column]
    if model.labels:
        fitting.check_numbers(df, names[0], model.labels)
        df, _ = fitting.index_strings(df, names[0], model.labels)
    kept = [*names, *([weight] if weight else [])]
    features: Columns = model.inputColumns()
    if model.encoding is not None:
        features = tables.inputs_of(model.encoding, model.module)
    if model.getHandleInvalid() != "error":
        read = kept if model.encoding is not None else [*model.featuresNames(), *kept]
        df = fitting.with_values(df, [name for name in read if name in df.columns])
    trainer = Trainer(
        quantized(model.module) if model.getQuantize() else model.module,
        loss=chosen if measured else _nothing,
        optimizer=partial(torch.optim.SGD, lr=0.0),  # nothing is trained
        progress=False,
        name=type(model).__name__,
    )
    if model.encoding is not None:
        df = tables.arrays(df, model.encoding, list(dict.fromkeys(kept)))
    with Dataset.from_dataframe(df, features=features, label=label, weight=weight) as data:
        if own is binary_cross_entropy:  # a float that is no class would be taken for a share
            fitting.check_labels(df, names[0], 2)
        found = trainer.evaluate(data, metrics)
    if not measured:
        del found[LOSS]
    return found


def _label_and_loss(model: Any) -> tuple[Column | list[Column] | None, Loss | None]:
    """Return the label as a fit reads it, and the default loss."""
    name = model.getLabelCol()
    if isinstance(model, HasLabelCols):
        several = value_of(model, model.labelCols)
        return [Column(each) for each in several] if several else Column(name) if name else None, None
    outputs = [spec for spec in model.signature.outputs if spec.shape is not None]
    if len(outputs) == 1 and isinstance(model, ProbabilisticClassificationModel):
        if prod(outputs[0].shape or ()) == 1:
            return Column(name, outputs[0].shape, "float32"), binary_cross_entropy
        return Column(name, dtype="int64"), cross_entropy
    if len(outputs) == 1 and isinstance(model, RegressionModel):
        return Column(name, outputs[0].shape, outputs[0].dtype), squared_error
    return Column(name), None


def _nothing(output: Any, label: Any) -> Tensor:
    """Stand for a loss that is not known; one value per row."""
    return torch.zeros(len(tensors_of(output)[0]))

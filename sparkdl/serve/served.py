"""A saved model, warmed up, from columns to columns as its ``transform``, in a process without a JVM."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
from torch import Tensor, nn

from sparkdl.data import ragged, sparse
from sparkdl.data.collate import MASK, tensor_of
from sparkdl.data.columns import ColumnPlan, structure_of
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.hf.padding import reads_behind
from sparkdl.ml.estimators.model import TorchClassificationModel, TorchModel, TorchRegressionModel
from sparkdl.ml.persistence.saving import instance_of
from sparkdl.ml.persistence.stored import explained, set_params
from sparkdl.ml.stages.arrow_columns import ArrowColumns
from sparkdl.ml.stages.arrow_vectors import in_words
from sparkdl.ml.stages.inference import inference_of
from sparkdl.ml.stages.outputs import OutputColumn, select
from sparkdl.ml.stages.scorer import rows_per_batch
from sparkdl.ml.stages.tabular_frame import plans_of
from sparkdl.nn.embedding import EmbeddingVariable, embedding_variables
from sparkdl.nn.prepack import prepack
from sparkdl.nn.trace import infer
from sparkdl.saved.metadata import KEY
from sparkdl.saved.moved import current_class
from sparkdl.saved.reading import SavedVersion, changed_copy, read_model
from sparkdl.saved.trust import Entry
from sparkdl.serve.columns import moments, one_chunk
from sparkdl.serve.columns import plans_of as column_plans
from sparkdl.serve.passes import cut
from sparkdl.table.encoding import TableEncoding
from sparkdl.wire.frame import Array

MODELS = (TorchModel, TorchClassificationModel, TorchRegressionModel)


@dataclass(frozen=True, slots=True)
class ModuleInputs:
    """Rows as the module takes them, checked."""

    valid: Array  # which rows there are results for; the others have null in a column
    arrays: Mapping[str, Array]  # of the valid rows, by input of the module

    def __len__(self) -> int:
        return len(self.valid)


class ServedModel:
    """A fitted model without Spark: Arrow columns in, the columns that ``transform`` adds out.

    It is called in two parts, so that a server can join the rows of several requests: :meth:`prepare` checks
    rows and names the one at fault, :meth:`run` computes. ML vectors are lists of doubles; those of a sparse
    column may be structs with indices and values, or what Spark makes of them. Rows that differ in length
    share a forward pass if the module has an ``attention_mask``, else those of one length do. A module stays
    as it is, its weights are shared, and ``version`` tells models apart that are served one after the other.
    ``encoding`` is ``None`` where the module gets arrays as they are.
    """

    def __init__(self, model: Any, *, version: str = "") -> None:
        inference = inference_of(model)
        self.version = version
        self._whole: tuple[Any, SavedVersion] | None = None
        self.name = type(model).__name__
        self.encoding: TableEncoding | None = model.encoding
        self.outputs: tuple[OutputColumn, ...] = inference.outputs
        self._module: nn.Module = prepack(copy_sharing(inference.module.eval()))
        inputs = sparse.spread(inference.inputs)
        self._structure = structure_of(inputs, "features")
        self._keep = inference.handle_invalid != "error"
        self.plans: tuple[ColumnPlan, ...]  # shape, dtype and column of each input
        if self.encoding is None:
            self.plans = tuple(column_plans(self._structure.disassemble(inputs)))
        else:
            self.plans = plans_of(self.encoding, self._structure.kind == "dict")
        if any(plan.dtype is None for plan in self.plans):
            raise ConfigError(
                f"what {self.name} takes is not known: make it with from_module(module, example=rows)"
            )
        # A mask hides what fills shorter rows up, and 0 in sparse rows is no value.
        masked = MASK in self._structure.names and not reads_behind(self._module)
        self._padded = masked or all(p.part or not p.ragged for p in self.plans)
        typical = [replace(p, shape=(ragged.ANY,)) if p.ragged else p for p in self.plans]
        self.batch_size = inference.batch_size or rows_per_batch(typical)

    @classmethod
    def load(
        cls, path: str, *, trust: Entry | Iterable[Entry] = (), quantize: bool | None = None
    ) -> ServedModel:
        """Read what ``model.save(path)`` wrote; nothing is unpickled.

        ``trust`` and ``quantize`` are as of :meth:`sparkdl.serve.Predictor.load`. Raises ConfigError if there
        is no complete model that this version can read, or it needs a pickle, or names code that is not
        trusted; ModelError if the module cannot be built, or the weights do not fit it.
        """
        model, version = read_fitted(path, trust=trust)
        if quantize is not None:
            model.setQuantize(quantize)
        return cls._read(model, version)

    @classmethod
    def _read(cls, model: Any, version: SavedVersion) -> ServedModel:
        served = cls(model, version=version.name)
        if embedding_variables(model.module):  # of others no changes are published
            served._whole = (model, version)
        return served

    def after_changes(self, path: str) -> ServedModel | None:
        """Return the model with the changes that were published since; this one stays as it is.

        It is ``None`` if changes alone do not lead to what is there now: it must be read as a whole. Raises
        ConfigError if that cannot be read, ModelError if the changes do not fit.
        """
        if self._whole is None:
            return None
        model, version = self._whole
        found = changed_copy(path, model.module, version)
        if found is None:
            return None
        changed = copy.copy(model)
        changed.module = found[0]
        return self._read(changed, found[1])

    def copy(self) -> Self:
        """Return a second one that shares the weights and nothing else, for another thread."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._module = copy_sharing(self._module)
        return other

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a row must have, and their types, in words."""
        if self.encoding is not None:
            return dict(self.encoding.kinds)
        return {plan.source: in_words(plan) for plan in self.plans}

    @property
    def vectors(self) -> tuple[str, ...]:
        """The columns that hold sparse vectors."""
        return tuple(dict.fromkeys(plan.source for plan in self.plans if plan.part))

    def prepare(self, table: pa.Table) -> ModuleInputs:
        """Check rows, of which columns not known are passed over, and convert them; dates may be ISO 8601."""
        names = tuple(self.columns)
        for name in names:
            if name not in table.column_names:
                raise DataError(
                    f"column {name!r} is missing; the model takes {', '.join(names)}, and there are "
                    f"{', '.join(table.column_names) or 'none':.300}",
                    code="data-column",
                )
        columns = {name: one_chunk(table.column(name)) for name in names}
        if self.encoding is not None:
            for name, kind in self.encoding.kinds.items():
                if kind in ("date", "timestamp") and columns[name].type in (pa.string(), pa.large_string()):
                    columns[name] = moments(name, columns[name])
            encoded = self.encoding.encode(columns)
            valid = np.ones(len(table), np.bool_)
            return ModuleInputs(valid, {plan.key: encoded[plan.source] for plan in self.plans})
        converted = ArrowColumns(self.plans, self._structure, keep=self._keep, name=lambda row: f"row {row}")
        valid, arrays = converted.convert([columns[plan.source] for plan in self.plans])
        return ModuleInputs(valid, arrays or {plan.key: _zeros(plan)[:0] for plan in self.plans})

    def run(self, requests: Sequence[ModuleInputs]) -> list[pa.Table]:
        """Compute the results of several requests at once."""
        valid = np.concatenate([rows.valid for rows in requests])
        # A copy, also of a single request's: torch wants memory that may be written to.
        arrays = {
            plan.key: np.concatenate([rows.arrays[plan.key] for rows in requests]) for plan in self.plans
        }
        # A row's number is its place in its request, whoever shares the pass.
        numbers = np.concatenate([np.flatnonzero(rows.valid) for rows in requests])
        table = self._table(self._forward(arrays, numbers), valid)
        ends = np.cumsum([len(rows) for rows in requests])
        return [
            table.slice(int(end) - len(rows), len(rows)) for end, rows in zip(ends, requests, strict=True)
        ]

    def warm_up(self) -> None:
        """Compute a row of zeros, so that the first request need not wait for what is made once."""
        self._forward({}, np.arange(0))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the results of rows; errors as of :meth:`prepare` and :meth:`run`."""
        return self.run([self.prepare(table)])[0]

    def _forward(self, arrays: Mapping[str, Array], numbers: Array) -> list[Array]:
        """Return what each output column is made of, for rows with these numbers."""
        if not len(numbers):  # modules may fail without any: one of zeros tells shapes
            zeros = {plan.key: _zeros(plan) for plan in self.plans}
            return [values[:0] for values in self._forward(zeros, np.arange(1))]
        plans = {plan.key: plan for plan in self.plans}
        passes = cut([arrays[plan.key] for plan in self.plans], self.batch_size, padded=self._padded)
        parts: list[list[Array]] = []
        for chosen in passes.rows:
            batch = {key: tensor_of(plans[key], values[chosen]) for key, values in arrays.items()}
            output = infer(self._module, self._structure.assemble(batch), numbers[chosen])
            count = len(next(iter(batch.values())))
            parts.append([select(output, wanted.key, count) for wanted in self.outputs])
        return [passes.joined(column) for column in zip(*parts, strict=True)]

    def _table(self, values: Sequence[Array], valid: Array) -> pa.Table:
        mask = None if valid.all() else ~valid
        columns = []
        for output, found in zip(self.outputs, values, strict=True):
            if mask is not None:
                spread = np.zeros((len(valid), *found.shape[1:]), found.dtype)
                spread[valid] = found
                found = spread
            columns.append(output.to_arrow(found, mask, vectors=False))
        return pa.table(columns, names=[output.column for output in self.outputs])


def read_fitted(path: str, *, trust: Entry | Iterable[Entry] = ()) -> tuple[Any, SavedVersion]:
    """Read a fitted model without Spark, and its version; arguments and errors as of the load method."""
    content, metadata, version = read_model(path, trust=trust)
    kinds: dict[str, Any] = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in MODELS}
    kind = kinds.get(current_class(metadata["class"]))
    if kind is None:
        raise ConfigError(
            f"path={path!r} holds a {metadata['class']:.200}: expected one of "
            f"{', '.join(kind.__name__ for kind in MODELS)}",
            code="config-saved",
        )
    with explained(path):
        model = instance_of(kind, content)
        for name in metadata[KEY]["hyper"]:
            model.getParam(name)
    set_params(model, metadata, path)
    return model, version


def _zeros(plan: ColumnPlan) -> Array:
    if plan.ragged:
        return ragged.of_rows([np.zeros(1, plan.dtype)])
    return np.zeros((1, *(plan.shape or ())), plan.dtype)


def copy_sharing(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose parameters, buffers and other tensors are the module's own.

    What a forward pass leaves in attributes stays in the copy, so threads that have a copy each do not
    disturb each other, and the weights are in memory once. So are the rows of embedding variables, which a
    look-up only reads.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        tensors = [*part._parameters.values(), *part._buffers.values()]
        tensors += [value for value in vars(part).values() if isinstance(value, Tensor)]
        memo |= {id(tensor): tensor for tensor in tensors if tensor is not None}
        if isinstance(part, EmbeddingVariable):
            memo[id(part.store)] = part.store
        forward = vars(part).get("forward")
        if forward is not None and not hasattr(forward, "__self__"):  # a packed layer's: nothing but weights
            memo[id(forward)] = forward
    return copy.deepcopy(module, memo)

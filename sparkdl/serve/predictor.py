"""Prediction without Spark: numpy in, numpy out."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.data.collate import check_mask
from sparkdl.data.columns import ColumnPlan
from sparkdl.data.loose import array_of, filled, spread
from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.hf.labels import all_named
from sparkdl.hf.padding import reads_behind
from sparkdl.ml.stages.outputs import decide, probability_of, raw_of
from sparkdl.nn.batch import Inputs, group, map_tensors, tensors_of
from sparkdl.nn.export import check_onnx, to_onnx
from sparkdl.nn.int8 import quantize as quantized
from sparkdl.nn.signature import Signature, TensorSpec
from sparkdl.nn.trace import describe, infer
from sparkdl.saved.reading import SavedVersion, changed_copy, read_model, read_version
from sparkdl.saved.table_rows import read_rows_from
from sparkdl.saved.trust import Entry
from sparkdl.table.encoding import TableEncoding, read_table
from sparkdl.table.onnx import add_encoding, feeds
from sparkdl.table.values import columns_of
from sparkdl.wire.frame import Array


class Predictor:
    """A trained module behind numpy arrays; may be called from several threads at once.

    Args:
        module: the module; it is put in evaluation mode. Its forward pass must not change it.
        signature: shapes and dtypes of its inputs. Without it, floating-point arrays get the dtype of the
            module's parameters.
        batch_size: most rows of one forward pass; larger inputs are cut.
        encoding: of a table's columns, if the module was trained on such: :meth:`predict` takes these
            columns.
        labels: the names of a classifier's classes, where they have names.
        thresholds: of a classifier, one for each class: the class is that of the highest probability /
            threshold.
        quantize: whether to multiply 8-bit integers in linear and convolution layers (of a copy). Weights
            take a quarter of the memory, and CPUs with VNNI instructions multiply large ones several times
            as fast; small layers become slower. On scikit-learn's digits, an MLP's accuracy on 360 test rows
            changes by at most one row, and its logits by 1 % of the largest; on MNIST, LeNet-5's by one of
            1,000 rows.

    Attributes:
        encoding: what becomes of a table's columns; ``None`` where the module gets arrays as they are.
        labels: the names of the classes, by number; empty where labels were numbers.

    Raises:
        ConfigError: if ``batch_size`` is no positive integer.
    """

    def __init__(
        self,
        module: nn.Module,
        signature: Signature | None = None,
        *,
        encoding: TableEncoding | None = None,
        labels: Sequence[str] = (),
        thresholds: Sequence[float] | None = None,
        batch_size: int = 1024,
        quantize: bool = False,
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size={batch_size!r}: expected a positive integer")
        self._module = quantized(module) if quantize else module.eval()
        self._signature = signature or Signature()
        self.encoding = encoding
        self.labels = tuple(labels)
        self._thresholds = thresholds
        self._kind = ""
        self._batch_size = batch_size
        self._quantized = quantize
        self._loaded: tuple[SavedVersion, partial[Predictor]] | None = None
        floating = (p.dtype for p in self._module.parameters() if p.is_floating_point())
        self._dtype = next(floating, torch.float32)

    @classmethod
    def of(cls, model: Any, **options: Any) -> Predictor:
        """Make a predictor of a fitted model, whose module it shares; options as of the class."""
        params = {param.name: value for param, value in model.extractParamMap().items()}
        own = _options_of(model.encoding, model.labels, params)
        made = cls(model.module, model.signature, **(own | options))
        made._kind = type(model).__name__
        return made

    @classmethod
    def load(
        cls,
        path: str,
        *,
        pickle: bool = False,
        trust: Entry | Iterable[Entry] = (),
        rows: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Predictor:
        """Read what ``model.save(path)`` wrote, without Spark.

        Args:
            path: folder, or URL of one that fsspec can open; also of a folder of published versions
                (:class:`sparkdl.online.Publisher`), of which the current one is read.
            pickle: whether pickled code may be read, for models that were saved with such. Reading a pickle
                can run any code: only read what comes from someone you trust.
            trust: packages, modules or classes that the model may name besides those of torch, torchmetrics
                and sparkdl: ``["mypackage.nets"]``, or ``[Net]``. Nothing else is imported.
            rows: a local folder that :func:`sparkdl.saved.table_rows.export_rows` has written: the rows of
                embedding variables are looked up there, in files that are mapped to memory. Save the model
                :func:`~sparkdl.saved.table_rows.without_rows`, or it has rows of its own in memory.
            **options: ``batch_size``; and ``quantize``, by default as the model says.

        Raises:
            ConfigError: if there is no complete model that this version can read, or it holds a pickle that
                was not allowed, or names code that is not trusted; or if ``rows`` does not fit.
            ModelError: if the module cannot be built, or the weights do not fit it.
        """
        content, metadata, version = read_model(path, pickle=pickle, trust=trust)
        assert content.module is not None
        if rows is not None:
            read_rows_from(content.module, rows)
        own = _options_of(*read_table(content.table), metadata.get("paramMap") or {})
        loaded = cls(content.module, content.signature, **(own | options))
        loaded._kind = metadata["class"].rpartition(".")[2]
        if rows is not None:  # which belong to one version
            return loaded
        again = partial(cls.load, path, pickle=pickle, trust=trust, **options)
        loaded._loaded = (version, again)
        return loaded

    def refresh(self) -> bool:
        """Take up the version that is now where this one was loaded from; return whether it is another.

        It is read beside the one in use, with the same options, and takes its place at once: calls of
        :meth:`predict` in other threads go on meanwhile, and end with the version that they began with. If
        the new version cannot be read, the old one stays. Where changes alone were published, they are read,
        and made in a copy of the module in use.

        Raises:
            ConfigError: if it was not loaded from a path, or what is there now cannot be read.
            ModelError: if the module cannot be built, or the weights do not fit it.
        """
        if self._loaded is None:
            raise ConfigError(
                "refresh: only what Predictor.load(path) has read, without rows=, can be read again"
            )
        version, again = self._loaded
        path = again.args[0]
        if read_version(path) == version:
            return False
        found = None if self._quantized else changed_copy(path, self._module, version)
        if found is None:
            new = again()
        else:
            new = copy(self)
            new._module, new._loaded = found[0], (found[1], again)
        # All at once: predict works on a copy, which has everything of one version.
        self.__dict__ = new.__dict__
        return True

    def predict(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the module on rows.

        Args:
            *args: the module's inputs, shape (rows, ...): one array, several positional ones (also as one
                tuple), or a dict by name, as the module was trained. A list of ML vectors, or a sparse matrix
                of scipy, stands for the indices and values of a sparse column. A list of rows that differ in
                length is filled up if there is an input ``attention_mask``. For the model of a table its
                columns: a pandas DataFrame, an Arrow table, or a dict of lists or arrays, where ``None`` and
                NaN are null.
            **kwargs: inputs, or columns, by name, instead. Times without a zone follow the clock of the
                session that fitted the model, as ``df.toPandas()`` gives them there.

        Returns:
            What the module returns, tensors as arrays: one, a tuple, or a dict.

        Raises:
            DataError: if the inputs are not arrays of numbers, differ in length, or do not have the shape
                that the module was trained on; if a value does not fit the dtype that it was trained on, such
                as 2.7 or NaN for an integer; or if a column of a table is missing, or of another type.
            ModelError: naming the layer that fails.
        """
        now = copy(self)  # another thread may refresh this one
        batches = _batches(now._inputs(args, kwargs), now._batch_size)
        return _joined([(len(rows), infer(now._module, batch, rows)) for rows, batch in batches])

    __call__ = predict

    def predict_proba(self, /, *args: Any, **kwargs: Any) -> Array:
        """Return the probability of each class, shape (rows, classes); arguments and errors as of predict.

        It is the softmax of a classifier's logits, or the sigmoid of a single one: the column ``probability``
        of ``transform`` and of the server, as :meth:`predict` gives the logits that ``rawPrediction`` has (of
        two less their mean).

        Raises:
            ConfigError: if it is no classifier's.
        """
        return probability_of(self._logits("predict_proba", self.predict(*args, **kwargs)))

    def predict_label(self, /, *args: Any, **kwargs: Any) -> Array:
        """Return the label of each row, or its class's number where labels have no names.

        It is ``predictedLabel``, or else ``prediction``, of ``transform`` and of the server; arguments and
        errors as of :meth:`predict_proba`. A class beyond the names has its number as one: ``LABEL_2``. A
        row whose outputs are NaN has ``None``; without names, rows have floats then, and it has NaN.
        """
        now = copy(self)  # another thread may refresh this one
        logits = now._logits("predict_label", now.predict(*args, **kwargs))
        chosen = now._thresholds
        scores = raw_of(logits) if chosen is None else probability_of(logits)
        decided = decide(scores, chosen)
        unknown = np.isnan(decided)
        if now.labels:
            names = [*all_named(now.labels, scores.shape[1]), None]
            return np.array(names, object)[np.where(unknown, -1, decided).astype(np.int64)]
        return decided if unknown.any() else decided.astype(np.int64)

    def _logits(self, method: str, output: Any) -> Array:
        """Return a classifier's logits, shape (rows, logits)."""
        if self._kind not in ("", "TorchClassificationModel"):
            raise ConfigError(f"{method}: {self._kind} is no classifier; predict() gives its outputs")
        if not isinstance(output, np.ndarray) or output.ndim not in (1, 2) or 0 in output.shape[1:]:
            raise ConfigError(
                f"{method}: {type(self._module).__name__} gives other outputs than a classifier, which gives "
                "one logit per class, or a single one, for each row; predict() gives outputs as they are"
            )
        return (output if output.ndim == 2 else output[:, None]).astype(np.float64)

    def to_onnx(self, path: str | os.PathLike[str], example: Any, *, tolerance: float = 1e-4) -> None:
        """Write the module as ONNX, and what becomes of a table's columns with it.

        The model of a table has one input per column, of shape (rows,): strings, where the empty one stands
        for null unless it was a value in the fit, and doubles for all others, where NaN stands for null;
        dates are days and timestamps seconds since 1970-01-01 in UTC. Needs ``pip install 'sparkdl[onnx]'``.

        Args:
            path: local file to write.
            example: rows for a check of what was written, at least two, as :meth:`predict` takes them.
            tolerance: largest difference between outputs, relative to the largest output.

        Raises:
            ConfigError: if a package is missing, or ``example`` has too few rows.
            ModelError: if the module cannot be exported, or what was written computes something else.
        """
        if self.encoding is None:
            to_onnx(self._module, example, path, tolerance=tolerance)
            return
        columns = columns_of(example, self.encoding.columns)
        to_onnx(self._module, self._encoded(self.encoding, (example,), {}), path, tolerance=tolerance)
        add_encoding(path, self.encoding)
        check_onnx(path, feeds(self.encoding, columns), self.predict(example), tolerance)

    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
        if self.encoding is not None:
            return self._encoded(self.encoding, args, kwargs)
        only = args[0] if len(args) == 1 else None
        if isinstance(only, Mapping) and not kwargs:
            args, kwargs = (), only
        elif isinstance(only, tuple):
            args = only
        if bool(args) == bool(kwargs):
            raise DataError(
                "inputs: expected either positional arrays or arrays by name, got "
                f"{len(args)} positional and {sorted(kwargs)}",
                code="data-shape",
            )
        if len(self._signature.inputs) != len(args) + len(kwargs):
            args, kwargs = spread(args, kwargs)
        specs = self._specs(len(args), kwargs)
        if any(map(_differ, (*args, *kwargs.values()))):
            if reads_behind(self._module):
                raise DataError(
                    f"rows differ in length, and {type(self._module).__name__} reads what fills them up, "
                    "whatever attention_mask says: give those of one length at a time",
                    code="data-shape",
                )
            args, kwargs = filled(args, kwargs)
        tensors = [self._tensor(value, specs.get(i), "", f"input {i}") for i, value in enumerate(args)]
        tensors += [self._tensor(value, specs.get(name), name) for name, value in kwargs.items()]
        check_mask(dict(zip(kwargs, tensors[len(args) :], strict=True)), lambda index: f"row {index}")
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) > 1:
            raise DataError(f"inputs have different numbers of rows: {sorted(lengths)}", code="data-shape")
        return group(tensors, list(kwargs))

    def _encoded(self, encoding: TableEncoding, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
        """Return what the module gets of a table's columns."""
        if len(args) + bool(kwargs) != 1 or (args and not _is_table(args[0])):
            raise DataError(
                "inputs: expected the columns of a table, as a DataFrame, an Arrow table or a dict by name: "
                f"{', '.join(encoding.columns)}",
                code="data-shape",
            )
        columns = columns_of(args[0] if args else kwargs, encoding.columns)
        tensors = [torch.from_numpy(array) for array in encoding.encode(columns).values()]
        return group(tensors, [str(spec.key) for spec in self._signature.inputs if spec.key is not None])

    def _specs(self, positional: int, named: Collection[str]) -> dict[int | str | None, TensorSpec]:
        """Return the known inputs, by position or name."""
        inputs = self._signature.inputs
        names = {spec.key for spec in inputs if spec.key is not None}
        if names:
            if set(named) != names:
                found = f"{positional} positional ones" if positional else f"{sorted(named)}"
                raise DataError(
                    f"the module takes inputs by name: {sorted(map(str, names))}, got {found}",
                    code="data-shape",
                )
            return {spec.key: spec for spec in inputs}
        given = positional + len(named)
        if inputs and len(inputs) != given:
            raise DataError(f"the module takes {len(inputs)} inputs, got {given}", code="data-shape")
        return dict(enumerate(inputs))

    def _tensor(self, value: Any, spec: TensorSpec | None, name: str, role: str = "input") -> Tensor:
        """Return rows as the module takes them, with the checks of the columns of a transform."""
        spec = spec or TensorSpec()
        dtype = spec.dtype
        if dtype is None and _are_floats(value):
            dtype = str(self._dtype).removeprefix("torch.")
        plan = ColumnPlan("", name, dtype=_of_numpy(dtype), shape=spec.shape, role=role)
        tensor = torch.from_numpy(array_of(plan, value))
        return tensor if dtype is None else tensor.to(getattr(torch, dtype))


def _options_of(
    encoding: TableEncoding | None, labels: Sequence[str], params: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a predictor that follow from a fitted model."""
    thresholds, quantize = params.get("thresholds"), bool(params.get("quantize"))
    return {"encoding": encoding, "labels": labels, "thresholds": thresholds, "quantize": quantize}


def _of_numpy(dtype: str | None) -> str | None:
    """Return the dtype by which rows are checked: numpy has no bfloat16, and no check suits complex ones."""
    if dtype is None or dtype.startswith("complex"):
        return None
    return "float32" if dtype == "bfloat16" else dtype


def _batches(inputs: Inputs, size: int) -> Iterator[tuple[Array, Inputs]]:
    """Cut inputs into batches, each after the numbers of its rows; one batch without rows is one too."""
    count = len(tensors_of(inputs)[0])
    for start in range(0, max(count, 1), size):
        rows = np.arange(start, min(start + size, count))
        yield rows, map_tensors(inputs, itemgetter(slice(start, start + size)))


def _are_floats(value: Any) -> bool:
    """Return whether numpy makes an array of floats of a value."""
    try:
        return np.asarray(value).dtype.kind == "f"
    except ValueError:  # of no one shape
        return False


def _is_table(value: Any) -> bool:
    """Return whether a value has columns by name."""
    return isinstance(value, Mapping) or hasattr(value, "columns")


def _differ(rows: Any) -> bool:
    """Return whether rows are a list of arrays or lists, not all of one length."""
    listed = isinstance(rows, list) or (isinstance(rows, np.ndarray) and rows.dtype.kind == "O")
    lists = listed and all(isinstance(row, list) or np.ndim(row) for row in rows)
    return lists and len({len(row) for row in rows}) > 1


def _joined(outputs: list[tuple[int, Any]]) -> Any:
    """Join the outputs of batches, each after the number of its rows, and turn tensors into arrays."""
    rows, first = outputs[0]
    if isinstance(first, Mapping):
        return {name: _joined([(n, output[name]) for n, output in outputs]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(_joined([(n, output[i]) for n, output in outputs]) for i in range(len(first)))
    if not isinstance(first, Tensor) and all(output == first for _, output in outputs):
        return first
    if len(outputs) > 1 and any(not isinstance(o, Tensor) or not o.ndim or len(o) != n for n, o in outputs):
        raise ModelError(
            f"the module returned {describe(first)} for {rows} rows, and tensors of several batches are "
            "joined where their first dimension counts rows: predict these rows in one batch, with "
            f"batch_size={sum(n for n, _ in outputs)}",
            code="model-output",
        )
    tensor = first if len(outputs) == 1 else torch.cat([output for _, output in outputs])
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()

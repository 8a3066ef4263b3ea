"""Inputs and outputs of a module: shape and dtype of one row of each tensor."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.batch import Inputs, call, group
from sparkdl.nn.parameters import check_device
from sparkdl.nn.trace import describe, explain_failure

_PROBE_ROWS = 2  # one row would look like a constant, and squeeze() would take it away


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that a module takes or gives."""

    shape: tuple[int, ...] | None = None  # shape of one row; ``None`` if not known
    dtype: str | None = None  # numpy dtype name; ``None`` if not known
    # of an output its position or key in the module's output, ``None`` if it is the output. Of an input the
    # name of the argument, ``None`` if it is given by position.
    key: int | str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a module."""

    # the module's inputs, in order; one tensor, several positional ones, or named ones
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()  # its outputs; empty if not known

    def of_any_length(self, ragged: Sequence[bool]) -> Signature:
        """Return it with no shape for the inputs whose rows differ in length."""
        pairs = zip(self.inputs, ragged, strict=True)
        return replace(self, inputs=tuple(replace(i, shape=None) if free else i for i, free in pairs))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Signature:
        """Read the values of :meth:`to_json`, also after a way through JSON.

        Raises ValueError, KeyError or TypeError if it is something else.
        """
        return cls(*(tuple(_spec(item) for item in value[side]) for side in ("inputs", "outputs")))

    @classmethod
    def probe(cls, module: nn.Module, inputs: Sequence[TensorSpec]) -> Signature:
        """Run a module on zeros and describe its output.

        Raises ModelError if it fails, or gives others than tensors whose first dimension counts rows.
        """
        zeros = [torch.from_numpy(np.zeros((_PROBE_ROWS, *_known(i.shape)), i.dtype)) for i in inputs]
        return cls.of_rows(module, group(zeros, [str(i.key) for i in inputs if i.key is not None]))

    @classmethod
    def of_rows(cls, module: nn.Module, rows: Inputs) -> Signature:
        """Run a module on some rows and describe its output; otherwise like :meth:`probe`."""
        check_device(module)
        modes = {part: part.training for part in module.modules()}
        module.eval()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                output = call(module, rows)
        except Exception as error:
            raise explain_failure(
                module, rows, call, error, ("the module", "look at its forward method")
            ) from error
        finally:
            for part, mode in modes.items():
                part.training = mode
        inputs = tuple(_spec_of(key, tensor) for key, tensor in _named_inputs(rows))
        count = next(len(tensor) for _, tensor in _named_inputs(rows))
        outputs = []
        for key, tensor in named_outputs(output):
            if tensor.ndim == 0 or len(tensor) != count:
                raise ModelError(
                    f"{type(module).__name__} returned {describe(output)} for {count} rows; expected "
                    "tensors whose first dimension counts rows",
                    code="model-output",
                )
            outputs.append(_spec_of(key, tensor))
        return cls(inputs, tuple(outputs))


def _named_inputs(rows: Inputs) -> Iterator[tuple[str | None, Tensor]]:
    """Iterate over a module's inputs, by name or ``None``."""
    if isinstance(rows, Mapping):
        yield from rows.items()
    else:
        yield from ((None, tensor) for tensor in (rows if isinstance(rows, tuple) else (rows,)))


def named_outputs(output: Any) -> Iterator[tuple[int | str | None, Tensor]]:
    """Iterate over the tensors of a module's output, by position, key, or ``None`` if it is one tensor."""
    if isinstance(output, Tensor):
        yield None, output
        return
    if isinstance(output, Mapping):
        items: list[tuple[Any, Any]] = list(output.items())
    elif isinstance(output, tuple | list):
        items = list(enumerate(output))
    else:
        items = []
    if not items or not all(isinstance(value, Tensor) for _, value in items):
        raise ModelError(
            f"the module returned {describe(output)}; expected a tensor, or a tuple, list or dict of tensors",
            code="model-output",
        )
    yield from items


def _spec_of(key: int | str | None, tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."), key)


def _spec(value: Mapping[str, Any]) -> TensorSpec:
    shape, dtype, key = value["shape"], value["dtype"], value["key"]
    sizes = shape is None or all(type(size) is int and size >= 0 for size in shape)
    if not sizes or not isinstance(key, int | str | None):
        raise ValueError(f"{value!r:.200} describes no tensor")
    if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"{dtype!r:.50} is no dtype of torch")
    return TensorSpec(None if shape is None else tuple(shape), dtype, key)


def _known(shape: tuple[int, ...] | None) -> tuple[int, ...]:
    assert shape is not None
    return shape


def check_inputs_order(module: object, names: Sequence[str]) -> None:
    """Check that columns which are given by position are not called as other arguments of the module."""
    kind = module if isinstance(module, type) else type(module)
    if len(names) < 2 or not issubclass(kind, nn.Module):
        return
    try:
        arguments = list(inspect.signature(kind.forward).parameters)[1 : len(names) + 1]
    except (TypeError, ValueError):  # made by a C function
        return
    if arguments != list(names) and sorted(arguments) == sorted(names):
        raise ConfigError(
            f"the columns {list(names)} are given by position to {kind.__name__}.forward, whose arguments "
            f"are {arguments}: list the columns in this order, or give each to the argument of its name, by "
            f"features={{...}} or an estimator's inputNames={list(names)}"
        )


def check_outputs_order(names: Sequence[str], outputs: Sequence[int | str | None]) -> None:
    """Check that no column for an output is called as another output."""
    for name, output in zip(names, outputs, strict=False):
        if name in outputs and name != output:
            raise ConfigError(
                f"outputCols={list(names)}: the column {name!r} would hold {output!r}, for the outputs are "
                f"{list(outputs)}, in this order; list the columns so, or give them other names"
            )

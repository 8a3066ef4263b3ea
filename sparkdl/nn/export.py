"""Trained modules in formats of other programs, each checked by reading it back."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.batch import Inputs, call, map_tensors, tensors_of
from sparkdl.nn.embedding import embedding_variables

Path = str | os.PathLike[str]

_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_ROWS = "rows"


def to_onnx(module: nn.Module, example: Any, path: Path, *, tolerance: float = 1e-4) -> None:
    """Write a module as ONNX, with any number of rows, and compare what ONNX Runtime computes.

    Needs the packages of ``pip install 'sparkdl[onnx]'``. A file larger than 2 GB is written as two:
    the weights lie beside it, in ``<path>.data``.

    Args:
        module: it is not changed.
        example: inputs with at least two rows: an array or tensor, a tuple of them, or a dict by name.
        path: local file to write.
        tolerance: largest difference between outputs, relative to the largest output.

    Raises:
        ConfigError: if a package is missing, or ``example`` is not as described.
        ModelError: if the module cannot be exported, or what was written computes something else.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"to_onnx needs {', '.join(missing)}: pip install 'sparkdl[onnx]'", code="config-package"
        )
    module, inputs = _prepared(module), _example(example)
    args, kwargs = _arguments(inputs)
    with _failing_as(module, "ONNX"), _quiet():
        shapes = _any_rows(module, inputs)
        program = torch.onnx.export(
            module, args, kwargs=kwargs, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
        assert program is not None
        program.save(os.fspath(path))

    def run(rows: Inputs) -> Any:
        arrays = [tensor.numpy() for tensor in tensors_of(rows)]
        return _run_onnx(path, lambda names: dict(zip(names, arrays, strict=True)))

    _compare(module, inputs, run, "ONNX", tolerance)


def check_onnx(
    path: Path, inputs: Mapping[str, np.ndarray[Any, Any]], expected: Any, tolerance: float
) -> None:
    """Compare what ONNX Runtime computes with what the module gave."""
    arrays = expected.values() if isinstance(expected, Mapping) else expected
    several = isinstance(expected, Mapping | tuple)
    mine = [torch.as_tensor(array) for array in (arrays if several else [expected])]
    _compare_outputs(mine, _run_onnx(path, lambda _: inputs), "ONNX", tolerance)


def _run_onnx(path: Path, feed: Callable[[list[str]], Mapping[str, Any]]) -> list[Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return [torch.from_numpy(np.asarray(array)) for array in session.run(None, dict(feed(names)))]


def to_torch_export(module: nn.Module, example: Any, path: Path, *, tolerance: float = 1e-5) -> None:
    """Write a module with ``torch.export.save``, with any number of rows; ``torch.export.load`` reads it.

    Args:
        module: it is not changed.
        example: inputs with at least two rows: an array or tensor, a tuple of them, or a dict by name.
        path: local file to write, by custom ``*.pt2``.
        tolerance: largest difference between outputs, relative to the largest output.

    Raises:
        ConfigError: if ``example`` is not as described.
        ModelError: if the module cannot be exported, or what was written computes something else.
    """
    module, inputs = _prepared(module), _example(example)
    args, kwargs = _arguments(inputs)
    with _failing_as(module, "torch.export"), _quiet():
        program = torch.export.export(module, args, kwargs, dynamic_shapes=_any_rows(module, inputs))
        torch.export.save(program, os.fspath(path))
        read = torch.export.load(os.fspath(path)).module()
    _compare(module, inputs, lambda rows: call(read, rows), "torch.export", tolerance)


def to_torchscript(module: nn.Module, example: Any, path: Path, *, tolerance: float = 1e-5) -> None:
    """Write a module as TorchScript, which ``torch.jit.load`` and LibTorch read.

    The forward pass is traced: a branch that depends on values is written as the example takes it. Torch
    advises :func:`to_torch_export` for what is new.

    Args:
        module: it is not changed.
        example: inputs with at least two rows: an array or tensor, a tuple of them, or a dict by name.
        path: local file to write.
        tolerance: largest difference between outputs, relative to the largest output.

    Raises:
        ConfigError: if ``example`` is not as described.
        ModelError: if the module cannot be traced, or what was written computes something else.
    """
    module, inputs = _prepared(module), _example(example)
    args, kwargs = _arguments(inputs)
    with _failing_as(module, "TorchScript"), _quiet():
        examples: dict[str, Any] = {"example_kwarg_inputs": kwargs} if kwargs else {"example_inputs": args}
        jit: Any = torch.jit  # its functions have no types
        traced = jit.trace(module, **examples, check_trace=False, strict=False)
        jit.save(traced, os.fspath(path))
        read = jit.load(os.fspath(path), map_location="cpu")

    def run(rows: Inputs) -> Any:
        with _quiet():
            return call(read, rows)

    _compare(module, inputs, run, "TorchScript", tolerance)


def _prepared(module: nn.Module) -> nn.Module:
    """Return the module as it predicts; a copy where it is not in that state."""
    for name in embedding_variables(module):
        raise ModelError(
            f"{name or type(module).__name__} is an embedding variable, whose rows are looked up by any id: "
            "other formats have no such table. Predictor and sparkdl serve take the model as it is saved; "
            "train with torch.nn.Embedding for another format"
        )
    cpu = all(t.device.type == "cpu" for t in (*module.parameters(), *module.buffers()))
    if cpu and not any(part.training for part in module.modules()):
        return module
    return copy.deepcopy(module).cpu().eval()


def _example(example: Any) -> Inputs:
    """Turn an example into tensors on the CPU."""

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor | np.ndarray):
            return torch.as_tensor(value).detach().cpu()
        raise ConfigError(f"example: expected arrays or tensors, got a {type(value).__name__}")

    if isinstance(example, Mapping):
        inputs: Inputs = {name: convert(value) for name, value in example.items()}
    elif isinstance(example, tuple):
        inputs = tuple(convert(value) for value in example)
    else:
        inputs = convert(example)
    shapes = [tuple(tensor.shape) for tensor in tensors_of(inputs)]
    if not shapes or any(not shape or shape[0] < 2 or shape[0] != shapes[0][0] for shape in shapes):
        raise ConfigError(
            f"example: expected tensors of the same number of rows, at least two, got shapes {shapes}"
        )
    return inputs


def _arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def _any_rows(module: nn.Module, inputs: Inputs) -> Any:
    """Say that the first dimension of every input may have any size."""
    rows = torch.export.Dim(_ROWS)
    if isinstance(inputs, Mapping):
        return {name: {0: rows} for name in inputs}
    args, _ = _arguments(inputs)
    bound = inspect.signature(module.forward).bind(*args)
    # What ``*args`` takes counts as one argument, a tuple.
    return tuple(
        tuple({0: rows} for _ in value) if isinstance(value, tuple) else {0: rows}
        for value in bound.arguments.values()
    )


def _compare(
    module: nn.Module, inputs: Inputs, run: Callable[[Inputs], Any], name: str, tolerance: float
) -> None:
    """Run module and copy on the example, and on more rows than it has."""
    for rows in (inputs, map_tensors(inputs, lambda tensor: torch.cat([tensor, tensor[:1]]))):
        with torch.no_grad():
            expected = tensors_of(call(module, rows))
        with _failing_as(module, name), torch.no_grad():
            found = tensors_of(run(rows))
        _compare_outputs(expected, found, name, tolerance)


def _compare_outputs(expected: list[Tensor], found: list[Tensor], name: str, tolerance: float) -> None:
    if len(found) != len(expected):
        raise ModelError(f"{name}: it gives {len(found)} outputs, the module gives {len(expected)}")
    for index, (mine, theirs) in enumerate(zip(expected, found, strict=True)):
        if mine.shape != theirs.shape:
            raise ModelError(
                f"{name}: output {index} has shape {tuple(theirs.shape)}, that of the module "
                f"{tuple(mine.shape)}"
            )
        limit = tolerance * max(float(mine.abs().max()) if mine.numel() else 0.0, 1.0)
        gap = float((mine.double() - theirs.double()).abs().max()) if mine.numel() else 0.0
        if not gap <= limit:
            raise ModelError(
                f"{name}: output {index} differs by {gap:.3g} from that of the module, more than "
                f"{limit:.3g}; does it use random numbers, or branch by values?"
            )


@contextmanager
def _failing_as(module: nn.Module, name: str) -> Iterator[None]:
    try:
        yield
    except (ModelError, ConfigError):
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(f"{type(module).__name__} cannot be written as {name}: {cause!s:.500}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to ourselves what exporters say about their own future."""
    level = logging.getLogger("torch.onnx").level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch.onnx").setLevel(level)

"""Torch's own databases for its tests: modules and losses with inputs, and optimizers with their options."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from compat.compare import ROWS, Entry, Program
from sparkdl.nn.batch import Batch, call

_CAREFUL: Any = (torch.optim.SGD, {"lr": 1e-4, "momentum": 0.9})  # some losses are sums


class Harness(nn.Module):
    """A module behind a trained scale and shift of each floating-point input, so that any module trains.

    Args:
        inner: the module; ``None`` to return what it would get.
        floats: which of the arguments are scaled.
        constants: arguments that are no rows, by place or name.
        each: whether a row is a whole input of the module, so that it is called for each row.
    """

    def __init__(
        self, inner: nn.Module | None, floats: list[int], constants: Any, each: bool, dtype: Any
    ) -> None:
        super().__init__()
        self.inner, self.floats, self.each, self.constants = inner, floats, each, constants
        self.scale = nn.ParameterList(nn.Parameter(torch.ones(1, dtype=dtype)) for _ in floats)
        self.shift = nn.ParameterList(nn.Parameter(torch.zeros(1, dtype=dtype)) for _ in floats)

    def forward(self, *rows: Any) -> Any:
        """Call the module."""
        prepared = list(rows)
        for number, place in enumerate(self.floats):
            prepared[place] = rows[place] * self.scale[number] + self.shift[number]
        if self.inner is None:
            return prepared[0]
        if self.each:
            return torch.stack(
                [
                    self._collapsed(self._call([p[n : n + 1] for p in prepared], True))
                    for n in range(len(rows[0]))
                ]
            )
        return self._call(prepared, False)

    def _call(self, rows: list[Any], single: bool) -> Any:
        args, kwargs = self.constants
        moving = iter([row[0] for row in rows] if single else rows)
        args = [next(moving) if value is _ROW else value for value in args]
        kwargs = {name: next(moving) if value is _ROW else value for name, value in kwargs.items()}
        return self.inner(*args, **kwargs)

    def _collapsed(self, output: Any) -> Any:
        return collapsed(output, 1)[0]


class _Row:
    """Stands for an argument that is rows."""

    def __deepcopy__(self, _: Any) -> Any:
        return _ROW

    def __reduce__(self) -> Any:
        return "_ROW"


_ROW = _Row()


def _tensors_in(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, tuple | list):
        for part in output:
            yield from _tensors_in(part)


def collapsed(output: Any, rows: int) -> torch.Tensor:
    """Return a number for each row that depends on all of its outputs."""
    total: Any = 0.0
    for tensor in _tensors_in(output):
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if not tensor.is_floating_point():
            continue
        flat = tensor.reshape(rows, -1)
        total = total + (flat * torch.cos(torch.arange(flat.shape[1], dtype=flat.dtype))).mean(1)
    return total


def squared(output: Any, label: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of rows."""
    return ((collapsed(output, len(label)) - label) ** 2).mean()


def _by_loss(loss: Any, module: nn.Module, batch: Batch) -> torch.Tensor:
    value = loss(call(module, batch.inputs), batch.label)
    return value if value.dim() == 0 else value.reshape(batch.rows, -1).mean(1).mean()


# -- modules ---------------------------------------------------------------------------------------


def modules() -> Iterator[Entry]:
    """Return all entries of ``module_db``."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        count = len(_inputs(info, torch.float32))
        for number in range(count):
            name = f"{info.name}[{number}]"
            wide = torch.float64 in info.dtypes
            dtypes = (torch.float64, torch.float32) if wide else (torch.float32,)
            yield Entry("torch modules and losses", name, partial(_program, info, number), dtypes)


def _inputs(info: Any, dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(0)
    return info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=True)


def _program(info: Any, number: int, dtype: torch.dtype) -> Program:
    sample = _inputs(info, dtype)[number]
    torch.manual_seed(1)
    inner = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
    inner = inner.to(dtype)
    is_loss = isinstance(inner, nn.modules.loss._Loss) or info.name == "nn.LinearCrossEntropyLoss"
    forward = sample.forward_input
    args, kwargs = list(forward.args), dict(forward.kwargs)
    if "LPPool" in info.name:  # roots of negative sums are NaN
        args = [value.abs() + 0.1 for value in args]
    args = [torch.nan_to_num(v, nan=-1.0) if _is_float(v) else v for v in args]  # logs of random numbers
    if is_loss:
        return _loss_program(inner, args, kwargs, dtype)
    ways = (False, True) if _first_dimensions(args) else (True,)
    for each in ways:
        made = _feed(args, kwargs, each)
        module = Harness(inner, made["floats"], made["constants"], each, dtype)
        if each or _independent(module, made["rows"]):
            break
    label = np.random.default_rng(1).normal(size=ROWS).astype(_numpy(dtype))
    return Program(module, tuple(made["rows"]), label, partial(_by_loss, squared), {"loss": squared})


def _loss_program(inner: nn.Module, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> Program:
    simple = len(args) == 2 and not kwargs and isinstance(args[1], torch.Tensor) and args[0].dim() > 0
    lone = args[0].dim() == 1 and not _is_float(args[1])  # one row, of class numbers
    simple = simple and not lone
    if simple and args[1].dim() and args[0].shape[0] == args[1].shape[0] and not list(inner.parameters()):
        made = _feed(args, kwargs, False)
        module = Harness(None, [0], made["constants"], False, dtype)
        if not any(p.requires_grad for p in inner.parameters()):
            features, label = (made["rows"][0],), made["rows"][1]
            return Program(module, features, label, partial(_by_loss, inner), {"loss": inner}, _CAREFUL)
    if lone or isinstance(inner, nn.CTCLoss) or not _first_dimensions(args):
        made = _feed(args, kwargs, True)
        floats = made["floats"][:1]
        module = Harness(inner, floats, made["constants"], True, dtype)
        label = np.zeros(ROWS, _numpy(dtype))
        return Program(module, tuple(made["rows"]), label, partial(_by_loss, squared), {"loss": squared})
    made = _feed(args, kwargs, False)
    module = Harness(inner, made["floats"][:1], made["constants"], False, dtype)
    step = _own_value
    return Program(module, tuple(made["rows"]), None, step, {"step": step}, _CAREFUL)


def _own_value(module: nn.Module, batch: Batch) -> torch.Tensor:
    value = call(module, batch.inputs)
    return value if value.dim() == 0 else value.reshape(batch.rows, -1).mean(1).mean()


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _first_dimensions(args: list[Any]) -> int:
    """Return the number of rows of the arguments; 0 if they do not agree."""
    sizes = {a.shape[0] if a.dim() else 0 for a in args if isinstance(a, torch.Tensor)}
    return sizes.pop() if len(sizes) == 1 else 0


def _feed(args: list[Any], kwargs: dict[str, Any], each: bool) -> dict[str, Any]:
    """Make rows of an input: of its first dimension, or each like the whole input."""
    draw, rows, floats = np.random.default_rng(2), [], []
    count = _first_dimensions(args)
    first, second = draw.integers(max(count, 1), size=(2, ROWS))
    mixed = draw.uniform(0.2, 0.8, size=ROWS)

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or (each and value.dtype == torch.bool):
            return value
        if not each and (not value.dim() or value.shape[0] != count):
            return value
        array = value.detach().numpy()
        whole = not value.is_floating_point() or bool((value == value.round()).all())
        if each:
            spread = array if whole else None
            made = [array if whole else array * share for share in mixed + 0.5]
            made = np.stack(made if spread is None else [array] * ROWS)
        elif whole:
            made = array[first]
        else:
            share = mixed.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)
            made = array[first] * share + array[second] * (1 - share)
        if value.is_floating_point():
            floats.append(len(rows))
        rows.append(np.ascontiguousarray(made, dtype=array.dtype))
        return _ROW

    constants = ([one(value) for value in args], {name: one(value) for name, value in kwargs.items()})
    return {"rows": rows, "floats": floats, "constants": constants}


def _independent(module: nn.Module, rows: list[Any]) -> bool:
    """Return whether a module takes these as rows that do not see each other."""
    module = copy.deepcopy(module).eval()
    tensors = [torch.from_numpy(row) for row in rows]
    try:
        with torch.no_grad():
            whole, part = collapsed(module(*tensors), ROWS), collapsed(module(*[t[:5] for t in tensors]), 5)
        return torch.allclose(whole[:5], part, rtol=1e-4, atol=1e-5)
    except Exception:
        return False


def _numpy(dtype: torch.dtype) -> Any:
    return np.float64 if dtype == torch.float64 else np.float32


# -- optimizers ------------------------------------------------------------------------------------


def optimizers() -> Iterator[Entry]:
    """Return all optimizers of ``optim_db`` with all of their option sets."""
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        for number, sample in enumerate(info.optim_inputs_func(device="cpu")):
            name = f"{info.optim_cls.__name__}[{number}] {sample.desc or 'default'}"
            yield Entry("torch optimizers", name, partial(_optimized, info, sample))


def _optimized(info: Any, sample: Any, dtype: torch.dtype) -> Program:
    torch.manual_seed(2)
    draw = np.random.default_rng(3)
    if info.only_supports_sparse_grads:
        module: nn.Module = nn.Sequential(nn.Embedding(30, 3, sparse=True), nn.Flatten())
        x: Any = draw.integers(30, size=(ROWS, 2))
    else:
        bias = info.optim_cls.__name__ != "Muon"
        module = nn.Sequential(nn.Linear(5, 7, bias=bias), nn.Tanh(), nn.Linear(7, 3, bias=bias))
        x = draw.normal(size=(ROWS, 5)).astype(_numpy(dtype))
    label = draw.normal(size=ROWS).astype(_numpy(dtype))
    optimizer = (info.optim_cls, dict(sample.kwargs))
    return Program(module.to(dtype), x, label, partial(_by_loss, squared), {"loss": squared}, optimizer)

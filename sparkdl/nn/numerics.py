"""Numerics of a task: precision, compilation, memory format, recomputation, device."""

from __future__ import annotations

import inspect
import os
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.batch import Batch, map_tensors
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.recompute import recompute
from sparkdl.wire.layout import ParamLayout

T = TypeVar("T")

_PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Options that change how tasks compute; results change by rounding only."""

    # ``"fp32"`` for the parameters' own precision, ``"bf16"`` for forward pass and loss in ``torch.autocast``
    # with bfloat16. Weights, gradients and the update stay float32, and bfloat16 has its range, so that no
    # loss scaling is needed. On a CPU it is faster only where that has instructions for it (AVX-512 BF16,
    # AMX).
    precision: str = "fp32"
    # whether to ``torch.compile`` the module's forward, or keyword arguments for it. A task that cannot
    # compile warns once and goes on without. Every Python worker compiles for itself; a step that calls only
    # submodules has nothing compiled.
    compile: bool | Mapping[str, Any] = False
    # whether 4-D floating-point inputs are passed in the channels-last memory format, which convolutions then
    # keep. The weights are views of one flat vector and stay contiguous; the kernels reorder them. Such a
    # module must use ``flatten`` or ``reshape`` instead of ``view``.
    channels_last: bool = False
    # names of submodules, or patterns such as ``"layers.*"``, whose activations are computed again in the
    # backward pass instead of kept. Gradients and buffers are the same to the bit. Of nested matches the
    # outermost counts.
    checkpoint_activations: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.precision == "fp16":
            raise ConfigError(
                "precision='fp16': float16 needs a loss scale that is adapted from iteration to iteration, "
                "which tasks without memory cannot do; use 'bf16', which has the range of float32"
            )
        if self.precision not in _PRECISIONS:
            raise ConfigError(f"precision={self.precision!r}: expected {' or '.join(map(repr, _PRECISIONS))}")
        if not isinstance(self.compile, bool):
            _check_compile(self.compile)
        if not isinstance(self.channels_last, bool):
            raise ConfigError(f"channels_last={self.channels_last!r}: expected True or False")
        patterns = self.checkpoint_activations
        patterns = (patterns,) if isinstance(patterns, str) else patterns
        if not isinstance(patterns, Sequence) or not all(isinstance(p, str) and p for p in patterns):
            raise ConfigError(
                f"checkpoint_activations={self.checkpoint_activations!r}: expected names of submodules, or "
                "patterns such as 'layers.*'"
            )
        object.__setattr__(self, "checkpoint_activations", tuple(patterns))
        if patterns and isinstance(self.compile, Mapping) and self.compile.get("backend") == "eager":
            raise ConfigError(
                "compile={'backend': 'eager'} with checkpoint_activations: this backend draws other random "
                "numbers when it computes activations again; use 'aot_eager' to compile without a compiler"
            )


def _check_compile(options: Any) -> None:
    accepted = sorted(inspect.signature(torch.compile).parameters.keys() - {"model"})
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"compile={options!r}: expected True, False or a dict of torch.compile's arguments: {accepted}"
        )
    unknown = [name for name in options if name not in accepted]
    if unknown:
        raise ConfigError(f"compile: torch.compile has no argument {unknown}; it accepts {accepted}")


class Replica(FlatModule):
    """A flat module that computes as the numerics say; the module becomes part of it."""

    def __init__(
        self,
        module: nn.Module,
        layout: ParamLayout,
        numerics: Numerics,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(module, layout, device)
        if numerics.precision == "bf16" and layout.dtype != "float32":
            raise ConfigError(
                f"precision='bf16': the parameters are {layout.dtype}, which autocast leaves as they are; "
                "call module.float() before training"
            )
        self._low = numerics.precision == "bf16"
        self._channels_last = numerics.channels_last
        recompute(module, numerics.checkpoint_activations, bool(numerics.compile))
        self._compiled = False
        self._marks_rows = False
        if numerics.compile:
            options = {} if isinstance(numerics.compile, bool) else dict(numerics.compile)
            self._marks_rows = options.get("dynamic") is None
            self._eager_forward = self.module.__dict__.get("forward")
            try:
                # In place of the method, so that steps and methods of the module get to it as well.
                self.module.forward = torch.compile(self.module.forward, **options)
                self._compiled = True
            except Exception as error:
                _warn_not_compiled(error)

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch on the device, in the memory format, with its rows marked as varying."""
        batch = super().prepare(batch)
        if self._channels_last:
            batch = batch.channels_last()
        if self._compiled and self._marks_rows:
            map_tensors((batch.inputs, batch.label, batch.weight), _mark_rows)
        return batch

    def computing(self) -> AbstractContextManager[Any]:
        """Return the autocast context."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self._low else nullcontext()

    @property
    def compiled(self) -> bool:
        """Whether the module's forward is compiled."""
        return self._compiled

    def attempt(self, work: Callable[[], T]) -> T:
        """Do the work of a pass; if compilation fails in it, undo it and do it without."""
        if not self._compiled:
            return work()
        generators, buffers, counters = RandomState(self.device), self.buffers(), self.counters()
        try:
            with warnings.catch_warnings():
                # The compiler looks at the gradients of all that passes a graph break.
                warnings.filterwarnings(
                    "ignore", message="The .grad attribute of a Tensor that is not a leaf"
                )
                return work()
        except ModelError:
            raise
        except Exception as error:  # the compiler's, or the module's own
            failure = error
        self._stop_compiling()
        generators.restore()
        self._buffers.load(buffers)
        self._counters.load(counters)
        result = work()  # a mistake in the module is explained here
        _warn_not_compiled(failure)
        return result

    def _stop_compiling(self) -> None:
        del self.module.forward
        if self._eager_forward is not None:
            self.module.forward = self._eager_forward
        self._compiled = False


class RandomState:
    """The state of every generator that a forward pass may draw from."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if self._device else None
        self._numpy = np.random.get_state()  # noqa: NPY002 - what user code draws from
        self._python = random.getstate()

    def restore(self) -> None:
        """Set all of them back to it."""
        torch.set_rng_state(self._torch)
        if self._cuda is not None and self._device is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)


def _mark_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Tell the compiler that the number of rows varies: shares of a batch differ by a row or so."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return tensor


def _warn_not_compiled(error: Exception) -> None:
    reason = " ".join(str(error).split())
    warnings.warn(
        f"torch.compile failed, the module runs uncompiled: {type(error).__name__}: {reason:.500}",
        RuntimeWarning,
        stacklevel=3,
    )


def device_of_task(resources: Mapping[str, Sequence[str]]) -> str:
    """Return the device that Spark assigned to a task, such as ``"cuda:0"``; ``"cpu"`` without a GPU.

    ``resources`` are as in ``{"gpu": ["0"]}``. A GPU that torch cannot use gives a warning.
    """
    addresses = resources.get("gpu", ())
    if not addresses:
        return "cpu"
    if not torch.cuda.is_available():
        _warn_once(
            f"Spark assigned GPU {addresses[0]} to the task, but this torch ({torch.__version__}) finds no "
            "usable CUDA device; computing on the CPU. Install a CUDA build of torch on the executors"
        )
        return "cpu"
    address, count = str(addresses[0]), torch.cuda.device_count()
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if address in visible:
        index = visible.index(address)  # Spark counts the host's GPUs, CUDA those visible to the process
    elif address.isdecimal() and int(address) < count:
        index = int(address)
    else:
        index = count
    if index < count:
        return f"cuda:{index}"
    _warn_once(
        f"Spark assigned GPU {address} to the task, but torch sees {count} GPUs and "
        f"CUDA_VISIBLE_DEVICES={','.join(visible)!r}; computing on the CPU. Check the discovery script"
    )
    return "cpu"


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)

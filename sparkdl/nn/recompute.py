"""Activations computed again in the backward pass instead of kept: less memory, more time.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, arXiv 1604.06174.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparkdl.exceptions import ConfigError


def recompute(module: nn.Module, patterns: Sequence[str], compiled: bool = False) -> list[str]:
    """Let submodules forget their activations, in place.

    Random numbers, also of numpy and ``random``, and buffers are put back for the second forward pass, so
    that dropout draws the same and BatchNorm counts a batch once: gradients and buffers are the same to the
    bit. ``patterns`` are names, or for :mod:`fnmatch`. If the module is to be ``compiled``, submodules with
    buffers are not.
    """
    names = [name for name, _ in module.named_modules() if name]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise ConfigError(
                f"checkpoint_activations: no submodule of {type(module).__name__} matches {pattern!r}; "
                f"there are {known or 'none'}"
            )
    changed: list[str] = []
    for name, layer in module.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in changed)
        if name and not inside and any(fnmatchcase(name, pattern) for pattern in patterns):
            layer.forward = _checkpointed(layer, compiled)
            changed.append(name)
    return changed


def _checkpointed(layer: nn.Module, compiled: bool) -> Callable[..., Any]:
    forward = layer.forward
    options: dict[str, Any] = {"use_reentrant": False}
    has_buffers = any(True for _ in layer.buffers())
    if has_buffers or not compiled:
        options["context_fn"] = lambda: _same_state(layer)

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, **options, **kwargs)

    if has_buffers and compiled:
        # The compiler cannot put buffers back; where it gives up, they would be written twice.
        return torch.compiler.disable(run)  # type: ignore[no-untyped-call, no-any-return]
    return run


def _same_state(layer: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return contexts for the two forward passes that show both the same buffers and random numbers.

    What the first pass changed stays changed; what the second changes is undone. Torch puts back its own
    generators.
    """
    before: list[_State] = []

    @contextmanager
    def first() -> Iterator[None]:
        before.append(_State(layer))
        yield

    @contextmanager
    def second() -> Iterator[None]:
        after = _State(layer)
        before[0].restore()
        try:
            yield
        finally:
            after.restore()

    return first(), second()


class _State:
    """Buffers of a layer, and the generators that torch's checkpoints leave alone."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self._buffers = [buffer.detach().clone() for buffer in layer.buffers()]
        self._numpy, self._python = np.random.get_state(), random.getstate()  # noqa: NPY002

    def restore(self) -> None:
        for buffer, value in zip(self._layer.buffers(), self._buffers, strict=True):
            buffer.data.copy_(value)  # through .data, for autograd must not see a change of what it saved
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)

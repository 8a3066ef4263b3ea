"""The divisor of a mean loss, where that is not the number of rows.

``CrossEntropyLoss(weight=...)`` divides by the sum of the labels' weights, and labels of ``ignore_index`` do
not count. A mean over several shares of a batch is that over the whole batch only if each share has this
divisor as its weight. The losses that divide so end in three functions of torch, whoever calls them: a loss
module, a lambda, a model of Hugging Face, a training step. A :class:`DivisorWatch` sees the calls, and
follows their results to the loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from torch.nn import functional as nnf
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from sparkdl.exceptions import ModelError

_CALLS: dict[Any, Mapping[str, Any]] = {
    function: {name: own.default for name, own in inspect.signature(function).parameters.items()}
    for function in (nnf.cross_entropy, nnf.nll_loss, getattr(nnf, "linear_cross_entropy", nnf.nll_loss))
}
"""Defaults of each function's parameters, in the order of the parameters."""


Divisors = frozenset[tuple[int, float]]
"""Divisors of the terms of a loss, each beside a number of its own."""

_few_rows = ContextVar("few_rows", default=False)


@contextmanager
def of_few_rows() -> Iterator[None]:
    """Take labels of which none has a weight for labels that do not count: a batch of the fit has others."""
    token = _few_rows.set(True)
    try:
        yield
    finally:
        _few_rows.reset(token)


class DivisorWatch(TorchFunctionMode):
    """Follows what means are divided by, from the functions that divide to the loss that they become."""

    def __init__(self) -> None:
        super().__init__()
        self._divisors: dict[int, Divisors] = {}
        self._kept: list[Tensor] = []  # the id of a tensor that is freed could come back as another's

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function; note its divisor, or those of its arguments, for its result."""
        result = func(*args, **(kwargs or {}))
        defaults = _CALLS.get(func)
        if func is divided:
            self._note(result, frozenset(((len(self._kept), float(args[1])),)))
        elif defaults is not None:
            divisor = _divisor({**defaults, **dict(zip(defaults, args, strict=False)), **(kwargs or {})})
            if divisor is not None:
                self._note(result, frozenset(((len(self._kept), divisor),)))
        elif self._divisors:
            found = self._of((*args, *(kwargs or {}).values()))
            if found:
                self._note(result, found)
        return result

    def divisor_of(self, loss: Any) -> float | None:
        """Return what a loss is divided by, of several terms the mean; ``None`` if that is not known.

        Terms whose numbers differ may have equal ones in another share of the batch, where nothing tells that
        they are several. So all shares count by one rule, which is right to the bit where they always agree.
        """
        found = [divisor for _, divisor in sorted(self._of(loss))]
        if len(set(found)) > 1:
            return sum(found) / len(found)
        return found[0] if found else None

    def divisors_of(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return what values are divided by, as far as it is known, by name."""
        found = {name: self.divisor_of(value) for name, value in values.items()}
        return {name: divisor for name, divisor in found.items() if divisor is not None}

    def _of(self, value: Any) -> Divisors:
        if isinstance(value, list | tuple):
            return Divisors().union(*map(self._of, value))
        return self._divisors.get(id(value), Divisors())

    def _note(self, result: Any, divisors: Divisors) -> None:
        for value in result if isinstance(result, list | tuple) else [result]:
            if isinstance(value, Tensor):
                self._divisors[id(value)] = divisors
                self._kept.append(value)


def divided(value: Tensor, by: Tensor) -> Tensor:
    """Return a quotient of scalars; a watch notes what it is divided by."""
    if has_torch_function((value, by)):
        found: Tensor = handle_torch_function(divided, (value, by), value, by)
        return found
    return value / by


def watched(compute: Callable[..., Any], *arguments: Any) -> tuple[Any, DivisorWatch]:
    """Return the result of a computation, and what was seen of its divisors."""
    with DivisorWatch() as watch:
        return compute(*arguments), watch


def _divisor(given: Mapping[str, Any]) -> float | None:
    """Return the divisor of a call; ``None`` if it takes no mean over labels that are class numbers.

    ModelError if it is 0, and what is divided is not.
    """
    target, weight, ignored = given["target"], given["weight"], given["ignore_index"]
    # The two options that reduction= has replaced come first where they are given.
    old = (given.get("size_average"), given.get("reduce"))
    mean = given["reduction"] == "mean" if old == (None, None) else False not in old
    if not mean or target.is_floating_point():  # probabilities of classes: a mean over rows
        return None
    counts = target != (-100 if ignored is None else ignored)
    if weight is None:
        return float(counts.sum())
    weights = weight.detach().double()[target[counts]]
    divisor = float(weights.sum())
    if divisor or not len(weights) or _few_rows.get():
        return divisor
    if bool(weights.any()):
        raise ModelError(
            f"the class weights of {len(weights)} labels add up to 0, by which cross_entropy divides: some "
            "are below 0. A larger batch has another sum, which a part of it does not know. Give classes "
            "weights above 0",
            code="model-output",
        )
    if smoothing := given.get("label_smoothing"):
        raise ModelError(
            f"cross_entropy got {len(weights)} labels, all of classes with weight 0, and "
            f"label_smoothing={smoothing}: torch divides what smoothing counts for them by 0, in a larger "
            "batch by the weights of other labels, which a part of the batch does not know. Leave such "
            "labels out by ignore_index, or give their classes a small weight",
            code="model-output",
        )
    return divisor

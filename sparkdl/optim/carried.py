"""Values that an optimizer keeps beside its tensors' state: in its groups, in attributes of its own.

Torch's contract for the state of an optimizer is ``state`` by tensor. Some optimizers, such as those that
estimate a learning rate, change values of their parameter groups in a step, or count in attributes. A task
builds the optimizer anew for each step, and carries these values from one to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from sparkdl.exceptions import OptimizerError
from sparkdl.optim.values import is_plain

CARRIED = "sparkdl.optimizer"
"""Name of these values, in the state of an optimizer's first tensor."""

_Values = dict[tuple[str, str], Any]


@cache
def _of_torch() -> frozenset[str]:
    """Return the attributes of every torch optimizer; the first one made takes torch a second of imports."""
    return frozenset(vars(torch.optim.SGD([torch.zeros(1)], lr=0.1))) | {"_step_count", "_opt_called"}


def own_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the attributes that an optimizer has besides those of every torch optimizer."""
    return {
        name: value
        for name, value in vars(optimizer).items()
        if name not in _of_torch() and not name.startswith("_warned")
    }


def frozen(value: Any, tensors: Sequence[torch.Tensor] = ()) -> Any:
    """Return a copy of a value to compare with later; trained tensors and objects count by identity."""
    if isinstance(value, torch.Tensor):
        trained = isinstance(value, torch.nn.Parameter) or any(value is tensor for tensor in tensors)
        return id(value) if trained else value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {
            id(key) if isinstance(key, torch.Tensor) else key: frozen(item, tensors)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple) or type(value).__name__ == "deque":
        return [frozen(item, tensors) for item in value]
    return value if isinstance(value, bool | int | float | complex | str | bytes | None) else id(value)


def same(a: Any, b: Any) -> bool:
    """Return whether two results of :func:`frozen` are equal."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b or (a != a and b != b))


class Carried:
    """The values of an optimizer that a step may change, besides the state of its tensors.

    The optimizer is just built; ``groups`` are the index of each of its parameter groups among all groups,
    ``before`` is as :meth:`changed` has returned it after the step before.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, groups: Sequence[int], before: Mapping[str, Any] | None
    ) -> None:
        self._optimizer, self._groups = optimizer, groups
        self._tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        self._names = set[tuple[str, str]]()
        self._before: _Values = {}
        for where, values in (before or {}).items():
            for name, value in values.items():
                self._put(where, name, value)
                self._names.add((where, name))

    def _put(self, where: str, name: str, value: Any) -> None:
        if where == "attributes":
            setattr(self._optimizer, name, value)
        elif where == "state":
            self._optimizer.state[name] = value  # type: ignore[index]
        elif int(where) in self._groups:
            self._optimizer.param_groups[self._groups.index(int(where))][name] = value

    def begin(self) -> None:
        """Take note of all values, before the step."""
        self._before = {key: frozen(value, self._tensors) for key, value in self._values().items()}

    def changed(self) -> dict[str, dict[str, Any]]:
        """Return what steps have changed so far."""
        values = self._values()
        for key, value in values.items():
            if key not in self._before or not same(self._before[key], frozen(value, self._tensors)):
                self._names.add(key)
        found: dict[str, dict[str, Any]] = {}
        for where, name in sorted(self._names & values.keys()):
            value = values[where, name]
            if not is_plain(value):
                raise OptimizerError(
                    f"{type(self._optimizer).__name__} changes {_WORDS.get(where, 'in a group')} {name!r} "
                    f"({type(value).__name__}) in its step; tensors, numbers, and lists or dicts of them can "
                    "be kept"
                )
            found.setdefault(where, {})[name] = value
        return found

    def _values(self) -> _Values:
        optimizer = self._optimizer
        values: _Values = {("attributes", name): value for name, value in own_attributes(optimizer).items()}
        for index, group in zip(self._groups, optimizer.param_groups, strict=True):
            values |= {(str(index), name): value for name, value in group.items() if name != "params"}
        own = {id(tensor) for tensor in self._tensors}
        return values | {("state", str(k)): v for k, v in optimizer.state.items() if id(k) not in own}


_WORDS = {"attributes": "its attribute", "state": "its state"}

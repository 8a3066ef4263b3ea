"""What the user gives as optimizer, in a form that every task can build again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from sparkdl.exceptions import ConfigError

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
"""From parameters, or groups of parameters, to an optimizer: ``partial(torch.optim.Adam, lr=1e-3)``."""


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """How to build the optimizer for any set of parameters.

    Attributes:
        factory: makes the optimizer.
        groups: hyper-parameters of each parameter group.
    """

    factory: OptimizerFactory
    groups: tuple[Mapping[str, Any], ...] = ({},)

    @property
    def name(self) -> str:
        """The optimizer class's name, for errors."""
        factory = getattr(self.factory, "func", self.factory)
        return str(getattr(factory, "__name__", type(factory).__name__))

    def build(self, params: Iterable[tuple[torch.Tensor, int]]) -> torch.optim.Optimizer:
        """Build the optimizer over tensors, each with the index of its group.

        Groups without a tensor are left out.
        """
        members: list[list[torch.Tensor]] = [[] for _ in self.groups]
        for tensor, group in params:
            members[group].append(tensor)
        if len(self.groups) == 1 and not self.groups[0]:
            return self.factory(members[0])
        return self.factory(
            [{"params": m, **group} for m, group in zip(members, self.groups, strict=True) if m]
        )

    def learning_rate(self) -> float:
        """Return the first group's learning rate, NaN if the optimizer has none."""
        probe = self.build([(torch.zeros(1, requires_grad=True), g) for g in range(len(self.groups))])
        return float(probe.param_groups[0].get("lr", float("nan")))


def optimizer_spec(
    optimizer: OptimizerFactory | torch.optim.Optimizer, module: nn.Module
) -> tuple[OptimizerSpec, Callable[[nn.Parameter], int]]:
    """Read an optimizer factory, or an optimizer over the module's own parameters.

    Returns:
        The spec, and the function from a parameter to its group.

    Raises:
        ConfigError: if it is neither, or does not cover the module's parameters.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        return _from_instance(optimizer, module)
    if not callable(optimizer):
        raise ConfigError(
            f"optimizer={optimizer!r}: expected a factory such as partial(torch.optim.Adam, lr=1e-3), "
            "or an optimizer over module.parameters()"
        )
    return OptimizerSpec(optimizer), lambda _: 0


def _from_instance(
    optimizer: torch.optim.Optimizer, module: nn.Module
) -> tuple[OptimizerSpec, Callable[[nn.Parameter], int]]:
    # Some optimizers fill their state when they are built; then only its step count tells.
    if any(float(state.get("step", 1)) > 0 for state in optimizer.state.values() if state):
        raise ConfigError(
            f"the {type(optimizer).__name__} has made steps already; its state would be lost. "
            "Pass a new optimizer or a factory such as partial(torch.optim.Adam, lr=1e-3)"
        )
    group_of = {id(p): index for index, g in enumerate(optimizer.param_groups) for p in g["params"]}
    for name, p in module.named_parameters():
        if p.requires_grad and id(p) not in group_of:
            raise ConfigError(
                f"the {type(optimizer).__name__} does not hold parameter {name!r} of the module; "
                "give it all trainable parameters, or freeze the others with requires_grad_(False)"
            )
    accepted = _Arguments(type(optimizer))
    groups = tuple(
        {name: value for name, value in group.items() if name in accepted} for group in optimizer.param_groups
    )
    missing = [name for name in accepted.required if name not in groups[0]]
    if missing:
        raise ConfigError(
            f"cannot tell the arguments {missing} that the {type(optimizer).__name__} was built with; "
            "pass a factory such as partial(MyOptimizer, ...) instead"
        )
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    return OptimizerSpec(partial(type(optimizer), **defaults), groups), lambda p: group_of[id(p)]


class _Arguments:
    """Names of an optimizer class's constructor arguments besides the parameters."""

    def __init__(self, cls: type) -> None:
        parameters: Sequence[inspect.Parameter] = list(inspect.signature(cls).parameters.values())[1:]
        self._names = {p.name for p in parameters}
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        self.required = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]

    def __contains__(self, name: object) -> bool:
        return name in self._names

"""Selects parameters of a module, by name or by kind of layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from sparkdl.exceptions import ConfigError

Predicate = Callable[[str, nn.Parameter, nn.Module], bool]
"""From a parameter's name, the parameter, and the module that owns it, to whether it is meant."""

Match = str | re.Pattern[str] | Predicate
"""A glob pattern (``"*.bias"``) or compiled regular expression for the whole name, or a predicate."""


@dataclass(frozen=True, init=False)
class ParamGroup:
    """Parameters with hyper-parameters of their own.

    ::

        embeddings = ParamGroup("embed.*", lr=1e-2, l2=1e-4)
        groups = [ParamGroup(bias_and_norm, weight_decay=0.0), embeddings]

    Attributes:
        match: which parameters: a glob pattern such as ``"*.bias"``; a compiled regular expression, which
            must match the whole name, as a glob does; or a predicate that is called with the
            parameter's name, the parameter, and the module that owns it. A tied parameter matches by each
            of its names; a predicate gets the first one, and the owner of that name.
        options: options of the optimizer, and the penalties ``l1`` and ``l2``.

    Raises:
        ConfigError: if ``match`` is none of these, or an option cannot be given for a group.
    """

    match: Match
    options: Mapping[str, Any]

    def __init__(self, match: Match, /, **options: Any) -> None:
        if not isinstance(match, str | re.Pattern) and not callable(match):
            raise ConfigError(f"ParamGroup({match!r:.100}): {_EXPECTED}")
        if "params" in options:
            raise ConfigError(
                f"ParamGroup({describe(match)}, params=...): the parameters are those that match; "
                "leave params out"
            )
        object.__setattr__(self, "match", match)
        object.__setattr__(self, "options", options)

    def __repr__(self) -> str:
        values = [describe(self.match), *(f"{name}={value!r}" for name, value in self.options.items())]
        return f"ParamGroup({', '.join(values)})"


_EXPECTED = (
    "expected a glob pattern such as '*.bias', a compiled regular expression, or a predicate "
    "(name, parameter, module) -> bool"
)


def bias_and_norm(name: str, parameter: nn.Parameter, owner: nn.Module) -> bool:
    """Match biases and the parameters of normalisation layers, which usually get no weight decay.

    These are all parameters of at most one dimension, and those of ``LayerNorm`` and ``RMSNorm``, which may
    have more.

    Examples:
        >>> layer = nn.LayerNorm(8)
        >>> bias_and_norm("norm.weight", layer.weight, layer)
        True
        >>> layer = nn.Linear(8, 4)
        >>> [bias_and_norm(name, value, layer) for name, value in layer.named_parameters()]
        [False, True]
    """
    return parameter.ndim <= 1 or isinstance(owner, nn.LayerNorm | nn.RMSNorm)


def describe(match: Match) -> str:
    """Return how errors name a pattern."""
    if isinstance(match, str):
        return repr(match)
    if isinstance(match, re.Pattern):
        return f"re.compile({match.pattern!r})"
    return str(getattr(match, "__name__", type(match).__name__))


def all_names(module: nn.Module) -> dict[str, list[str]]:
    """Return all names of each parameter by its first one: a tied parameter has several.

    Examples:
        >>> module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
        >>> module[1].weight = module[0].weight
        >>> all_names(module)
        {'0.weight': ['0.weight', '1.weight'], '0.bias': ['0.bias']}
    """
    found: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        found.setdefault(id(p), []).append(name)
    return {names[0]: names for names in found.values()}


def assign(matches: Sequence[Match], module: nn.Module, what: str) -> dict[int, int]:
    """Return the first of several patterns that each parameter matches, by its id, without those of none."""
    for match in matches:
        if not isinstance(match, str | re.Pattern) and not callable(match):
            raise ConfigError(f"{what}: found pattern {match!r:.100}; {_EXPECTED}")
    owners: dict[int, nn.Module] = {}
    for owner in module.modules():
        for p in owner.parameters(recurse=False):
            owners.setdefault(id(p), owner)  # a tied parameter has its first name, and that name's owner
    known = all_names(module)
    first: dict[int, int] = {}
    for name, p in module.named_parameters():
        for index, match in enumerate(matches):
            if _matches(match, known[name], p, owners[id(p)]):
                first[id(p)] = index
                break
    for index in set(range(len(matches))) - set(first.values()):
        match = matches[index]
        if isinstance(match, str | re.Pattern):
            names = list(known)
            taken = any(_matches(match, known[n], p, owners[id(p)]) for n, p in module.named_parameters())
            why = "only parameters that an earlier pattern takes" if taken else "no parameter"
            raise ConfigError(
                f"{what}: {describe(match)} matches {why}; the module has "
                f"{', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
            )
    return first


_SHOWN = 8


def _matches(match: Match, names: Sequence[str], parameter: nn.Parameter, owner: nn.Module) -> bool:
    if isinstance(match, str):
        return any(fnmatchcase(name, match) for name in names)
    if isinstance(match, re.Pattern):
        return any(match.fullmatch(name) for name in names)
    return bool(match(names[0], parameter, owner))

"""The user's optimizer, in a form that every task can build again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.optim.carried import frozen, own_attributes, same
from sparkdl.optim.groups import Match, ParamGroup, assign, describe
from sparkdl.optim.reducing import ReducingOptimizer
from sparkdl.optim.regularize import Penalty

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
"""From parameters, or groups of parameters, to an optimizer: ``partial(torch.optim.Adam, lr=1e-3)``."""

Optimizers = OptimizerFactory | torch.optim.Optimizer | Mapping[Match, OptimizerFactory]
"""What :func:`optimizer_spec` takes."""

Scope = Literal["element", "tensor", "model"]
"""What an optimizer's step needs to see at once: any stretch of the weights, whole tensors, or all of its
tensors. Those of the last two kinds see the tensors as torch would show them, with their shapes."""

GroupOf = Callable[[nn.Parameter], int]
"""From a parameter of the module to the index of its group."""


class Built(NamedTuple):
    """An optimizer over some tensors."""

    optimizer: torch.optim.Optimizer
    groups: list[int]  # index of each of its parameter groups among all groups of the spec
    scope: Scope = "element"  # what its step needs to see at once


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """How to build the optimizer, or several, for any set of parameters.

    Attributes:
        factory: makes the optimizer.
        groups: hyper-parameters of each parameter group.
        penalties: regularisation of each parameter group; empty for none at all.
        others: further optimizers, for other parameters. Their groups count on from these.
        scope: what the optimizer's step needs to see at once, as :func:`tried_optimizer` finds out.
        shapes: per group, the shape of a tensor that the optimizer takes; empty if it takes all.
    """

    factory: OptimizerFactory
    groups: tuple[Mapping[str, Any], ...] = ({},)
    penalties: tuple[Penalty, ...] = ()
    others: tuple[OptimizerSpec, ...] = ()
    scope: Scope = "element"
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def parts(self) -> tuple[OptimizerSpec, ...]:
        """One spec per optimizer."""
        return (replace(self, others=()), *self.others)

    @property
    def name(self) -> str:
        """The optimizer class's name, for errors; several are joined by ``+``."""
        factories = [getattr(part.factory, "func", part.factory) for part in (self, *self.others)]
        return " + ".join(str(getattr(f, "__name__", type(f).__name__)) for f in factories)

    def __str__(self) -> str:
        """Return the optimizers as one would write them: ``SGD(lr=0.5)``."""
        found = []
        for part in self.parts:
            options = {**getattr(part.factory, "keywords", {}), **part.groups[0]}
            given = [f"{name}={value}" for name, value in options.items()]
            if not isinstance(part.factory, type | partial):  # only the function knows what it sets
                given = ["..."]
            given += [f"{len(part.groups)} groups"] if len(part.groups) > 1 else []
            found.append(f"{_class_of(part.factory).__name__}({', '.join(given)})")
        return " + ".join(found)

    @property
    def classes(self) -> tuple[type[torch.optim.Optimizer], ...]:
        """The class of each optimizer, one per part."""
        return tuple(_class_of(part.factory) for part in (self, *self.others))

    @property
    def whole_groups(self) -> frozenset[int]:
        """The groups, of all optimizers, whose tensors are seen as a whole."""
        pairs = zip((self, *self.others), self.group_ranges, strict=True)
        return frozenset(group for part, groups in pairs if part.scope != "element" for group in groups)

    @property
    def reductions(self) -> int:
        """Number of sums over all shards that an update needs: 0 or 1."""
        return int(any(issubclass(cls, ReducingOptimizer) for cls in self.classes))

    @property
    def group_ranges(self) -> tuple[range, ...]:
        """The groups of each optimizer, one range per part."""
        ranges: list[range] = []
        for part in (self, *self.others):
            first = ranges[-1].stop if ranges else 0
            ranges.append(range(first, first + len(part.groups)))
        return tuple(ranges)

    @property
    def penalized(self) -> bool:
        """Whether any group has a penalty."""
        return any(part.penalties for part in (self, *self.others))

    @property
    def group_penalties(self) -> tuple[Penalty, ...]:
        """The regularisation of each group of all optimizers."""
        penalties: list[Penalty] = []
        for part in (self, *self.others):
            penalties.extend(part.penalties or [Penalty()] * len(part.groups))
        return tuple(penalties)

    def build(self, params: Iterable[tuple[torch.Tensor, int]]) -> torch.optim.Optimizer:
        """Build the first optimizer over tensors, each with the index of its group.

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

    def build_all(self, params: Iterable[tuple[torch.Tensor, int]]) -> list[Built]:
        """Build all optimizers over tensors, each with the index of its group among all groups.

        Optimizers and groups without a tensor are left out.
        """
        pairs = list(params)
        present = {group for _, group in pairs}
        built = []
        for part, groups in zip((self, *self.others), self.group_ranges, strict=True):
            own = [(tensor, group - groups.start) for tensor, group in pairs if group in groups]
            if own:
                built.append(Built(part.build(own), [g for g in groups if g in present], part.scope))
        return built

    def shadow(self) -> list[torch.optim.Optimizer]:
        """Build all optimizers over one dummy tensor per group, for a learning-rate scheduler.

        They may be changed freely: what the scheduler writes reaches no other optimizer of this spec.
        """
        shapes = [shape for part in self.parts for shape in part.shapes or [(1,)] * len(part.groups)]
        built = self.build_all((torch.zeros(s, requires_grad=True), group) for group, s in enumerate(shapes))
        for optimizer, *_ in built:
            for group in optimizer.param_groups:
                # A learning rate given as a tensor is the factory's own, and schedulers write in place.
                group.update({k: v.clone() for k, v in group.items() if isinstance(v, torch.Tensor)})
        return [one.optimizer for one in built]

    def hyper_of(self, shadows: Sequence[torch.optim.Optimizer]) -> tuple[dict[str, Any], ...]:
        """Return, per group of all optimizers, the hyper-parameters that a fresh one has otherwise.

        Args:
            shadows: what :meth:`shadow` has returned, some steps of a scheduler later.

        Returns:
            Plain values by name, to be given to :meth:`ShardOptimizer.update
            <sparkdl.optim.shard.optimizer.ShardOptimizer.update>`; empty for a group without changes.
            What a scheduler keeps in the group for itself is left out.
        """
        return tuple(
            {
                name: _plain(value)
                for name, value in now.items()
                if name != "params" and name in before and _plain(value) != _plain(before[name])
            }
            for shadow, fresh in zip(shadows, self.shadow(), strict=True)
            for now, before in zip(shadow.param_groups, fresh.param_groups, strict=True)
        )


def optimizer_spec(
    optimizer: Optimizers, module: nn.Module, groups: Sequence[ParamGroup] = ()
) -> tuple[OptimizerSpec, GroupOf]:
    """Read an optimizer factory, an optimizer over the module's own parameters, or one per pattern.

    A factory's parameters make up at most ``len(groups) + 1`` groups: first those that no entry of
    ``groups`` matches, then one group per entry, each if it has a parameter. With several optimizers
    this holds for each, and their groups count on.

    Args:
        optimizer: a factory; or an optimizer; or a mapping from patterns (see :class:`ParamGroup`) to
            factories, where each parameter goes to the first that matches.
        module: the module to be trained.
        groups: parameters with hyper-parameters of their own, the first match wins. ``l1`` and ``l2``
            are penalties (:class:`~sparkdl.optim.regularize.Penalty`), unless the optimizer has
            options of these names; an optimizer given over groups may have them in its groups.

    Returns:
        The spec, and the function from a parameter to its group.

    Raises:
        ConfigError: if it is none of these, does not cover the module's parameters, a pattern matches
            none, or an option is not the optimizer's.
    """
    for entry in groups:
        if not isinstance(entry, ParamGroup):
            raise ConfigError(
                f"groups: found {entry!r:.100}, expected entries such as ParamGroup('*.bias', lr=0.01)"
            )
    if isinstance(optimizer, torch.optim.Optimizer):
        if groups:
            raise ConfigError(
                f"groups={list(groups)!r:.100}: the {type(optimizer).__name__} has parameter groups already; "
                "put the options there, or pass a factory such as partial(torch.optim.Adam, lr=1e-3)"
            )
        return _from_instance(optimizer, module)
    if isinstance(optimizer, Mapping):
        return _from_mapping(optimizer, module, groups)
    if not callable(optimizer):
        raise ConfigError(
            f"optimizer={optimizer!r}: expected a factory such as partial(torch.optim.Adam, lr=1e-3), "
            "an optimizer over module.parameters(), or a dict from patterns to factories"
        )
    if not groups:
        return OptimizerSpec(optimizer), lambda _: 0
    return _from_mapping({"*": optimizer}, module, groups)


def _from_mapping(
    factories: Mapping[Match, OptimizerFactory], module: nn.Module, groups: Sequence[ParamGroup]
) -> tuple[OptimizerSpec, GroupOf]:
    """Give each parameter to an optimizer and, of that one, to a group."""
    for match, factory in factories.items():
        if not callable(factory):
            raise ConfigError(
                f"optimizer[{describe(match)}]={factory!r:.100}: expected a factory such as "
                "partial(torch.optim.Adam, lr=1e-3)"
            )
    owner = assign(list(factories), module, "optimizer")
    for name, p in module.named_parameters():
        if p.requires_grad and id(p) not in owner:
            known = ", ".join(describe(match) for match in factories) or "(there are none)"
            raise ConfigError(
                f"optimizer: parameter {name!r} matches none of the patterns {known}; "
                "add a last entry '*' for all others, or freeze it with requires_grad_(False)"
            )
    entry_of = assign([group.match for group in groups], module, "groups")
    group_of: dict[int, int] = {}
    parts: list[OptimizerSpec] = []
    count = 0
    for index, factory in enumerate(factories.values()):
        # Parameters without an entry come first: theirs is the learning rate that the history shows.
        own = {key: entry_of.get(key, -1) for key, part in owner.items() if part == index}
        if not own:
            continue
        entries = sorted(set(own.values()))
        group_of |= {key: count + entries.index(entry) for key, entry in own.items()}
        count += len(entries)
        parts.append(_with_groups(factory, [groups[e] if e >= 0 else None for e in entries]))
    if not parts:  # a module without parameters, which has an error of its own
        parts = [OptimizerSpec(factory) for factory in factories.values()]
    first, *others = parts
    return replace(first, others=tuple(others)), lambda p: group_of[id(p)]


def _with_groups(factory: OptimizerFactory, entries: Sequence[ParamGroup | None]) -> OptimizerSpec:
    """Check the options of an optimizer's groups and tell penalties apart."""
    if entries == [None]:
        return OptimizerSpec(factory)
    try:
        probe = factory([torch.zeros(2, 2)])
    except Exception as error:
        raise ConfigError(f"optimizer {OptimizerSpec(factory).name}: {error}") from error
    groups: list[Mapping[str, Any]] = []
    penalties: list[Penalty] = []
    for entry in entries:
        options, penalty = _split_options({} if entry is None else entry.options, set(probe.defaults))
        unknown = [name for name in options if name not in probe.defaults]
        if unknown:
            raise ConfigError(
                f"{entry}: {type(probe).__name__} has no option {unknown[0]!r}; "
                f"expected one of {', '.join(sorted({*probe.defaults, *_PENALTIES}))}"
            )
        if options:
            _check_values(entry, probe, options)
        groups.append(options)
        penalties.append(penalty)
    return OptimizerSpec(factory, tuple(groups), tuple(penalties) if any(penalties) else ())


def _check_values(entry: ParamGroup | None, probe: torch.optim.Optimizer, options: Mapping[str, Any]) -> None:
    """Let the optimizer's constructor check options, which it does not where they come in a group."""
    cls = type(probe)
    accepted = _Arguments(cls)
    values = {name: value for name, value in {**probe.defaults, **options}.items() if name in accepted}
    if all(name in values for name in accepted.required):
        try:
            cls([torch.zeros(2, 2)], **values)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{entry}: {cls.__name__} refuses it: {error}") from error


_PENALTIES = ("l1", "l2")


def _split_options(options: Mapping[str, Any], own: set[str]) -> tuple[dict[str, Any], Penalty]:
    """Tell an optimizer's own options from sparkdl's."""
    penalty = {name: options[name] for name in _PENALTIES if name in options and name not in own}
    return {name: value for name, value in options.items() if name not in penalty}, Penalty(**penalty)


def _from_instance(optimizer: torch.optim.Optimizer, module: nn.Module) -> tuple[OptimizerSpec, GroupOf]:
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
    # What is neither an argument nor a default is the user's own, and the optimizer reads it in its step.
    groups = tuple(
        {
            name: value
            for name, value in (group | _own_rate(group)).items()
            if name in accepted or name not in {*_LEFT_BY_TORCH, *optimizer.defaults}
        }
        for group in optimizer.param_groups
    )
    penalties = tuple(_split_options(group, set(optimizer.defaults))[1] for group in optimizer.param_groups)
    missing = [name for name in accepted.required if name not in groups[0]]
    if missing:
        raise ConfigError(
            f"cannot tell the arguments {missing} that the {type(optimizer).__name__} was built with; "
            "pass a factory such as partial(MyOptimizer, ...) instead"
        )
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    factory = partial(type(optimizer), **defaults)
    _check_like(optimizer, factory, groups)
    spec = OptimizerSpec(factory, groups, penalties if any(penalties) else ())
    return spec, lambda p: group_of[id(p)]


_LEFT_BY_TORCH = (
    *("params", "param_names", "l1", "l2"),
    *("initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"),
)
"""Entries of groups that are not the optimizer's: those of schedulers, and our penalties."""

_INITIAL_RATE = "initial_lr"


def _own_rate(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the learning rate that another scheduler of the optimizer would begin with, if there is one."""
    return {"lr": group[_INITIAL_RATE]} if _INITIAL_RATE in group else {}


_SCHEDULE = (
    "give what makes it as schedule=, such as schedule=partial(StepLR, step_size=30), and an optimizer "
    "without one"
)


def check_unscheduled(
    optimizer: Optimizers, spec: OptimizerSpec, name: str = "", remedy: str = _SCHEDULE
) -> None:
    """Check that no scheduler has been made for an optimizer: without a schedule none would be stepped."""
    for own in [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else spec.shadow():
        rates = [(group["lr"], group[_INITIAL_RATE]) for group in own.param_groups if _INITIAL_RATE in group]
        if rates:
            now, begin = (float(rate) for rate in rates[0])
            raise ConfigError(
                f"the {type(own).__name__}{name and f' of {name}'} has a learning-rate scheduler "
                f"(lr={now:g}, initial_lr={begin:g}), which no task would step; {remedy}"
            )


_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def _check_like(
    optimizer: torch.optim.Optimizer, factory: OptimizerFactory, groups: Sequence[Mapping[str, Any]]
) -> None:
    """Check that an optimizer built anew is like the one that was given."""
    name, advice = type(optimizer).__name__, "pass a factory such as partial(MyOptimizer, ...) instead"
    if any(getattr(optimizer, hooks, None) for hooks in _HOOKS):
        raise ConfigError(f"the {name} has hooks around its step, which tasks would not call; leave them out")
    try:
        pairs = zip(optimizer.param_groups, groups, strict=True)
        fresh = factory([{**own, "params": list(group["params"])} for group, own in pairs])
    except Exception as error:
        raise ConfigError(f"the {name} cannot be built anew ({error}); {advice}") from error
    mine, other = own_attributes(optimizer), own_attributes(fresh)
    for attribute in mine.keys() & other.keys():
        if not same(frozen(mine[attribute]), frozen(other[attribute])):
            raise ConfigError(
                f"cannot tell the arguments that the {name} was built with: its {attribute} is "
                f"{mine[attribute]!r:.80}, and {other[attribute]!r:.80} if it is built from its groups; "
                f"{advice}"
            )


class _Arguments:
    """Names of an optimizer class's constructor arguments besides the parameters."""

    def __init__(self, cls: type) -> None:
        parameters: Sequence[inspect.Parameter] = list(inspect.signature(cls).parameters.values())[1:]
        self._names = {p.name for p in parameters}
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        self.required = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]

    def __contains__(self, name: object) -> bool:
        return name in self._names


def _class_of(factory: OptimizerFactory) -> type[torch.optim.Optimizer]:
    """Return the class that a factory makes; only one that is no class itself is tried."""
    inner: Any = factory
    while isinstance(inner, partial):
        inner = inner.func
    if isinstance(inner, type) and issubclass(inner, torch.optim.Optimizer):
        return inner
    return type(factory([torch.zeros(2, 2)]))


def _plain(value: Any) -> Any:
    """Return a hyper-parameter without tensors."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return value

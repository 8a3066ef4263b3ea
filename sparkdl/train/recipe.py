"""The recipe of a Trainer: module, optimizer and options, checked once for all of its fits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl.allreduce.choose import Wanted
from sparkdl.allreduce.shard_states import Snapshot
from sparkdl.allreduce.update.shard import reductions
from sparkdl.allreduce.update.table import beginning
from sparkdl.compute.local_steps import InnerRule
from sparkdl.compute.spec import FitSpec
from sparkdl.data.collate import Collate
from sparkdl.data.columns import Structure, TablePlan
from sparkdl.data.dataset import Transform
from sparkdl.data.store.partition import Token
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn import serialize
from sparkdl.nn.flat import write_back
from sparkdl.nn.objective import LossObjective, Objective
from sparkdl.nn.parameters import (
    layout_of,
    moving_with_buffers,
    nothing_to_train,
    refuse_aliases,
    tables_of,
    trainable,
)
from sparkdl.nn.signature import check_inputs_order
from sparkdl.optim import OptimizerSpec, optimizer_spec
from sparkdl.optim.describe import describe_optimizer
from sparkdl.optim.groups import all_names
from sparkdl.optim.shard.optimizer import UpdateRule
from sparkdl.optim.shard.packed import lazy_groups, sparse_groups
from sparkdl.optim.shard.shardable import tried_optimizer
from sparkdl.optim.spec import Optimizers, check_unscheduled
from sparkdl.optim.staleness import Staleness
from sparkdl.train.checkpoint.setting import checksums, setting_of
from sparkdl.train.keyed import check_keyed, keyed_groups, rules_of
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.scheduled import ScheduledHyper
from sparkdl.wire.codec import codec_of, has_error_feedback
from sparkdl.wire.layout import ParamLayout, TensorPlace

_UNSCHEDULED = "expected an optimizer without one: schedule= is for the partitions' own steps alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What stays the same in all fits of a Trainer."""

    module: nn.Module  # the module as it was given
    objective: Objective  # the loss
    config: TrainConfig  # the options
    unfreezes: Sequence[str]  # patterns of parameters that the module has frozen and hooks may unfreeze
    frozen: frozenset[str]  # names of the parameters that match
    layout: ParamLayout  # where each parameter lies in the flat vectors
    optimizer: OptimizerSpec  # the user's optimizer; with local steps that of the partitions
    rule: UpdateRule  # the update of shards
    stateful: bool  # whether the optimizer of ``rule`` keeps anything
    inner: InnerRule | None  # the update of local steps, ``None`` without them
    # tables of which rows alone have a gradient, and whose optimizer leaves the others as they are
    tables: tuple[int, ...]
    scanned: tuple[int, ...]  # tables whose rows of zeros need not be sent
    keyed: tuple[str, ...]  # names of embedding variables
    trains: bool = True  # whether there is anything to train; if not, weights can be evaluated

    @classmethod
    def of(
        cls, module: nn.Module, objective: Objective, optimizer: Optimizers, config: TrainConfig
    ) -> Recipe:
        """Lay the parameters out, and try the optimizer on shards.

        A module of which nothing is trained can be evaluated. Raises ConfigError, ModelError or
        OptimizerError if an option, the parameters or the optimizer do not work.
        """
        unfreezes = [pattern for hook in config.hooks for pattern in hook.unfreezes]
        groups, trains = config.groups, not is_frozen(module, unfreezes)
        if not trains:
            groups, optimizer = (), partial(torch.optim.SGD, lr=0.0)
        with _trainable(module, unfreezes) as frozen:
            spec, group_of = optimizer_spec(optimizer, module, groups)
            tried = tried_optimizer(spec, layout_of(module, group_of))
            refuse_aliases(module)
            spec, layout = tried.spec, tried.layout
            keyed = check_keyed(module, layout, spec, config)
            sparse, dense = tables_of(module, sparse=True), tables_of(module, sparse=False)
        staleness = _staleness_of(config, spec, keyed)
        rule, inner = UpdateRule(spec, config.clip, staleness, config.seed), None
        tables = keyed_groups(keyed, layout)
        schedule = ScheduledHyper(spec, config.schedule if trains else None, tables=tables)
        stateful = tried.stateful or staleness is not None or schedule.brings_state
        if config.local is not None:  # the optimizer is that of the partitions, and the shards' an outer one
            inner = InnerRule(rule, layout, stateful)
            outer, _ = optimizer_spec(config.local.outer, module)
            check_unscheduled(config.local.outer, outer, "LocalSteps(outer=)", _UNSCHEDULED)
            layout = replace(layout, params=tuple(replace(param, group=0) for param in layout.params))
            tried = tried_optimizer(outer, layout)
            rule, layout, stateful = UpdateRule(tried.spec, seed=config.seed), tried.layout, tried.stateful
        # To SparseAdam an element of zero is none, and to name its row would make it one.
        lazy, by_element = lazy_groups(rule.optimizer), sparse_groups(rule.optimizer)
        return cls(
            module=module,
            objective=objective,
            config=config,
            unfreezes=unfreezes,
            frozen=frozen,
            layout=layout,
            optimizer=spec,
            rule=rule,
            stateful=stateful,
            inner=inner,
            tables=tuple(i for i in sparse if layout.params[i].group in lazy),
            scanned=tuple(i for i in dense if layout.params[i].group not in by_element),
            keyed=keyed,
            trains=trains,
        )

    def moving(self, names: Collection[str]) -> Recipe:
        """Return it with some frozen parameters that travel as buffers do, since forward changes them."""
        return replace(self, layout=moving_with_buffers(self.layout, self.module, names))

    def check_trains(self) -> None:
        """Check that there is something to train."""
        if not self.trains:
            raise nothing_to_train(self.module)

    @property
    def keeps_on_partitions(self) -> bool:
        """Whether partitions keep anything for their next steps, which lies beside their rows."""
        lossy = has_error_feedback(codec_of(self.config.gradient_codec))
        return lossy or (self.inner is not None and self.inner.stateful)

    def spec(
        self,
        plan: TablePlan,
        module: nn.Module,
        transform: Transform | None,
        collate: Collate | None,
        label: Structure | None = None,
    ) -> FitSpec:
        """Return what is shipped once for a fit, an evaluation or a prediction with the module's weights.

        ``label`` is that of the rows which were trained on, if it counts in place of these rows' own.
        """
        config = self.config
        features = plan.features
        if features.kind == "tuple" and isinstance(self.objective, LossObjective) and transform is None:
            check_inputs_order(module, plan.sources(features))
        with _trainable(module, self.unfreezes):
            _check_fits(module, self.layout)
            return FitSpec(
                module=_copied(module) if self.unfreezes else module,
                objective=self.objective,
                rule=self.rule,
                combine=config.combine,
                averaging=config.averaging is not None,
                layout=self.layout,
                features=features,
                label=plan.label if label is None else label,
                weighted=plan.weighted,
                transform=transform,
                collate=collate,
                seed=config.seed,
                shuffle=config.shuffle,
                micro_batch_size=config.micro_batch_size,
                row_memory=config.row_memory,
                threads=1,
                numerics=config.numerics(),
                gradient_codec=codec_of(config.gradient_codec),
                weights_codec=config.weights_codec,
                inner=self.inner,
                tables=self.tables,
                scanned=self.scanned,
                columns=plan,
            )

    def wanted(self) -> Wanted:
        """Return what the choice of plan and transport depends on."""
        config = self.config
        # Options that change all weights in each iteration, or what partitions send.
        dense = config.combine != "mean" or config.averaging is not None or config.local_steps is not None
        return Wanted(
            exchange=config.exchange,
            layout=self.layout,
            reductions=reductions(self.rule, config.combine),
            stateful=self.stateful or config.averaging is not None,
            averaging=config.averaging is not None,
            tables=() if dense else self.tables,
            weights_codec=config.weights_codec,
            num_shards=config.num_shards,
            stragglers=config.drop_stragglers is not None,
            transport=config.transport,
            keyed=self.keyed,
            elastic=config.elastic is not None,
        )

    def setting(self, tokens: Sequence[Token], plan: TablePlan) -> dict[str, Any]:
        """Return what must be the same for another run to go on from a checkpoint of this one."""
        config, tables = self.config, rules_of(self.module)
        setting = setting_of(
            self.layout,
            [token.rows for token in tokens],
            batch_size=config.batch_size,
            local_steps=config.local.steps if config.local is not None else None,
            seed=config.seed,
            shuffle=config.shuffle,
            dealt=any(token.dealt for token in tokens),
            optimizer=describe_optimizer(self.rule.optimizer),
            inner_optimizer=describe_optimizer(self.optimizer) if config.local is not None else None,
        )
        stale = self.rule.staleness
        setting["staleness"] = None if stale is None else asdict(stale)
        setting["columns"] = {column.key: column.source for column in plan.columns}
        return setting | checksums(tokens) | ({} if tables is None else {"tables": tables})

    def begun_rows(self) -> dict[str, Collection[str]]:
        """Return the names of the optimizer's state of each row, by embedding variable that is trained."""
        one = np.zeros((1, 1), self.layout.dtype)
        groups = {param.name: param.group for param in self.layout.params}
        names = {name: f"{name}.weight" if name else "weight" for name in self.keyed}
        return {n: set(beginning(self.rule, groups[w])(one)) for n, w in names.items() if w in groups}

    def write_back(self, snapshot: Snapshot) -> nn.Module:
        """Return a copy of the module with the given weights."""
        with _trainable(self.module, self.unfreezes):
            module = _copied(self.module)
        write_back(module, self.layout, snapshot.params, snapshot.buffers, snapshot.counters)
        named = dict(self.module.named_parameters())
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(named[name].requires_grad)
        return module


def _staleness_of(config: TrainConfig, optimizer: OptimizerSpec, keyed: Sequence[str]) -> Staleness | None:
    """Return which gradients come late, ``None`` if none do."""
    staleness = config.staleness
    if staleness is None or not staleness.share:
        return None
    if optimizer.reductions:
        raise ConfigError(
            f"staleness: {optimizer.name} needs sums over all weights, and cannot wait for late gradients; "
            "leave out one of them"
        )
    if staleness.rows_only and not keyed:
        raise ConfigError(
            "staleness=Staleness(rows_only=True): the module has no embedding variables, so no gradient "
            "would be late"
        )
    return staleness


def is_frozen(module: nn.Module, unfreezes: Sequence[str]) -> bool:
    """Return whether a module has no parameters that are trained, now or later."""
    with _trainable(module, unfreezes):
        return not trainable(module)


def _copied(module: nn.Module) -> nn.Module:
    copy: nn.Module = serialize.loads(serialize.dumps(module, "module"))
    return copy


@contextmanager
def _trainable(module: nn.Module, patterns: Sequence[str]) -> Iterator[frozenset[str]]:
    """Let parameters that match a pattern be trainable for a while; yield the names of frozen ones."""
    names = all_names(module)
    matching = {
        name: parameter
        for name, parameter in module.named_parameters()
        if not parameter.requires_grad and any(fnmatchcase(n, p) for n in names[name] for p in patterns)
    }
    for parameter in matching.values():
        parameter.requires_grad_(True)
    try:
        yield frozenset(matching)
    finally:
        for parameter in matching.values():
            parameter.requires_grad_(False)


def _check_fits(module: nn.Module, layout: ParamLayout) -> None:
    """Check that a module is like the one that the layout was made of."""
    known = {t.name for t in (*layout.buffers, *layout.counters)}  # a forward pass may have made others
    own = layout_of(module, moving=known)
    found = [*own.params, *(t for t in (*own.buffers, *own.counters) if t.name in known)]
    expected = [*layout.params, *layout.buffers, *layout.counters]
    for here, there in zip_longest(found, expected):
        if here is None or there is None or (here.name, here.shape) != (there.name, there.shape):
            raise ModelError(
                f"{type(module).__name__} is not like the module that the Trainer was made with: found "
                f"{_say(here)} where {_say(there)} was expected; names, shapes, requires_grad must agree"
            )


def _say(tensor: TensorPlace | None) -> str:
    return f"{tensor.name}{list(tensor.shape)}" if tensor else "nothing"

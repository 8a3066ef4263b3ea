"""Embedding variables in a fit: what cannot be combined with them is told before any work."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.embedding import embedding_variables
from sparkdl.optim.shard.lazy_rows import check_lazy
from sparkdl.optim.spec import OptimizerSpec
from sparkdl.train.hooks.callbacks import EarlyStopping
from sparkdl.train.options.config import TrainConfig
from sparkdl.wire.layout import ParamLayout


def check_keyed(
    module: nn.Module, layout: ParamLayout, optimizer: OptimizerSpec, config: TrainConfig
) -> tuple[str, ...]:
    """Check that a module's embedding variables can be trained; return their names."""
    variables = embedding_variables(module)
    if not variables:
        if config.row_memory is not None:
            raise ConfigError(
                f"row_memory={config.row_memory}: the module has no embedding variable, whose rows that is "
                "for: leave it out"
            )
        return ()
    _check_options(config)
    groups = keyed_groups(variables, layout)
    for name, variable in variables.items():
        if variable.store.rule.dtype != layout.dtype:
            raise ModelError(
                f"the embedding variable {name!r} is {variable.store.rule.dtype} and the module's parameters "
                f"are {layout.dtype}: make it with dtype=torch.{layout.dtype}",
                code="model-parameters",
            )
        if name in groups:
            check_lazy(optimizer, groups[name], name)
    return tuple(variables)


def keyed_groups(names: Collection[str], layout: ParamLayout) -> dict[str, int]:
    """Return the parameter groups of embedding variables, by name; without those that are frozen."""
    groups = {param.name: param.group for param in layout.params}
    weights = {name: f"{name}.weight" if name else "weight" for name in names}
    return {name: groups[weight] for name, weight in weights.items() if weight in groups}


def _check_options(config: TrainConfig) -> None:
    taken = {
        "exchange='driver'": config.exchange == "driver",
        "local_steps": config.local_steps is not None,
        "averaging": config.averaging is not None,
        "combine='adasum'": config.combine != "mean",
        "gradient_codec": config.gradient_codec != "fp32",
        "weights_codec": config.weights_codec != "fp32",
        "num_shards": config.num_shards is not None,
        "drop_stragglers": config.drop_stragglers is not None,
        "compile": bool(config.compile),
        type(config.clip).__name__: config.clip is not None and config.clip.reductions > 0,
        "EarlyStopping(restore_best=True)": any(
            isinstance(hook, EarlyStopping) and hook.restore_best for hook in config.hooks
        ),
    }
    for option in (option for option, found in taken.items() if found):
        raise ConfigError(f"{option} cannot be combined with embedding variables yet: leave it out")


def rules_of(module: nn.Module) -> dict[str, Any] | None:
    """Return, JSON-compatible, what a resumed run must have in common about embedding variables."""
    rules = {name: asdict(table.store.rule) for name, table in embedding_variables(module).items()}
    for rule in rules.values():
        if rule["counters"] is None:  # as in checkpoints of earlier releases
            del rule["counters"]
    return rules or None


class Counters:
    """Tells once of each table whose counters are for fewer ids than there are."""

    def __init__(self, module: nn.Module) -> None:
        rules = {name: table.store.rule for name, table in embedding_variables(module).items()}
        self._most = {
            name: rule.counters.max_ids for name, rule in rules.items() if rule.counters is not None
        }

    def check(self, extras: Mapping[str, float]) -> None:
        """Look at the figures of an iteration."""
        for name, most in list(self._most.items()):
            ids = extras.get(f"{name}/ids", 0)
            if ids > most:
                del self._most[name]
                warnings.warn(
                    f"the embedding variable {name!r} has met {ids:,.0f} ids, and its counters are for "
                    f"max_ids={most:,}: from now on more ids than expected get their row too early. Give "
                    "CountingBloom a larger max_ids; with max_age counters begin anew",
                    UserWarning,
                    stacklevel=2,
                )

"""Arguments of a Trainer: options, and a loss or a step; checked, in one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.hf.outputs import is_model, own_step
from sparkdl.nn.lightning import LightningSchedule, is_lightning
from sparkdl.nn.objective import Loss, LossObjective, Objective, Step, StepObjective
from sparkdl.train.hooks.of_run import check_hooks
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.options.names import OF_TRAINER, meant
from sparkdl.train.options.schedule import PerEpoch, PerIteration

_ARGUMENTS = ("loss", "step", "optimizer", "config")  # arguments of a Trainer beside its options

_OF_ALL_FITS = " (set for good when a Trainer is made: make another one)"


def configure(config: TrainConfig | None, options: Mapping[str, Any]) -> TrainConfig:
    """Return options whose fields were replaced by others."""
    if not isinstance(config, TrainConfig | None):
        raise ConfigError(f"config={config!r:.100}: expected a TrainConfig; options of a dict are **options")
    known = (*_ARGUMENTS, *TrainConfig.__slots__)
    unknown = [
        name + (_OF_ALL_FITS if name in _ARGUMENTS else meant(name, value, known, OF_TRAINER))
        for name, value in options.items()
        if name not in TrainConfig.__slots__
    ]
    if unknown:
        raise ConfigError(f"unknown option {', '.join(unknown)}; expected one of {', '.join(known)}")
    config = replace(config or TrainConfig(), **options)
    check_hooks(config.hooks)
    if config.metrics is not None:
        from sparkdl.metrics.spec import metric_specs

        metric_specs(config.metrics)  # one that is none is told now
    return config


def with_schedule(config: TrainConfig, schedule: LightningSchedule | None) -> TrainConfig:
    """Take over a LightningModule's schedule, unless the user gave another."""
    if schedule is None or config.schedule is not None:
        return config
    if schedule.frequency != 1:
        raise ConfigError(
            f"configure_optimizers: a schedule of frequency {schedule.frequency} is not supported; step it "
            "every epoch or iteration"
        )
    if schedule.monitor is not None:
        return replace(config, schedule=schedule.factory, monitor=config.monitor or schedule.monitor)
    wrap = PerIteration if schedule.interval == "step" else PerEpoch
    return replace(config, schedule=wrap(schedule.factory))


def objective_of(loss: Loss | None, step: Step | None, module: nn.Module | None = None) -> Objective:
    """Return what is minimised."""
    if loss is None and step is None and is_model(module):
        step = own_step
    if (loss is None) == (step is None):
        raise ConfigError(
            "give either loss=, a callable loss(output, label), or step=, a callable step(module, batch)"
        )
    name, given = ("loss", loss) if step is None else ("step", step)
    if isinstance(given, type) and issubclass(given, nn.Module):
        raise ConfigError(f"{name}={given.__name__} is a class; did you mean {name}={given.__name__}()?")
    if not callable(given):
        raise ConfigError(f"{name}={given!r:.100}: expected a callable")
    return LossObjective(loss) if loss is not None else StepObjective(step)  # type: ignore[arg-type]


def knows_loss(module: object) -> bool:
    """Return whether a module has a loss of its own."""
    return isinstance(module, nn.Module) and (is_lightning(module) or is_model(module))

"""LightningModules as they are: ``training_step`` and ``configure_optimizers`` without Lightning's Trainer.

Only modules of a Lightning that the program itself has imported are recognised; this module
imports none. Lightning's callbacks and loggers do not take part. Of the module's own hooks those run that
begin something in the processes that train; :func:`from_lightning` warns of others.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.attached import arguments, attached, begin, overrides, warn_of_hooks
from sparkdl.nn.batch import Batch, call
from sparkdl.nn.divisor import DivisorWatch, watched
from sparkdl.nn.objective import Evaluated, Objective, explain_step, read_step

_LIBRARIES = ("lightning.pytorch", "pytorch_lightning")


@dataclass(frozen=True, slots=True)
class LightningSchedule:
    """A learning-rate schedule of ``configure_optimizers``."""

    # makes the scheduler for any optimizer with as many parameter groups
    factory: Callable[[Optimizer], LRScheduler]
    interval: str = "epoch"  # what it counts, ``"epoch"`` or ``"step"``
    frequency: int = 1  # how many of these pass between two steps of the scheduler
    # name of the value that a ReduceLROnPlateau follows; ``None`` for other schedulers
    monitor: str | None = None


@dataclass(frozen=True, slots=True)
class LightningParts:
    """The training setup of a LightningModule."""

    objective: LightningObjective  # its ``training_step``
    # its optimizer, over its own parameters; ``None`` if it configures none
    optimizer: Optimizer | None = None
    schedule: LightningSchedule | None = None  # its schedule, if it has one


def is_lightning(module: nn.Module) -> bool:
    """Return whether the module is a LightningModule of ``lightning`` or ``pytorch_lightning``."""
    return _base(module) is not None


def to_train(module: nn.Module) -> nn.Module:
    """Put a module into training mode; a LightningModule keeps the modes of its layers, as in Lightning.

    So a BatchNorm that was put into evaluation mode before the fit keeps its statistics.
    """
    return module if is_lightning(module) else module.train()


def check_mode(module: nn.Module) -> None:
    """Check that a LightningModule is in training mode, which Lightning leaves to the user."""
    if is_lightning(module) and not module.training:
        raise ModelError(
            f"{type(module).__name__} is in evaluation mode: dropout and BatchNorm would not train. Call "
            "module.train() before fit, and eval() of the layers that are to stay as they are"
        )


def from_lightning(module: nn.Module) -> LightningParts | None:
    """Read objective, optimizer and schedule from a LightningModule; ``None`` of another module."""
    base = _base(module)
    if base is None:
        return None
    name = type(module).__name__
    if not getattr(module, "automatic_optimization", True):
        raise ConfigError(
            f"{name}.automatic_optimization is False: manual optimization steps inside of training_step, "
            "but here the step happens on other machines; return the loss from training_step instead, or "
            "give Trainer(step=, optimizer={...}) to train parts in turn (docs/training_steps.md)"
        )
    if not overrides(module, base, "training_step"):
        raise ConfigError(f"{name} has no training_step; define one that returns the loss, or pass loss=")
    warn_of_hooks(module, base)
    if not overrides(module, base, "configure_optimizers"):
        return LightningParts(LightningObjective())
    configure: Any = module.configure_optimizers
    try:
        configured = configure()
    except RuntimeError as error:
        raise ConfigError(
            f"{name}.configure_optimizers failed: {error}. There is no Lightning Trainer here; use no "
            "attribute of self.trainer, such as estimated_stepping_batches"
        ) from error
    return _read_configured(name, configured)


class LightningObjective(Objective):
    """Minimise the loss of ``training_step(batch, 0)``.

    ``batch`` is ``(inputs, label)``, or the inputs alone without a label column; ``batch_idx`` is
    always 0. What ``self.log`` and ``self.log_dict`` are called with becomes the extras. In an evaluation
    ``validation_step`` gives loss and extras if it is there and returns a loss, and ``forward`` the
    output.

    ``on_train_start`` and ``on_train_epoch_start`` run in each process before its first step of the fit or
    epoch, ``on_train_batch_start`` before each step.
    """

    scores = True

    def __call__(self, module: nn.Module, batch: Batch) -> Evaluated:
        """Return the training step's loss and what it logged."""
        with attached(module, batch) as (logged, _):
            begin(module, batch)
            begun = dict(logged)
        found = _run(module, "training_step", batch)
        return replace(found, extras=begun | found.extras, output=None)

    def evaluate(self, module: nn.Module, batch: Batch) -> Evaluated:
        """Return loss, logged scalars and the output of ``forward``, if the module has one."""
        base = _base(module)
        found: Evaluated | None = None
        logged: dict[str, float] = {}
        divisors: Mapping[str, float] = {}
        if base is not None and overrides(module, base, "validation_step"):
            found, logged, divisors = _validate(module, batch)
        if found is None:
            with attached(module, batch):
                begin(module, batch)  # which the step may build on
            found = replace(_run(module, "training_step", batch), extras=logged, divisors=divisors)
        if found.output is None and base is not None and overrides(module, base, "forward"):
            return replace(found, output=call(module, batch.inputs))
        return found

    def explain(self, module: nn.Module, batch: Batch, error: Exception) -> ModelError:
        """Say whether a layer or other code in the step failed."""

        def step(module: nn.Module, batch: Batch) -> Any:
            return (self if module.training else self.evaluate)(module, batch)

        return explain_step(module, batch, step, error, f"a step of {type(module).__name__}")


def _base(module: nn.Module) -> type | None:
    """Return the class LightningModule that the module is of; unloaded libraries stay unloaded."""
    for name in _LIBRARIES:
        base = getattr(sys.modules.get(name), "LightningModule", None)
        if isinstance(base, type) and isinstance(module, base):
            return base
    return None


def _run(module: nn.Module, method: str, batch: Batch) -> Evaluated:
    """Run a step that returns a loss; what it logs are the extras."""
    result, logged, divisors, watch = _call_step(module, method, batch)
    return replace(read_step(result, batch, watch, method), extras=logged, divisors=divisors)


def _validate(
    module: nn.Module, batch: Batch
) -> tuple[Evaluated | None, dict[str, float], Mapping[str, float]]:
    """Run the validation step, which need not return a loss; also return what it logs, and the divisors."""
    result, logged, divisors, watch = _call_step(module, "validation_step", batch)
    if result is None or (isinstance(result, Mapping) and "loss" not in result):
        return None, logged, divisors
    found = read_step(result, batch, watch, "validation_step")
    return replace(found, extras=logged, divisors=divisors), logged, divisors


def _call_step(
    module: nn.Module, method: str, batch: Batch
) -> tuple[Any, dict[str, float], Mapping[str, float], DivisorWatch]:
    with attached(module, batch) as (logged, given):
        step = getattr(module, method)
        result, watch = watched(step, *arguments(step, batch))
    if isinstance(result, Mapping):
        # Lightning passes the other keys on to its hooks; scalars are what was logged.
        result = {key: value for key, value in result.items() if key in ("loss", "output", "divisor")}
    return result, logged, watch.divisors_of(given), watch


def _read_configured(name: str, configured: Any) -> LightningParts:
    """Read the result of configure_optimizers, in any of its forms."""
    objective = LightningObjective()
    if configured is None:
        return LightningParts(objective)
    schedulers: Any = ()
    if isinstance(configured, list | tuple):
        if len(configured) == 2 and all(isinstance(part, list | tuple) for part in configured):
            configured, schedulers = configured
        if len(configured) != 1:
            raise ConfigError(
                f"{name}.configure_optimizers returned {len(configured)} optimizers; expected one: give it "
                "parameter groups for different learning rates, or give Trainer(step=, optimizer={...}) to "
                "train parts in turn (docs/training_steps.md, Several optimizers)"
            )
        configured = configured[0]
    if isinstance(configured, Mapping):
        schedulers = [configured["lr_scheduler"]] if configured.get("lr_scheduler") is not None else []
        configured = configured.get("optimizer")
    if not isinstance(configured, Optimizer):
        raise ConfigError(
            f"{name}.configure_optimizers returned {configured!r:.100}; expected an optimizer, "
            "([optimizer], [scheduler]) or {'optimizer': ..., 'lr_scheduler': ...}"
        )
    return LightningParts(objective, configured, _read_schedule(name, configured, schedulers))


def _read_schedule(name: str, optimizer: Optimizer, schedulers: Sequence[Any]) -> LightningSchedule | None:
    if not schedulers:
        return None
    if len(schedulers) > 1:
        raise ConfigError(
            f"{name}.configure_optimizers returned {len(schedulers)} schedulers; expected one: join them in "
            "torch.optim.lr_scheduler.ChainedScheduler or SequentialLR"
        )
    entry = schedulers[0]
    entry = entry if isinstance(entry, Mapping) else {"scheduler": entry}
    scheduler, interval = entry.get("scheduler"), entry.get("interval", "epoch")
    frequency, monitor = entry.get("frequency", 1), entry.get("monitor")
    if not isinstance(scheduler, LRScheduler) or scheduler.optimizer is not optimizer:
        raise ConfigError(
            f"{name}.configure_optimizers returned the scheduler {scheduler!r:.100}; expected one of "
            "torch.optim.lr_scheduler for the optimizer that was returned with it"
        )
    if interval not in ("epoch", "step"):
        raise ConfigError(
            f"{name}.configure_optimizers: the scheduler's interval is {interval!r}; "
            "expected 'epoch' or 'step'"
        )
    if not isinstance(frequency, int) or frequency < 1:
        raise ConfigError(
            f"{name}.configure_optimizers: the scheduler's frequency is {frequency!r}; "
            "expected an integer of at least 1"
        )
    if isinstance(scheduler, ReduceLROnPlateau) and monitor is None:
        raise ConfigError(
            f"{name}.configure_optimizers: ReduceLROnPlateau needs to know what to follow; return "
            "{'scheduler': ..., 'monitor': 'val_loss'} as lr_scheduler"
        )
    # Templates name a monitor beside any scheduler; only this one follows it.
    followed = monitor if isinstance(scheduler, ReduceLROnPlateau) else None
    return LightningSchedule(Rebound(scheduler), interval, frequency, followed)


class _NoOptimizer:
    """Stands for the optimizer in a scheduler that waits for one."""


class Rebound:
    """A factory that gives copies of a scheduler to other optimizers.

    The copy continues where the scheduler is. The optimizer's parameter groups get the hyper-parameters that
    the scheduler's own have now: schedulers set some when they are built.
    """

    def __init__(self, scheduler: LRScheduler) -> None:
        original = scheduler.optimizer
        self._no_optimizer = _NoOptimizer()
        self._name = type(scheduler).__name__
        # Deep copies take their memo's word for it: every mention of the optimizer is replaced,
        # also those in schedulers within schedulers.
        self._scheduler = copy.deepcopy(scheduler, {id(original): self._no_optimizer})
        self._groups = [
            copy.deepcopy({name: value for name, value in group.items() if name != "params"})
            for group in original.param_groups
        ]

    def __call__(self, optimizer: Optimizer) -> LRScheduler:
        """Return a copy of the scheduler that works on ``optimizer``."""
        if len(optimizer.param_groups) != len(self._groups):
            raise ConfigError(
                f"the {self._name} was made for an optimizer with {len(self._groups)} parameter groups, "
                f"not {len(optimizer.param_groups)}; pass schedule= along with optimizer="
            )
        LambdaLR(optimizer, lambda _: 1.0)  # makes the optimizer count steps, which schedulers look for
        for group, values in zip(optimizer.param_groups, self._groups, strict=True):
            group.update(copy.deepcopy(values))
        return copy.deepcopy(self._scheduler, {id(self._no_optimizer): optimizer})

    def __repr__(self) -> str:
        return f"Rebound({self._name})"

"""A LightningModule's trainer while a step runs: its place in the run, a log, the hooks that are due."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sparkdl.exceptions import ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.objective import as_scalar

_INSTEAD = {
    "on_train_end": "a sparkdl.train.Hook's on_train_end runs on the driver",
    "on_train_epoch_end": "a sparkdl.train.Hook's on_epoch_end runs on the driver",
    "on_validation_epoch_end": "log in validation_step; its means over all rows are scores",
    "on_validation_end": "a sparkdl.train.Hook's on_validation_end runs on the driver",
    "on_save_checkpoint": "a sparkdl.train.Hook's state_dict() goes into checkpoints",
    "on_load_checkpoint": "a sparkdl.train.Hook's load_state_dict() gets it back",
    "on_validation_model_eval": "put layers into another mode in validation_step",
    "training_step_end": "return the loss from training_step",
    "training_epoch_end": "a sparkdl.train.Hook's on_epoch_end runs on the driver",
    "validation_epoch_end": "log in validation_step; its means over all rows are scores",
    "configure_gradient_clipping": "give Trainer(clip=)",
    "lr_scheduler_step": "give Trainer(schedule=)",
    "optimizer_step": "give Trainer(step=) and choose by batch.iteration what is trained",
    "setup": "build the layers in __init__",
    "configure_model": "build the layers in __init__",
    "prepare_data": "make a Dataset of the rows",
}
"""What to use in place of hooks that do not run."""
_LEFT_OUT = (
    *("on_fit_start", "on_fit_end", "on_train_batch_end", "on_train_epoch_end", "on_train_end"),
    *("on_validation_start", "on_validation_end", "on_validation_epoch_start", "on_validation_epoch_end"),
    *("on_validation_batch_start", "on_validation_batch_end"),
    *("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"),
    *("on_before_batch_transfer", "on_after_batch_transfer", "transfer_batch_to_device"),
    *("on_save_checkpoint", "on_load_checkpoint", "backward", "optimizer_step", "optimizer_zero_grad"),
    *("lr_scheduler_step", "configure_gradient_clipping", "configure_callbacks", "configure_model"),
    *("on_validation_model_eval", "on_validation_model_train", "on_validation_model_zero_grad"),
    *("configure_sharded_model", "setup", "teardown", "prepare_data"),
)
"""Hooks of a LightningModule that do not run here."""
_OF_EARLIER = (
    *("training_step_end", "training_epoch_end", "validation_step_end", "validation_epoch_end"),
    *("on_epoch_start", "on_epoch_end"),
)
"""Hooks of earlier releases, which Lightning 2 refuses or passes over."""
_EPOCH = "_sparkdl_epoch"
_LOG_OPTIONS = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph", "sync_dist")
"""Options of ``log`` that may be given by position, as far as anybody does."""


def overrides(module: nn.Module, base: type, method: str) -> bool:
    """Return whether a module defines a method of LightningModules itself."""
    return getattr(type(module), method, None) is not getattr(base, method, None)


def users_batch(batch: Batch) -> Any:
    """Return a batch as Lightning's users know it."""
    return batch.inputs if batch.label is None else (batch.inputs, batch.label)


def arguments(step: Callable[..., Any], batch: Batch) -> tuple[Any, ...]:
    """Return what a step is called with: a batch, and its number if the step takes one, as in Lightning."""
    given = users_batch(batch)
    try:
        inspect.signature(step).bind(given, 0)
    except TypeError:
        return (given,)
    return given, 0


def begin(module: nn.Module, batch: Batch) -> None:
    """Run the hooks that are due before a step."""
    own: Any = module
    before = getattr(module, _EPOCH, None)
    if before is None:
        own.on_train_start()
    if before != batch.epoch:
        _begin_epoch(own)
        setattr(module, _EPOCH, batch.epoch)
    if own.on_train_batch_start(users_batch(batch), 0) == -1:
        raise ModelError(
            f"{type(module).__name__}.on_train_batch_start returned -1, which skips the rest of an epoch; "
            "here an epoch visits each row: leave rows out of the Dataset",
            code="model-output",
        )


def _begin_epoch(module: Any) -> None:
    """Run the hook of an epoch, which must freeze nothing: a process that begins later has not run it."""
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    module.on_train_epoch_start()
    frozen = [(name, p) for name, p in trained if not p.requires_grad]
    for _, p in frozen:
        p.requires_grad_(True)
    if frozen:
        name = frozen[0][0]
        raise ModelError(
            f"{type(module).__name__}.on_train_epoch_start froze parameter {name!r}, which a process "
            f"that begins later would train; give hooks=[Freeze({name!r}, from_epoch=...)] of "
            "sparkdl.train, or freeze it in on_train_start for the whole fit",
            code="model-state",
        )


class _Attached:
    """Stands for Lightning's Trainer while a step runs."""

    logger = None
    loggers: Sequence[Any] = ()
    callback_metrics: Mapping[str, Any] = {}
    global_rank = local_rank = 0
    is_global_zero = True
    sanity_checking = False

    def __init__(self, module: nn.Module, batch: Batch) -> None:
        self.current_epoch = batch.epoch
        self.global_step = batch.iteration
        self.training = module.training
        self.validating = not module.training

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            "there is no Lightning Trainer here: self.trainer has current_epoch and global_step, but not "
            f"{name}"
        )


@contextmanager
def attached(module: nn.Module, batch: Batch) -> Iterator[tuple[dict[str, float], dict[str, Any]]]:
    """Collect what the module logs, and tell it its place; Lightning's own methods want a Trainer.

    Gives the scalars, and what they were logged as.
    """
    logged: dict[str, float] = {}
    given: dict[str, Any] = {}

    def log(name: str, value: Any, *args: Any, **options: Any) -> None:
        options |= dict(zip(_LOG_OPTIONS, args, strict=False))
        _check_log(name, value, training=module.training, rows=batch.rows, **options)
        if _is_metric(value):  # this batch's value
            metric, value = value, value.compute()
            metric.reset()
        logged[name], given[name] = as_scalar(value, f"self.log({name!r}) got a value"), value

    def log_dict(dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        for name, value in dictionary.items():
            log(name, value, *args, **options)

    own: Any = module
    own.log, own.log_dict = log, log_dict
    before, own.trainer = own._trainer, _Attached(module, batch)
    try:
        yield logged, given
    finally:
        own.trainer = before
        del own.log, own.log_dict


def warn_of_hooks(module: nn.Module, base: type) -> None:
    """Warn of each hook that a module defines and that will not run."""
    name = type(module).__name__
    for hook in (*_LEFT_OUT, *_OF_EARLIER):
        if overrides(module, base, hook):
            remedy = _INSTEAD.get(hook, "Lightning's Trainer calls it, which does not take part here")
            warnings.warn(f"{name}.{hook} is defined and will not run: {remedy}", UserWarning, stacklevel=5)


def _is_metric(value: Any) -> bool:
    return hasattr(value, "compute") and hasattr(value, "reset")


def _check_log(
    name: str,
    value: Any,
    *,
    training: bool,
    rows: int,
    prog_bar: bool = False,
    logger: bool | None = None,
    on_step: bool | None = None,
    on_epoch: bool | None = None,
    reduce_fx: Any = "mean",
    enable_graph: bool = False,
    sync_dist: bool = False,
    sync_dist_group: Any = None,
    add_dataloader_idx: bool = True,
    batch_size: int | None = None,
    metric_attribute: str | None = None,
    rank_zero_only: bool = False,
) -> None:
    """Check that what is logged means the same as in Lightning; what cannot hold here is refused by name.

    A value is a mean over rows: in training over those of the iteration, as a row of the history, and in a
    validation over all rows of the set, as a score. Options about where a value is shown, and about
    processes, ask for nothing else.
    """
    if getattr(reduce_fx, "__name__", reduce_fx) != "mean" and reduce_fx is not torch.mean:
        raise _refused(
            name,
            f"reduce_fx={getattr(reduce_fx, '__name__', reduce_fx)!r}",
            "a logged value is a mean over rows. Give Trainer(metrics=) with torchmetrics' MaxMetric, "
            "MinMetric or SumMetric, or a hook that reads the history",
        )
    if batch_size is not None and int(batch_size) != rows:
        raise _refused(
            name,
            f"batch_size={batch_size} of a batch of {rows} rows",
            "each row counts alike in the mean of a logged value. Leave it out, or give Trainer(metrics=)",
        )
    if not training and on_epoch is False:
        raise _refused(
            name,
            "on_epoch=False in a validation",
            "its values are scores over all rows. Leave it out",
        )
    if _is_metric(value) and (on_epoch or not training):
        raise _refused(
            name,
            f"the metric {type(value).__name__} over all batches",
            "its value is that of one batch here, and the mean of these is another number. Give "
            f"Trainer(metrics={{{name!r}: ...}}), which merges it over all rows, or log a number",
        )


def _refused(name: str, what: str, remedy: str) -> ModelError:
    return ModelError(f"self.log({name!r}) asks for {what}: {remedy}", code="model-output")

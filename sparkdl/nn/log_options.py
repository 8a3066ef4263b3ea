"""Options of a LightningModule's ``log``; those that cannot hold here are refused by name.

A value is a mean over rows: in training over those of the iteration, as a row of the history, and in a
validation over all rows of the set, as a score. Options about where a value is shown, and about processes,
ask for nothing else.
"""

from __future__ import annotations

from typing import Any

import torch

from sparkdl.exceptions import ModelError


def is_metric(value: Any) -> bool:
    """Return whether a value is a metric object."""
    return hasattr(value, "compute") and hasattr(value, "reset")


def check_log(
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
    """Check that what is logged means the same as in Lightning."""
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
    if is_metric(value) and (on_epoch or not training):
        raise _refused(
            name,
            f"the metric {type(value).__name__} over all batches",
            "its value is that of one batch here, and the mean of these is another number. Give "
            f"Trainer(metrics={{{name!r}: ...}}), which merges it over all rows, or log a number",
        )


def _refused(name: str, what: str, remedy: str) -> ModelError:
    return ModelError(f"self.log({name!r}) asks for {what}: {remedy}", code="model-output")

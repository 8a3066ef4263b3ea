"""The matrix of ``characterise.py``. Nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from characterise_parts import (
    CLASSES,
    LAYOUTS,
    ROWS,
    Announced,
    Factors,
    FreezeMidway,
    SometimesUnused,
    Spoilt,
    Surprise,
    double_perceptron,
    half_frozen,
    normed,
    perceptron,
)
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR
from torchmetrics.classification import MulticlassAccuracy

from sparkdl.optim import LAMB, LARS, LBFGS, ClipByNorm, ClipByValue, ParamGroup
from sparkdl.train import EMA, SWA, EveryIterations, Hook, LocalSteps, PerIteration, TopK, Unfreeze

ITERATIONS = 20
BATCH = 32  # five iterations an epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training.

    Attributes:
        name: plan, partitions and what is special, joined by ``/``.
        plan: how gradients become weights; see ``characterise.NAMES``.
        layout: key of :data:`LAYOUTS`.
        rows: key of :data:`MAKES`.
        module: makes the module.
        options: those of the Trainer, besides the hooks.
        hooks: makes the hooks.
        resume_at: iteration after which another Trainer goes on from a checkpoint.
        validation: whether there is a validation set.
        fails: whether the run is meant to end with an error.
    """

    name: str
    plan: str
    layout: str
    rows: str = "classes"
    module: Callable[[], nn.Module]
    options: Mapping[str, Any]
    hooks: Callable[[], list[Hook]] = list
    resume_at: int | None = None
    validation: bool = False
    fails: bool = False


# -- options ---------------------------------------------------------------------------------------

SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=1e-2)
SPARSE_ADAM = partial(torch.optim.SparseAdam, lr=1e-2)
ADAGRAD = partial(torch.optim.Adagrad, lr=5e-2)
DILOCO = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)

CENTRAL = ("driver", "sharded", "replicated")
ALL = (*CENTRAL, "replicated-rows")


@dataclass(slots=True)
class _Matrix:
    """Collects cases."""

    cases: list[Case] = field(default_factory=list)

    def add(
        self,
        plans: Sequence[str],
        layouts: str,
        what: str,
        module: Callable[[], nn.Module] = perceptron,
        rows: str = "classes",
        group: int | None = None,
        hooks: Callable[[], list[Hook]] = list,
        resume_at: int | None = None,
        validation: bool = False,
        fails: bool = False,
        **options: Any,
    ) -> None:
        """Add a case for each plan and layout.

        Args:
            plans: names of plans.
            layouts: keys of :data:`LAYOUTS`, separated by blanks.
            what: last part of the name.
            module: makes the module.
            rows: key of :data:`MAKES`.
            group: iterations of a job, for plans that have groups.
            hooks: makes the hooks.
            resume_at: see :class:`Case`.
            validation: see :class:`Case`.
            fails: see :class:`Case`.
            options: those of the Trainer.
        """
        for plan in plans:
            grouped = {"iterations_per_job": group} if group is not None and plan != "driver" else {}
            for layout in layouts.split():
                case = Case(
                    name=f"{plan}/{layout}/{what}",
                    plan=plan,
                    layout=layout,
                    rows=rows,
                    module=module,
                    options={"loss": nn.CrossEntropyLoss(), "optimizer": ADAM} | options | grouped,
                    hooks=hooks,
                    resume_at=resume_at,
                    validation=validation,
                    fails=fails,
                )
                self.cases.append(case)


TABLES: dict[str, Any] = {
    "module": Factors,
    "rows": "pairs",
    "loss": nn.MSELoss(),
    "optimizer": {"user*": SPARSE_ADAM, "item*": SPARSE_ADAM, "*": ADAM},
}
WITH_ADAGRAD = {"user*": ADAGRAD, "item*": ADAGRAD, "*": MOMENTUM}
CLIPPED_LAMB: dict[str, Any] = {"optimizer": partial(LAMB, lr=1e-2), "clip": ClipByNorm(0.5)}


def matrix() -> list[Case]:
    """Return all cases, in the order in which they run."""
    found = _Matrix()
    for part in (_optimizers, _tables, _codecs, _local_steps, _averages, _modules, _hooks, _others):
        part(found)
    return found.cases


def _optimizers(to: _Matrix) -> None:
    to.add(CENTRAL, "p1 p2 p7", "momentum", optimizer=MOMENTUM)
    to.add(CENTRAL, " ".join(LAYOUTS), "adam")
    to.add(CENTRAL, "p2 p7", "lamb-clip", **CLIPPED_LAMB)
    to.add(CENTRAL, "p2", "lars", optimizer=partial(LARS, lr=1.0, weight_decay=1e-4))
    lbfgs = partial(LBFGS, lr=0.5, history_size=4)
    to.add(CENTRAL, "p3-empty", "lbfgs", optimizer=lbfgs, batch_size=ROWS)
    to.add(["driver"], "p3", "slices-1", num_shards=1)
    to.add(["driver"], "p3", "slices-5", num_shards=5)
    to.add(["driver"], "p3", "slices-5-lamb-clip", num_shards=5, **CLIPPED_LAMB)
    to.add(["auto"], "p2", "adam")


def _tables(to: _Matrix) -> None:
    rows = ["replicated-rows"]
    to.add(CENTRAL, "p2 p3-empty", "sparse-adam", **TABLES)
    to.add(rows, " ".join(LAYOUTS), "sparse-adam", **TABLES)
    to.add(ALL, "p3", "sparse-adagrad", **TABLES | {"optimizer": WITH_ADAGRAD})
    to.add(["driver", *rows], "p2", "sparse-clip", clip=ClipByNorm(0.05), **TABLES)
    to.add(rows, "p2", "sparse-sgd", **TABLES | {"optimizer": SGD})
    for codec in ("bf16", "int8", TopK(0.25)):
        to.add(rows, "p3", f"sparse-{_called(codec)}", gradient_codec=codec, **TABLES)
    to.add(["driver"], "p2", "sparse-slices-1", num_shards=1, **TABLES)


def _codecs(to: _Matrix) -> None:
    for codec in ("bf16", "int8", TopK(0.25)):
        to.add(CENTRAL, "p3", f"adam-{_called(codec)}", gradient_codec=codec)
    to.add(["sharded"], "p2", "adam-fp16", gradient_codec="fp16")
    to.add(["sharded"], "p2", "momentum-weights-bf16", optimizer=MOMENTUM, weights_codec="bf16")
    to.add(["sharded"], "p3", "adam-topk-weights-fp16", gradient_codec=TopK(0.25), weights_codec="fp16")


def _called(codec: Any) -> str:
    return codec if isinstance(codec, str) else "topk"


def _local_steps(to: _Matrix) -> None:
    to.add(CENTRAL, "p3", "local-3-momentum", optimizer=MOMENTUM, local_steps=3)
    diloco = LocalSteps(3, outer=DILOCO)
    adamw = partial(torch.optim.AdamW, lr=1e-2)
    to.add(CENTRAL, "p2", "local-3-diloco", optimizer=adamw, local_steps=diloco)
    to.add(CENTRAL, "p2", "local-3-topk", optimizer=MOMENTUM, local_steps=3, gradient_codec=TopK(0.25))
    to.add(CENTRAL, "p3-empty", "local-growing", optimizer=MOMENTUM, local_steps=LocalSteps({0: 1, 2: 4}))
    tables = TABLES | {"optimizer": WITH_ADAGRAD}
    to.add(["replicated"], "p2", "local-3-sparse-adagrad", local_steps=3, **tables)


def _averages(to: _Matrix) -> None:
    to.add(CENTRAL, "p3", "ema", averaging=EMA(0.8))
    to.add(CENTRAL, "p2", "ema-buffers", module=normed, averaging=EMA(0.8, warmup=True))
    swa = SWA(start_epoch=1, every=EveryIterations(2))
    to.add(["driver", "replicated"], "p2", "swa", optimizer=MOMENTUM, averaging=swa)


def _modules(to: _Matrix) -> None:
    to.add(CENTRAL, "p3-empty", "batchnorm-dropout", module=normed)
    loss = nn.CrossEntropyLoss(reduction="none")
    to.add(CENTRAL, "p3", "weights-micro-batches", rows="weighted", loss=loss, micro_batch_size=4)
    to.add(CENTRAL, "p3", "adasum", optimizer=MOMENTUM, combine="adasum")
    to.add(["sharded", "replicated"], "p2", "float64", rows="doubles", module=double_perceptron)
    to.add(CENTRAL, "p3", "unused", module=SometimesUnused, optimizer=MOMENTUM, clip=ClipByValue(0.05))
    to.add(["replicated"], "p2", "noise-unshuffled", rows="noisy", shuffle=False)
    groups = [ParamGroup("*.bias", lr=3e-2, l2=1e-3), ParamGroup("2.weight", weight_decay=0.1)]
    schedule = PerIteration(partial(ExponentialLR, gamma=0.9))
    to.add(CENTRAL, "p3", "groups-schedule", groups=groups, schedule=schedule)
    tables = TABLES | {"schedule": partial(StepLR, step_size=1)}
    to.add(["replicated-rows"], "p2", "sparse-schedule", **tables)
    to.add(CENTRAL, "p2", "fails", module=Spoilt, fails=True, group=6)


def _hooks(to: _Matrix) -> None:
    to.add(CENTRAL, "p2", "surprised", group=6, hooks=lambda: [Surprise()])
    to.add(CENTRAL, "p3", "announced", module=normed, hooks=lambda: [Announced()])
    to.add(CENTRAL, "p2", "freeze-midway", group=6, hooks=lambda: [FreezeMidway("0.*")])
    to.add(CENTRAL, "p3", "unfreeze", module=half_frozen, hooks=lambda: [Unfreeze("0.*", at_epoch=2)])
    rows = ["replicated-rows"]
    to.add(rows, "p2", "sparse-surprised", group=6, hooks=lambda: [Surprise()], **TABLES)
    to.add(rows, "p2", "sparse-freeze-midway", group=6, hooks=lambda: [FreezeMidway("user*")], **TABLES)


def _others(to: _Matrix) -> None:
    for count in (1, 4, 7):
        to.add(["sharded", "replicated"], "p3", f"groups-of-{count}", iterations_per_job=count)
        rows = ["replicated-rows"]
        to.add(rows, "p3", f"sparse-groups-of-{count}", iterations_per_job=count, **TABLES)
    to.add(
        CENTRAL,
        "p2",
        "validation-plateau",
        optimizer=MOMENTUM,
        validation=True,
        metrics=MulticlassAccuracy(CLASSES),
        validate_when=EveryIterations(3),
        schedule=partial(ReduceLROnPlateau, patience=0, factor=0.5),
    )
    to.add(CENTRAL, "p2", "resume-ema", module=normed, averaging=EMA(0.8), resume_at=12)
    to.add(CENTRAL, "p3", "resume-local-topk", local_steps=3, gradient_codec=TopK(0.25), resume_at=11)
    to.add(["sharded", "replicated-rows"], "p2", "resume-sparse", resume_at=12, **TABLES)

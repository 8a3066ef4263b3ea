"""Outputs that are logits: in all batches of an evaluation, or in none.

Where the run's loss takes logits, the module's outputs are such. Otherwise metrics of torchmetrics that need
probabilities take the outputs of a batch for logits if one of them lies outside of 0 to 1, and for
probabilities if none does. Each batch decides for itself, and all logits of a few rows may lie there. NaN
lies outside, too: an output of NaN is a probability of 0 here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from sparkdl.metrics.members import Member, members
from sparkdl.metrics.spec import AnyMetric, MetricSpec, leaves

_HOME = "torchmetrics.classification."
_OF_PROBABILITIES = {"MulticlassPrecisionRecallCurve", "MulticlassCalibrationError", "MulticlassHingeLoss"}
"""Classes, with those that follow from them, that need probabilities of several classes, not their order."""


class Logits:
    """Tells the outputs of a task's batches apart, and makes probabilities of logits where that is known.

    The metrics of a collection are told apart each by itself: some need probabilities, others do not.
    ``known`` are names of metrics whose outputs are logits, and with ``given`` those of the module are, which
    no function has prepared; ``seen`` has, by name, how many batches were from 0 to 1, and how many not.
    """

    def __init__(self, known: Collection[str] = (), given: bool = False) -> None:
        self._known, self._given = frozenset(known), given
        self._members: dict[str, list[tuple[str, Member, str | None]]] = {}
        self.seen: dict[str, list[int]] = {}

    def update(self, name: str, spec: MetricSpec, output: Any, label: Any, inputs: Any) -> None:
        """Add a batch to a metric; see :meth:`MetricSpec.update`."""
        positional, named = spec.arguments(output, label, inputs)
        if name not in self._members:
            self._members[name] = [
                (f"{name}/{member.name}" if member.name else name, member, _activation(member.metric))
                for member in members(spec.metric)
            ]
        for full, member, activation in self._members[name]:
            logits = full in self._known or (self._given and spec.prepare is None)
            self._update(full, member, activation, logits, positional, named)

    def _update(
        self,
        name: str,
        member: Member,
        activation: str | None,
        logits: bool,
        positional: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        preds = positional[0] if positional else named.get("preds")
        if isinstance(preds, Tensor) and preds.is_floating_point() and _fits(activation, preds):
            target = positional[1] if len(positional) > 1 else named.get("target")
            if not logits:
                preds = _counted(member.metric, preds, target)
                logits = bool(((preds < 0) | (preds > 1)).any())
                self.seen.setdefault(name, [0, 0])[logits] += 1
            if logits:
                preds = preds.sigmoid() if activation == "sigmoid" else preds.softmax(1)
            preds = preds.nan_to_num(0.0)
            positional, named = (
                ((preds, *positional[1:]), named) if positional else ((), {**named, "preds": preds})
            )
        member.update(*positional, **named)


def mixed(seen: Mapping[str, list[int]]) -> list[str]:
    """Return the metrics that took some batches for logits and others for probabilities."""
    return [name for name, (inside, outside) in seen.items() if inside and outside]


def total(parts: Collection[Mapping[str, list[int]]]) -> dict[str, list[int]]:
    """Return what the tasks of an evaluation have seen together."""
    found: dict[str, list[int]] = {}
    for part in parts:
        for name, counts in part.items():
            found[name] = [a + b for a, b in zip(found.get(name, [0, 0]), counts, strict=True)]
    return found


def _activation(metric: AnyMetric) -> str | None:
    """Return what all metrics within one make probabilities by; ``None`` if some make none."""
    kinds = {_kind(type(leaf)) for _, leaf in leaves(metric)}
    if kinds == {"sigmoid"}:
        return "sigmoid"
    return "softmax" if "softmax" in kinds and kinds <= {"softmax", "order"} else None


def _fits(activation: str | None, preds: Tensor) -> bool:
    return activation == "sigmoid" or (activation == "softmax" and preds.dim() > 1)


def _kind(cls: type) -> str | None:
    parents = [parent.__name__ for parent in cls.__mro__ if parent.__module__.startswith(_HOME)]
    if not parents:
        return None
    if parents[0].startswith(("Binary", "Multilabel")):
        return "sigmoid"
    if not parents[0].startswith("Multiclass"):
        return None
    return "softmax" if _OF_PROBABILITIES & set(parents) else "order"  # which softmax keeps


def _counted(metric: AnyMetric, preds: Tensor, target: Any) -> Tensor:
    """Return outputs, with 0 in place of those whose label does not count."""
    ignored: set[Any] = {getattr(leaf, "ignore_index", None) for _, leaf in leaves(metric)} - {None}
    if len(ignored) != 1 or not isinstance(target, Tensor) or target.shape != preds.shape:
        return preds
    return torch.where(torch.ne(target, ignored.pop()), preds, 0.0)

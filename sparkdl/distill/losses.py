"""Losses that compare a student's output with those of teachers, and with the label where there is one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.losses import cross_entropy, squared_error
from sparkdl.nn.objective import Loss
from sparkdl.nn.trace import describe

TeacherOutput = tuple[float, Tensor]
"""A teacher's weight, and its output; rows with NaN are those that it has not answered."""


class DistillLoss(nn.Module, ABC):
    """``alpha`` times a comparison with teachers, plus ``1 - alpha`` times the loss of the label.

    It is an ordinary loss of ``(soft, label)``, or of ``soft`` alone, for columns of teachers' outputs:
    ``Trainer(loss=KD()).fit(df, features="x", label=["teacher", "y"])``. It gives one value per row. A row
    that no teacher has answered has the loss of its label in full. A row whose label is a negative integer is
    unlabelled, and has the part of the teachers alone. Labels that are floats are amounts, below 0, too.

    Args:
        alpha: share of the teachers, from 0 to 1.
        label_loss: of output and label; one value per row.
    """

    def __init__(self, alpha: float, label_loss: Loss) -> None:
        super().__init__()
        if not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
            raise ConfigError(f"alpha={alpha!r}: expected a share from 0, labels alone, to 1, teachers alone")
        self.alpha = float(alpha)
        self.label_loss = label_loss

    @abstractmethod
    def soft(self, output: Tensor, teacher: Tensor) -> Tensor:
        """Return how far an output is from a teacher's, one value per row."""

    def forward(self, output: Any, target: Any) -> Tensor:
        """Return the loss of each row.

        Args:
            output: of the student.
            target: ``(soft, label)``, a dict with these names, or ``soft`` alone.
        """
        soft, label = _split(target)
        return self.combined(main_output(output), [(1.0, soft)], label)[0]

    def combined(
        self, output: Tensor, teachers: Sequence[TeacherOutput], label: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of each row, its part of the teachers, and the share of teachers that answered.

        The part of the teachers is the mean over those that have answered the row, by their weights.
        """
        rows = len(output)
        soft, answered = output.new_zeros(rows), output.new_zeros(rows)
        for weight, teacher in teachers:
            missing = teacher.isnan().reshape(rows, -1).any(1)
            if bool(missing.all()):
                continue  # its width need not be known
            there = weight * (~missing).to(output.dtype)
            # A missing row takes no part, but NaN times 0 is NaN.
            filled = teacher.masked_fill(missing.reshape(rows, *[1] * (teacher.dim() - 1)), 0.0)
            soft = soft + there * self.soft(output, filled)
            answered = answered + there
        has = answered > 0
        soft = torch.where(has, soft / answered.clamp_min(torch.finfo(output.dtype).tiny), 0.0)
        loss = self.alpha * soft
        if label is not None and self.alpha < 1:
            loss = loss + torch.where(has, 1 - self.alpha, 1.0) * self.labelled(output, label)
        elif label is not None and not bool(has.all()):
            loss = loss + (~has) * self.labelled(output, label)
        return loss, soft, answered / max(sum(weight for weight, _ in teachers), 1e-12)

    def known(self, label: Tensor) -> Tensor:
        """Return which share of a row's labels there is, one value per row: 0 for a negative integer."""
        if label.is_floating_point() or label.dtype == torch.bool:
            return torch.ones(len(label), device=label.device)
        return (label >= 0).reshape(len(label), -1).float().mean(1)

    def labelled(self, output: Tensor, label: Tensor) -> Tensor:
        """Return the loss of the label, one value per row; 0 for rows whose label is a negative integer.

        Raises:
            ModelError: if the loss gives no value per row.
        """
        unlabelled = None
        if not label.is_floating_point() and label.dtype != torch.bool:
            unlabelled, label = label < 0, label.clamp_min(0)
        found = self.label_loss(output, label)
        if not isinstance(found, Tensor) or not found.dim() or len(found) != len(output):
            raise ModelError(
                f"label_loss returned {describe(found)}; expected one loss per row, shape ({len(output)},): "
                "build it with reduction='none'",
                code="model-output",
            )
        found = found.reshape(len(found), -1)
        if unlabelled is not None:
            found = found.masked_fill(unlabelled.reshape(len(found), -1), 0.0)
        return found.mean(1)


class KD(DistillLoss):
    r"""Distillation of Hinton, Vinyals and Dean (2015), of logits.

    A row's loss is ``alpha * T² * KL(softmax(teacher / T) || softmax(output / T))``, the classes in the last
    dimension, plus ``(1 - alpha) * label_loss(output, label)``. Labels may be whole numbers as floats, of
    which negative ones are of unlabelled rows.

    Args:
        temperature: T, which softens both distributions.
        alpha: share of the teachers, from 0 to 1.
        label_loss: of output and label; one value per row.

    Raises:
        ConfigError: if the temperature is not positive, or ``alpha`` is no share.
    """

    def __init__(
        self, temperature: float = 4.0, alpha: float = 0.9, label_loss: Loss = cross_entropy
    ) -> None:
        super().__init__(alpha, label_loss)
        if not isinstance(temperature, int | float) or not 0 < temperature < float("inf"):
            raise ConfigError(f"temperature={temperature!r}: expected a positive number")
        self.temperature = float(temperature)

    def soft(self, output: Tensor, teacher: Tensor) -> Tensor:
        """Return T² times the divergence of each row."""
        _check_shapes(output, teacher)
        if output.dim() < 2 or output.shape[-1] < 2:
            raise ModelError(
                f"KD compares the logits of classes, and the output is {describe(output)}: expected shape "
                "(rows, classes), of two classes at least; LogitMatching compares other outputs",
                code="model-output",
            )
        t = self.temperature
        log_q = nnf.log_softmax(output / t, dim=-1)
        p = nnf.softmax(teacher.to(output.dtype) / t, dim=-1)
        divergence = nnf.kl_div(log_q, p, reduction="none").sum(-1)
        return divergence.reshape(len(output), -1).mean(1) * (t * t)

    def known(self, label: Tensor) -> Tensor:
        """Return which rows have a label; Spark ML has numbers of classes as doubles."""
        return super().known(label.long() if label.is_floating_point() and label.dim() == 1 else label)

    def labelled(self, output: Tensor, label: Tensor) -> Tensor:
        """Return the loss of the label, the number of a class; Spark ML has such numbers as doubles."""
        if label.is_floating_point() and label.dim() == 1:
            found, label = label, label.long()
            if bool((wrong := label != found).any()):
                raise ModelError(
                    f"KD got the label {float(found[wrong][0]):g}; expected the number of a class, or a "
                    "negative one for a row without a label; for amounts use LogitMatching",
                    code="model-output",
                )
        return super().labelled(output, label)


class LogitMatching(DistillLoss):
    """The squared difference of outputs (Ba and Caruana 2014): for regression, and for logits as they are.

    A row's loss is ``alpha * mean((output - teacher)²) + (1 - alpha) * label_loss(output, label)``. Amounts
    below 0 are labels if they are floats; a negative integer is that of an unlabelled row.

    Args:
        alpha: share of the teachers, from 0 to 1.
        label_loss: of output and label; one value per row.

    Raises:
        ConfigError: if ``alpha`` is no share.
    """

    def __init__(self, alpha: float = 0.9, label_loss: Loss = squared_error) -> None:
        super().__init__(alpha, label_loss)

    def soft(self, output: Tensor, teacher: Tensor) -> Tensor:
        """Return the mean squared difference of each row."""
        _check_shapes(output, teacher)
        difference = output - teacher.to(output.dtype)
        return difference.square().reshape(len(output), -1).mean(1)


def main_output(output: Any) -> Tensor:
    """Return the tensor that teachers and students compare: an output, its logits, or its first tensor."""
    found = output
    if isinstance(found, Mapping):
        found = found.get("logits", next(iter(found.values()), None))
    elif isinstance(found, tuple | list):
        found = next(iter(found), None)
    if isinstance(found, Tensor):
        return found
    raise ModelError(
        f"distillation compares tensors, and the module returned {describe(output)}: expected a tensor, a "
        "tuple that begins with one, or a dict with 'logits'",
        code="model-output",
    )


def _split(target: Any) -> tuple[Tensor, Tensor | None]:
    if isinstance(target, Mapping) and "soft" in target:
        return target["soft"], target.get("label")
    if isinstance(target, Tensor):
        return target, None
    if isinstance(target, tuple | list) and len(target) == 2:
        soft, label = target
        return soft, label
    raise ModelError(
        f"a distillation loss got the label {describe(target)}: expected the teacher's output, or (soft, "
        "label), as of label=['soft', 'label']",
        code="model-output",
    )


def _check_shapes(output: Tensor, teacher: Tensor) -> None:
    if output.shape != teacher.shape:
        raise ModelError(
            f"the teacher's output is {describe(teacher)} and the student's {describe(output)}: both need "
            "one shape, the same classes in the same order",
            code="model-output",
        )

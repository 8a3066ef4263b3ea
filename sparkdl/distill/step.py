"""The student's training step: its output, the teachers' answers, hidden layers, and the loss of all."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from sparkdl.data.collate import MASK
from sparkdl.distill.hidden import FeatureMatching, captured, projectors_of
from sparkdl.distill.losses import DistillLoss, TeacherOutput, main_output
from sparkdl.distill.soft_labels import LogitEncoding
from sparkdl.distill.teachers import Answering, ModuleAnswers
from sparkdl.nn.batch import Batch, call
from sparkdl.nn.divisor import divided

LABEL = "label"
"""Name of the label among the entries of a Dataset's label."""


class DistillStep(nn.Module):
    """A step for a :class:`sparkdl.Trainer`; frozen teachers are its parts, and travel with it.

    ``teachers`` are those whose answers are computed in each step, or are columns; ``kept`` has weight and
    encoding of answers that are columns of the partition store.
    """

    def __init__(
        self,
        loss: DistillLoss,
        hidden: Sequence[FeatureMatching] = (),
        teachers: Sequence[Answering] = (),
        kept: Sequence[tuple[float, LogitEncoding]] = (),
    ) -> None:
        super().__init__()
        self.loss, self.hidden = loss, nn.ModuleList(hidden)
        self.teachers, self.kept = nn.ModuleList(teachers), list(kept)

    def forward(self, student: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return loss, output and further scalars of a batch.

        In evaluation, where rows have no soft labels, the loss is that of the label, the mean over the rows
        that have one; without a label, that of teachers.
        """
        label = label_of(batch.label)
        if not student.training and label is not None:
            output = main_output(call(student, batch.inputs))
            rows = self.loss.labelled(output, label)
            return {"loss": rows * self._of_labelled(label, batch), "output": output}
        losses: Any = self.hidden
        teachers: Any = self.teachers
        with captured(student, [name for loss in losses for name in loss.layers]) as ours:
            output = main_output(call(student, batch.inputs))
        started = time.perf_counter()
        answers, theirs = self._answers(batch)
        seconds = time.perf_counter() - started
        rows, soft, answered = self.loss.combined(output, answers, label)
        found: dict[str, Any] = {"soft": _mean(soft, batch), "teacher_seconds": seconds}
        if label is not None:
            hard = self.loss.labelled(output.detach(), label)
            found["hard"] = _mean(hard, batch) * self._of_labelled(label, batch)
        for number, loss in enumerate(losses):
            states = [ours[name] for name in loss.layers]
            wanted = [theirs[loss.teacher][name] for name in loss.layers.values()]
            mask = _mask_of(batch.inputs)
            if mask is None:
                mask = _mask_of(teachers[loss.teacher].inputs(batch))
            hidden = loss(states, wanted, projectors_of(student, number, len(states)), mask)
            rows = rows + hidden
            found[f"hidden{number}"] = _mean(hidden, batch)
        return {"loss": rows, "output": output, "answered": _mean(answered, batch), **found}

    def _of_labelled(self, label: Tensor, batch: Batch) -> Tensor:
        """Return by what to multiply a mean in which rows without a label have 0, to leave them out."""
        known = self.loss.known(label)
        if batch.weight is None:
            return divided(known.new_tensor(float(batch.rows)), known.sum())
        weight = batch.weight.double()
        return divided(weight.sum(), (weight * known).sum())

    def _answers(self, batch: Batch) -> tuple[list[TeacherOutput], dict[int, dict[str, Tensor]]]:
        """Return the teachers' answers, and the hidden layers of those that are modules."""
        answers: list[TeacherOutput] = []
        theirs: dict[int, dict[str, Tensor]] = {}
        losses: Any = self.hidden
        with ExitStack() as stack:
            teachers: Any = self.teachers
            for number, teacher in enumerate(teachers):
                names = [n for loss in losses if loss.teacher == number for n in loss.layers.values()]
                if names and isinstance(teacher, ModuleAnswers):
                    theirs[number] = stack.enter_context(captured(teacher.module, names))
                answers.append((teacher.weight, teacher(batch)))
        answers += [(weight, encoding.decode(batch.label)) for weight, encoding in self.kept]
        return answers, theirs


def _mean(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean over rows by their weights, as that of the loss."""
    if batch.weight is None:
        return values.mean()
    weight = batch.weight.double()
    return (values * (weight / weight.sum()).to(values.dtype)).sum()


def _mask_of(inputs: Any) -> Tensor | None:
    """Return the input that says what is padding."""
    return inputs.get(MASK) if isinstance(inputs, Mapping) else None


def label_of(label: Any) -> Tensor | None:
    """Return the label itself among the entries of a batch's label."""
    return label.get(LABEL) if isinstance(label, Mapping) else label

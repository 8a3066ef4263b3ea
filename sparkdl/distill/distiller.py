"""The Distiller: trains a student on what teachers answer, by a Trainer."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sparkdl.data.columns import ColumnLike, Columns, TablePlan
from sparkdl.data.dataset import Dataset
from sparkdl.data.given import Chosen, ends_with_fit
from sparkdl.distill.hidden import FeatureMatching, captured, check_layers, project, without_projectors
from sparkdl.distill.losses import KD, DistillLoss, main_output
from sparkdl.distill.rows import TrainingRows, given, name_of, teachers_of
from sparkdl.distill.service import ServiceAnswers
from sparkdl.distill.soft_labels import LogitEncoding, labelled
from sparkdl.distill.step import DistillStep
from sparkdl.distill.teachers import Answering, ColumnAnswers, ModuleAnswers, SoftLabels, Teacher
from sparkdl.exceptions import ConfigError, ModelError, SparkdlError, is_integer
from sparkdl.nn.batch import call
from sparkdl.nn.trace import explain_failure
from sparkdl.optim.spec import Optimizers
from sparkdl.train.hooks.checkpoint import Resume
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.passes.dry_run import some_rows
from sparkdl.train.passes.sweep import BatchReader
from sparkdl.train.result import FitResult
from sparkdl.train.trainer import Trainer
from sparkdl.wire.frame import Array

Keep = int | Literal["all"] | None
"""Which logits of teachers are kept as columns: all, or so many; ``None``: they answer in each step."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What teachers cost.

    Attributes:
        teachers: seconds in which tasks had teachers compute or waited for a service: of soft labels those of
            the slowest task, otherwise the sum over iterations of the tasks' mean.
        total: seconds of the fit, soft labels included.
        rows: rows that teachers have answered: once each with soft labels, else once in each epoch.
    """

    teachers: float
    total: float
    rows: int

    @property
    def share(self) -> float:
        """Share of the teachers in the time of the fit."""
        return self.teachers / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class _Tried:
    """What the first rows tell."""

    student: nn.Module  # the student, a copy with projectors where layers differ in width
    shape: tuple[int, ...]  # of its output for a row
    answers: list[Tensor]  # of teachers to the first rows


class Distiller:
    """Trains a student to answer as teachers do: :class:`sparkdl.Trainer`, with teachers in its loss.

    Args:
        student: module to train; it is not changed.
        teacher: a module, the path of a saved model, :class:`Teacher`, :class:`SoftLabels`, :class:`Service`,
            or a list of such. Modules are copied, frozen, and in evaluation mode.
        loss: compares outputs; :class:`KD` by default.
        hidden: losses of hidden layers, such as :class:`PatientKD`, which are added to it. They need
            ``keep=None``.
        keep: ``"all"`` to have teachers answer once for each row, in the tasks that write the partition
            store, and keep all logits there as columns of bfloat16, outputs for other losses than ``KD`` as
            float32. Rows that stay in their files are copied for that, if ``cache_bytes`` of the Dataset
            allows it. A number k to keep the k largest of them; ``None`` to have teachers answer in each
            step.
        optimizer: as of a Trainer.
        config: options as one object; keyword options replace its fields.
        **options: as of a Trainer, such as ``batch_size``, ``end_when``, ``metrics``, ``hooks``.

    Attributes:
        cost: what teachers have cost in the last ``fit``; ``None`` before.
        result: the result of the last ``fit``, also of one that failed; ``None`` before.

    Raises:
        ConfigError: if an option cannot work.
        ModelError: if the student's parameters cannot be trained.
        OptimizerError: if the optimizer cannot be trained with.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: Any,
        *,
        loss: DistillLoss | None = None,
        hidden: FeatureMatching | Sequence[FeatureMatching] = (),
        keep: Keep = "all",
        optimizer: Optimizers | None = None,
        config: TrainConfig | None = None,
        **options: Any,
    ) -> None:
        self.student = student
        self._teachers = teachers_of(teacher)
        self._loss = KD() if loss is None else loss
        self._hidden = [hidden] if isinstance(hidden, FeatureMatching) else list(hidden)
        self._keep, self._optimizer = keep, optimizer
        if not isinstance(self._loss, DistillLoss):
            raise ConfigError(f"loss={loss!r:.100}: expected a loss of sparkdl.distill, such as KD()")
        for one in self._hidden:
            if not isinstance(one, FeatureMatching):
                raise ConfigError(f"hidden: {one!r:.100}; expected FeatureMatching or PatientKD")
        self._check_keep()
        # One that cannot be made with these options says so now.
        trainer = Trainer(
            student, step=DistillStep(self._loss), optimizer=optimizer, config=config, **options
        )
        self.config = trainer.config
        if self._hidden and self.config.compile:
            raise ConfigError("hidden: the layers of a compiled module cannot be seen: leave compile= out")
        self.cost: Cost | None = None
        self.result: FitResult | None = None

    def fit(
        self,
        data: Any,
        validation: Any = None,
        *,
        features: Columns | None = None,
        label: ColumnLike | None = None,
        weight: ColumnLike | None = None,
        resume: Resume = False,
        rows: Literal["same", "new"] = "same",
    ) -> FitResult:
        """Train the student; arguments, result and errors as of :meth:`sparkdl.Trainer.fit`.

        Args:
            data: the rows. The label of a Dataset is the label itself, or a dict with entries ``"label"`` and
                those that teachers read. Rows may lack a label: all, or those whose label is a negative
                integer.
            validation: as of a Trainer. The loss there is that of the label.
            features: columns of a DataFrame that the student reads.
            label: its label; ``None`` to learn from teachers alone.
            weight: sample weights.
            resume: as of a Trainer; teachers are in no checkpoint.
            rows: as of a Trainer.

        Raises:
            ConfigError: if teachers, loss and student do not fit together, or kept logits have no room.
            ModelError: if a teacher or the student fails on the first rows, or no server answers.
            DataError: if a column is missing.
        """
        started = time.perf_counter()
        chosen = Chosen(features, label, weight)
        with ExitStack() as stack:
            rows_of = given(data, validation, chosen, self.student, self._teachers, self.config.seed)
            found = stack.enter_context(rows_of)
            tried = self._tried(found)
            dataset, step = found.data, DistillStep(self._loss, self._hidden, found.teachers)
            if self._keep is not None and any(_is_asked(teacher) for teacher in found.teachers):
                dataset, step = self._kept(found, tried)
                ends_with_fit(stack, dataset)
            config = replace(self.config, name=self.config.name or type(self.student).__name__)
            trainer = Trainer(tried.student, step=step, optimizer=self._optimizer, config=config)
            try:
                result = trainer.fit(dataset, found.validation, resume=resume, rows=rows)
            except BaseException as error:
                carried: Any = getattr(error, "result", None)
                if isinstance(carried, FitResult):
                    error.result = self.result = _without_projectors(carried)  # type: ignore[attr-defined]
                raise
            self.result = _without_projectors(result)
            self.cost = _cost(dataset, result, time.perf_counter() - started, found.teachers, self._keep)
        return self.result

    def __repr__(self) -> str:
        teachers = ", ".join(map(name_of, self._teachers))
        return f"Distiller({type(self.student).__name__} of {teachers}, {type(self._loss).__name__})"

    # -- checks ---------------------------------------------------------------------------------

    def _check_keep(self) -> None:
        keep: Any = self._keep
        number = is_integer(keep, 1)
        if not (number or keep in (None, "all")):
            raise ConfigError(
                f"keep={keep!r}: expected 'all', how many of the largest logits of each row, or None"
            )
        if number and all(isinstance(teacher, SoftLabels) for teacher in self._teachers):
            raise ConfigError(
                f"keep={keep}: all teachers are SoftLabels, which are columns already: leave keep out"
            )
        if number and not isinstance(self._loss, KD):
            raise ConfigError(f"keep={keep}: {type(self._loss).__name__} needs all outputs: keep='all'")
        for loss in self._hidden:
            if keep is not None:
                raise ConfigError(
                    f"{type(loss).__name__} compares hidden layers, which are not kept: say keep=None"
                )
            teacher = self._teachers[loss.teacher] if 0 <= loss.teacher < len(self._teachers) else None
            if not isinstance(teacher, Teacher):
                raise ConfigError(
                    f"{type(loss).__name__}(teacher={loss.teacher}): expected the number of a teacher that "
                    f"is a module, from 0 to {len(self._teachers) - 1}"
                )

    def _tried(self, found: TrainingRows) -> _Tried:
        """Try student and teachers on the first rows, on the driver."""
        batch = BatchReader.of(found.data).batch(some_rows(found.data.peek()))
        names = [name for loss in self._hidden for name in loss.layers]
        student = copy.deepcopy(self.student).eval()
        output, ours = _outputs(
            student, batch.inputs, names, "the student", lambda: main_output(call(student, batch.inputs))
        )
        answers: list[Tensor] = []
        widths: dict[tuple[int, int], tuple[int, int]] = {}
        for number, teacher in enumerate(found.teachers):
            if isinstance(teacher, ServiceAnswers):
                teacher.check(teacher.inputs(batch))
            if teacher.reads is None:
                _check_order(teacher, found.data.plan)
            names = [n for loss in self._hidden if loss.teacher == number for n in loss.layers.values()]
            module = teacher.module if isinstance(teacher, ModuleAnswers) else nn.Identity()
            answer, theirs = _outputs(
                module, teacher.inputs(batch), names, teacher.name, partial(teacher, batch)
            )
            answers.append(answer)
            self._check_answer(teacher, answer, output)
            for index, loss in enumerate(self._hidden):
                for pair, (our, their) in enumerate(loss.layers.items() if loss.teacher == number else ()):
                    width = loss.selected(ours[our]).shape[-1], loss.selected(theirs[their]).shape[-1]
                    widths |= {(index, pair): width} if width[0] != width[1] else {}
        student = copy.deepcopy(self.student) if widths else self.student
        for (index, pair), width in widths.items():
            project(student, index, pair, width, self.config.seed)
        return _Tried(student, tuple(output.shape[1:]), answers)

    def _check_answer(self, teacher: Answering, answer: Tensor, output: Tensor) -> None:
        if answer.shape != output.shape and not bool(answer.isnan().all()):
            raise ConfigError(
                f"{teacher.name} gives {list(answer.shape[1:])} values per row, the student "
                f"{list(output.shape[1:])}: both need the same classes in the same order"
            )
        keep, classes = self._keep, output.shape[-1]
        if isinstance(keep, int) and _is_asked(teacher) and (keep > classes or output.dim() != 2):
            raise ConfigError(
                f"keep={keep}: the student gives {list(output.shape[1:])} values per row; expected at most "
                "as many as there are classes, or keep='all'"
            )

    # -- what it trains with --------------------------------------------------------------------

    def _kept(self, found: TrainingRows, tried: _Tried) -> tuple[Dataset, DistillStep]:
        """Return the rows with soft labels, and the step that reads them."""
        shape, temperature = tried.shape, getattr(self._loss, "temperature", 1.0)
        top_k = self._keep if isinstance(self._keep, int) and self._keep < shape[-1] else None
        exact = not isinstance(self._loss, KD)  # which compares shares, and others amounts
        asked = {
            number: (teacher, LogitEncoding(f"soft{number}", shape, top_k, temperature, exact))
            for number, teacher in enumerate(found.teachers)
            if _is_asked(teacher)
        }
        columns: dict[str, Array] = {}
        for number, (_, encoding) in asked.items():
            columns |= encoding.encode(tried.answers[number])
        data = labelled(found.data, list(asked.values()), found.unused, columns, self.config.seed)
        live = [teacher for number, teacher in enumerate(found.teachers) if number not in asked]
        kept = [(teacher.weight, encoding) for teacher, encoding in asked.values()]
        return data, DistillStep(self._loss, [], live, kept)


def _outputs(
    module: nn.Module, inputs: Any, names: list[str], whose: str, run: Callable[[], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return what a module gives for the first rows, and what its layers give."""
    check_layers(module, names, whose)
    with torch.no_grad(), captured(module, names) as found:
        try:
            return run(), found
        except SparkdlError:
            raise
        except Exception as error:
            explained = explain_failure(module, inputs, call, error, (whose, "look at its forward method"))
            raise ModelError(f"{whose}: {explained}") from error


def _check_order(teacher: Answering, plan: TablePlan) -> None:
    """Check that the student's inputs, given by position, are the columns of a saved teacher in its order."""
    source = {column.key: column.source for column in plan.columns}
    given = list(dict.fromkeys(source[key] for key in plan.features.keys))
    by_position, columns = plan.features.kind == "tuple", list(teacher.columns)
    if by_position and given != columns and sorted(given) == sorted(columns):
        raise ConfigError(
            f"{teacher.name} was fitted on the columns {columns}, in this order, and gets the "
            f"student's inputs {given} by position: say inputs={columns}, or list features= in its order"
        )


def _is_asked(teacher: Answering) -> bool:
    """Return whether a teacher computes its answers, which can be kept."""
    return not isinstance(teacher, ColumnAnswers)


def _without_projectors(result: FitResult) -> FitResult:
    without_projectors(result.module)
    if result.unaveraged is not None:
        without_projectors(result.unaveraged)
    return result


def _cost(data: Dataset, result: FitResult, total: float, teachers: Sequence[Answering], keep: Keep) -> Cost:
    partitions = data.store().partitions
    if not any(_is_asked(teacher) for teacher in teachers):
        return Cost(0.0, total, 0)
    if keep is not None:
        return Cost(
            max(token.seconds for token in partitions), total, sum(token.rows for token in partitions)
        )
    history = list(result.history)
    seconds = sum(row["extras"].get("teacher_seconds", 0.0) for row in history)
    return Cost(seconds, total, sum(row["samples"] for row in history))

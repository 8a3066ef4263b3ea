"""Teachers: modules, saved models and columns; what each reads of a batch, and what it answers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sparkdl.data.columns import ColumnLike, Columns, Structure, structure_of
from sparkdl.distill.losses import main_output
from sparkdl.exceptions import ConfigError
from sparkdl.nn.batch import Batch, call
from sparkdl.saved.reading import read_model
from sparkdl.saved.trust import Entry

Outputs = Literal["logits", "probabilities"]
"""What a teacher gives: probabilities of classes; or logits, and other values, compared as they are."""

_LEAST = 1e-12  # of a probability: its logarithm is finite


class Answering(nn.Module, ABC):
    """A teacher as tasks have it: a part of the loss, which is never trained and in no checkpoint.

    ``reads`` says which entries of the label are its inputs, and how they group, with ``entries`` by its
    keys; ``None`` for the student's inputs. ``columns`` are those that a saved model was fitted on, in the
    order of its inputs; empty if they are not known.
    """

    columns: tuple[str, ...] = ()

    def __init__(
        self, name: str, reads: Structure | None, entries: Mapping[str, str], weight: float, outputs: Outputs
    ) -> None:
        super().__init__()
        self.name, self.weight, self.outputs = name, weight, outputs
        self.reads, self.entries = reads, dict(entries)

    def forward(self, batch: Batch) -> Tensor:
        """Return its logits for the rows of a batch; NaN in rows that it has not answered."""
        found = self.answer(self.inputs(batch), batch.rows)
        if self.outputs == "probabilities":
            return found.clamp_min(_LEAST).log()  # NaN stays NaN
        return found

    def inputs(self, batch: Batch) -> Any:
        """Return what it reads of a batch."""
        if self.reads is None:
            return batch.inputs
        return self.reads.assemble({key: batch.label[name] for key, name in self.entries.items()})

    @abstractmethod
    def answer(self, inputs: Any, rows: int) -> Tensor:
        """Return its output as it is."""


class ModuleAnswers(Answering):
    """A frozen module, in evaluation mode; arguments as of :class:`Answering`, and the module."""

    def __init__(self, module: nn.Module, *rest: Any) -> None:
        super().__init__(*rest)
        # A copy of its own: a student that shares its tensors would train them.
        self.module = copy.deepcopy(module).eval().requires_grad_(False)

    def train(self, mode: bool = True) -> ModuleAnswers:
        """Stay in evaluation mode."""
        return self

    def answer(self, inputs: Any, rows: int) -> Tensor:
        """Return the module's output."""
        # Not inference_mode: a loss of hidden layers keeps the teacher's for its backward pass.
        with torch.no_grad():
            return main_output(call(self.module, inputs))


class ColumnAnswers(Answering):
    """Outputs that are a column; arguments as of :class:`Answering`."""

    def answer(self, inputs: Any, rows: int) -> Tensor:
        """Return the column."""
        found: Tensor = inputs
        return found


@dataclass(frozen=True, slots=True)
class Teacher:
    """A module, or a saved model, whose outputs a student learns.

    Args:
        model: a ``torch.nn.Module``, which is copied and frozen; or the path of what ``model.save(path)``
            wrote, which is read without a pickle.
        inputs: columns that it reads, one, a list or a dict as for a module; by default it gets the student's
            inputs. With a Dataset, names of entries of its label.
        weight: its weight among several teachers.
        outputs: ``"probabilities"`` if it gives these, and not logits.
        trust: packages, modules or classes that the saved model may name besides those of torch and sparkdl.

    Raises:
        ConfigError: if it is no module and no path, or an option cannot work.
    """

    model: nn.Module | str
    inputs: Columns | None = None
    weight: float = 1.0
    outputs: Outputs = "logits"
    trust: Entry | Iterable[Entry] = field(default=())

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module | str):
            raise ConfigError(
                f"teacher {self.model!r:.100}: expected a torch.nn.Module, the path of a saved model, "
                "SoftLabels(column) or Service(addresses)"
            )
        check_options(self.weight, self.outputs)

    def columns(self, number: int) -> tuple[Structure | None, dict[str, ColumnLike]]:
        """Return how its inputs group, and the column of each by key."""
        if self.inputs is None:
            return None, {}
        structure = structure_of(self.inputs, role(number))
        return structure, structure.disassemble(self.inputs)

    def answering(self, number: int, reads: Structure | None, entries: Mapping[str, str]) -> Answering:
        """Return it as tasks have it.

        Raises:
            ConfigError: if there is no complete model at the path, or it names code that is not trusted, or
                reads a table's columns.
        """
        module, columns = self.model, ()
        if isinstance(module, str):
            path = module
            content, metadata, _ = read_model(path, trust=self.trust)
            assert content.module is not None
            if content.table and content.table.get("encoding"):
                raise ConfigError(
                    f"teacher {number}: the model in {path!r} encodes a table's columns. Add its outputs to "
                    "the rows with model.transform(df), and give SoftLabels('rawPrediction')"
                )
            module = content.module
            columns = tuple((metadata.get("paramMap") or {}).get("featuresCols") or ())
        name = f"teacher {number} ({type(module).__name__})"
        found = ModuleAnswers(module, name, reads, entries, self.weight, self.outputs)
        found.columns = columns
        return found


@dataclass(frozen=True, slots=True)
class SoftLabels:
    """A column that holds a teacher's outputs, such as ``rawPrediction`` of a fitted model's ``transform``.

    Of a classifier with a single logit z, as Spark's own binary ones are, this is -z and z, whose softmax is
    the sigmoid of 2 z: take ``probability``.

    Args:
        column: the column; with a Dataset, an entry of its label. A row of NaN has no answer.
        weight: its weight among several teachers.
        outputs: ``"probabilities"`` if it holds these, and not logits.

    Raises:
        ConfigError: if an option cannot work.
    """

    column: ColumnLike
    weight: float = 1.0
    outputs: Outputs = "logits"

    def __post_init__(self) -> None:
        check_options(self.weight, self.outputs)

    def columns(self, number: int) -> tuple[Structure | None, dict[str, ColumnLike]]:
        """Return how its inputs group, and the column of each by key."""
        return structure_of(self.column, role(number)), {role(number): self.column}

    def answering(self, number: int, reads: Structure | None, entries: Mapping[str, str]) -> Answering:
        """Return it as tasks have it."""
        name = f"teacher {number} (column {entries[role(number)]!r})"
        return ColumnAnswers(name, reads, entries, self.weight, self.outputs)


def role(number: int) -> str:
    """Return what the columns of a teacher are called in the store."""
    return f"teacher{number}"


def check_options(weight: object, outputs: object) -> None:
    """Check options that all teachers have."""
    if not isinstance(weight, int | float) or not 0 < weight < float("inf"):
        raise ConfigError(f"weight={weight!r} of a teacher: expected a positive number")
    if outputs not in ("logits", "probabilities"):
        raise ConfigError(f"outputs={outputs!r} of a teacher: expected 'logits' or 'probabilities'")

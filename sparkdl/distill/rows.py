"""A Distiller's rows, with the columns that teachers read beside those of the student."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sparkdl.data.collate import padding_of
from sparkdl.data.columns import Column, Columns, Structure, as_column
from sparkdl.data.dataset import Dataset
from sparkdl.data.given import (
    Chosen,
    Validation,
    check_dataset,
    check_none_chosen,
    datasets_of,
    ends_with_fit,
    share_of,
)
from sparkdl.data.scan.source import ScanSource
from sparkdl.data.schema import is_frame
from sparkdl.distill.service import Service
from sparkdl.distill.step import LABEL
from sparkdl.distill.teachers import Answering, SoftLabels, Teacher
from sparkdl.exceptions import ConfigError, DataError

AnyTeacher = Teacher | SoftLabels | Service


def teachers_of(given: Any) -> list[AnyTeacher]:
    """Return teachers as they are described: one or several; modules and paths are those of a Teacher."""
    several = list(given) if isinstance(given, list | tuple) else [given]
    if not several:
        raise ConfigError(
            "teacher=[]: expected a module, the path of a saved model, SoftLabels(column) or "
            "Service(addresses)"
        )
    return [one if isinstance(one, Teacher | SoftLabels | Service) else Teacher(one) for one in several]


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Rows to train on, and how teachers find what they read."""

    data: Dataset  # the rows
    validation: Validation  # validation sets, whose label is the label alone
    teachers: list[Answering]  # as tasks have them
    unused: frozenset[str]  # entries of the label that only teachers with live answers read


@contextmanager
def given(
    data: Any, validation: Any, chosen: Chosen, student: nn.Module, teachers: Sequence[AnyTeacher], seed: int
) -> Iterator[TrainingRows]:
    """Make Datasets of DataFrames, with the columns of teachers as entries of the label.

    ``validation`` is one or several by name, or a share of the rows, which ``seed`` chooses. Raises
    ConfigError if columns are missing, or given for a Dataset, DataError if one cannot become a tensor.
    """
    described = [teacher.columns(number) for number, teacher in enumerate(teachers)]
    found = {key: column for _, columns in described for key, column in columns.items()}
    with ExitStack() as stack:
        everything, is_share = chosen, isinstance(validation, float | int)
        if is_frame(data):
            if found:
                everything = replace(chosen, label=_entries(chosen.label, found))
            names, is_share = {key: key for key in found}, is_share and bool(found)
        else:
            check_none_chosen(chosen)
            check_dataset(data)
            if is_share:
                held = share_of(validation, seed)
                if not isinstance(data.source, ScanSource):
                    raise ConfigError(
                        f"validation={validation!r}: soft labels lie beside all rows of a Dataset. Give a "
                        "DataFrame, rows that stay in their files, or a second Dataset to validate on"
                    )
                data, validation = (ends_with_fit(stack, data.part(one)) for one in held)
            names = _names_in(data.plan.label, found)
        made = datasets_of(data, validation, everything, seed, student, validated=chosen, for_one_fit=True)
        data, sets, _ = stack.enter_context(made)
        if is_share and isinstance(sets, Dataset):
            sets = ends_with_fit(stack, _with_label_alone(sets))
        yield TrainingRows(
            data,
            sets,
            [
                teacher.answering(number, reads, {key: names[key] for key in columns})
                for number, (teacher, (reads, columns)) in enumerate(zip(teachers, described, strict=True))
            ],
            frozenset(
                names[key]
                for teacher, (_, columns) in zip(teachers, described, strict=True)
                for key in columns
                if not isinstance(teacher, SoftLabels)
            )
            - {LABEL},
        )


def _entries(label: Columns | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the label of a DataFrame's rows with further entries."""
    if label is not None and not isinstance(label, str | Column):
        raise ConfigError(
            f"label={label!r:.100}: expected one column, or None; a loss with several labels cannot be "
            "distilled"
        )
    return {**({} if label is None else {LABEL: label}), **more}


def _names_in(label: Structure, wanted: Mapping[str, Any]) -> dict[str, str]:
    """Return the entry of a Dataset's label by the key under which a teacher reads it."""
    if label.kind == "tuple":
        raise ConfigError(
            "the Dataset's label is several columns: give them names, label={'label': ..., 'teacher': ...}"
        )
    names = {key: as_column(one).name for key, one in wanted.items()}
    for name in names.values():
        if name not in label.names:
            raise DataError(
                f"a teacher reads {name!r}, which is no entry of the Dataset's label: there are "
                f"{', '.join(label.names) or 'none by name'}. Make it with label={{'label': ..., "
                f"{name!r}: ...}}",
                code="data-column",
            )
    return names


def _with_label_alone(data: Dataset) -> Dataset:
    """Return a Dataset of the same rows, without the entries of their label that teachers read."""
    label = data.plan.label
    if label.kind != "dict":
        return data
    own = dict(zip(label.names, label.keys, strict=True)).get(LABEL)
    others = set(label.keys) - {own}
    columns = tuple(column for column in data.plan.columns if column.key not in others)
    alone = Structure("none") if own is None else Structure("single", (own,))
    plan = replace(data.plan, columns=columns, label=alone)
    collate = None if data.collate == padding_of(data.plan) else data.collate
    parts = data.num_partitions, data.transform, collate
    return Dataset(data.spark, plan, data.source, *parts, access=data.access)


def name_of(teacher: AnyTeacher) -> str:
    """Return what a teacher is, in a few words."""
    if isinstance(teacher, SoftLabels):
        return f"SoftLabels({teacher.column!r})"
    if isinstance(teacher, Service):
        return repr(teacher)
    model = teacher.model
    return type(model).__name__ if isinstance(model, nn.Module) else repr(model)

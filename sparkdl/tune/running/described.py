"""The description of a search in its journal: rows, and the Trainer of each trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sparkdl.data.dataset import Dataset
from sparkdl.saved.digest import label_of, stable_digest
from sparkdl.saved.identity import digest_of
from sparkdl.train.checkpoint.setting import checksums
from sparkdl.train.options.config import TrainConfig
from sparkdl.train.trainer import Trainer

Described = list[str | None]
"""Text and digest of a value; the digest is ``None`` if it has none that outlasts a process."""

_NOT_COMPARED = frozenset(
    [
        "end_when",
        "progress",
        "name",
        "timeline",
        "commit_every",
        "max_failures",
        "failure_window",
        "elastic",
        "transport",
        "iterations_per_job",
        "row_memory",
    ]
)
"""Options that change no result of a trial, or are not asked."""


def described(value: Any) -> Described:
    """Return text and digest of a value."""
    return [label_of(value), stable_digest(value)]


def describe_rows(data: Dataset) -> dict[str, Any]:
    """Return, JSON-compatible, which rows a Dataset has and what is made of them; builds its store."""
    tokens = data.store().partitions
    found: dict[str, Any] = {"rows": len(data), "partitions": [token.rows for token in tokens]}
    made = {"transform": data.transform, "collate": data.collate}
    return found | checksums(tokens) | {k: described(v) for k, v in made.items() if v is not None}


def describe_datasets(data: Dataset, sets: Mapping[str, Dataset], distributed: bool) -> dict[str, Any]:
    """Return the rows that train and validate; distributed trials depend on their partitions, too."""
    found: dict[str, Any] = {"training rows": describe_rows(data)}
    if distributed:
        found["partitions"] = found["training rows"]["partitions"]
    return found | {f"validation rows {name!r}": describe_rows(rows) for name, rows in sets.items()}


def describe_trainer(trainer: Trainer) -> dict[str, Described]:
    """Return, JSON-compatible, what a Trainer is made of; of its options those that are not default.

    Of the module: its class with all that it holds but tensors, and the tensors' checksum as ``weights``.
    """
    module, config, default = trainer.module, trainer.config, TrainConfig()
    found: dict[str, Described] = {
        "module": [type(module).__name__, stable_digest(_structure(module))],
        "weights": [type(module).__name__, digest_of(module)],
        "loss": described(trainer.objective),
        "optimizer": described(trainer._optimizer),
    }
    for option in fields(TrainConfig):
        value = getattr(config, option.name)
        if option.name in _NOT_COMPARED or _is(value, getattr(default, option.name)):
            continue
        found[option.name] = described(value)
    return found


def _structure(module: Any) -> list[Any]:
    """Return class, place and plain attributes of all parts of a module."""
    return [
        [name, type(part), {k: v for k, v in vars(part).items() if isinstance(v, _PLAIN)}, _shapes(part)]
        for name, part in module.named_modules()
    ]


_PLAIN = (bool, int, float, str, tuple, type(None))


def _shapes(part: Any) -> list[Any]:
    """Return names and shapes of the tensors of a part of a module."""
    own = [*part._parameters.items(), *part._buffers.items()]
    return [[name, None if value is None else tuple(value.shape)] for name, value in own]


def _is(value: Any, default: Any) -> bool:
    if value is default:
        return True
    digest: str | None = stable_digest(value)
    return digest is not None and digest == stable_digest(default)

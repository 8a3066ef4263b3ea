"""The names of a classifier's classes in the configuration of a model of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from sparkdl.hf.outputs import is_model, without_adapter

_UNNAMED = "LABEL_"


def class_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of a model's classes by number; none if it is no such model, or they have none."""
    config = _config(module)
    names = getattr(config, "id2label", None)
    if not isinstance(names, Mapping) or set(names) != set(range(len(names))) or len(names) < 2:
        return ()
    found = tuple(str(names[number]) for number in range(len(names)))
    named = not any(name.startswith(_UNNAMED) for name in found) and len(set(found)) == len(found)
    return found if named else ()


def all_named(labels: Sequence[str], count: int) -> tuple[str, ...]:
    """Return a name for each of so many classes: those of a head beyond the labels have their numbers."""
    return (*labels, *(f"{_UNNAMED}{number}" for number in range(len(labels), count)))


def name_classes(module: nn.Module, labels: Sequence[str]) -> bool:
    """Write the names of classes into a model's configuration; return whether it has changed.

    Classes of the head beyond these keep their numbers as names, for the configuration counts its names.
    """
    config = _config(module)
    count = getattr(config, "num_labels", 0)
    if not labels or count < max(2, len(labels)):
        return False
    names = dict(enumerate(all_named(labels, count)))
    if config.id2label == names:
        return False
    config.id2label = names
    config.label2id = {name: n for n, name in names.items()}
    return True


def _config(module: nn.Module) -> Any:
    """Return a model's configuration; ``None`` if it is no model of Hugging Face."""
    if not is_model(module):
        return None
    return without_adapter(module).config

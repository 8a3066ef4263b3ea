"""Changes of a module with embedding variables since a version of it, as a safetensors file.

The file has the parameters and buffers under the names of the ``state_dict``. Of each embedding variable it
has the ids and rows that have changed, and in ``gone`` the ids that were evicted. A version is a number of
completed iterations of one run, and of those that resume it. A module knows of which run it is
(:mod:`sparkdl.saved.identity`)::

    data = write_changes(trained, since=1200, until=1300)
    apply_changes(served, data, at=1200)  # 1300: the version that ``served`` has now

A trained module knows what has changed as long as it is in memory: that of ``FitResult``, or of
``Run.trained_module``. A module whose rows came from a file does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.keyed.entries import ROW, Entries
from sparkdl.keyed.table import KeyedTable
from sparkdl.nn.embedding import EmbeddingVariable, embedding_variables, row_names
from sparkdl.saved.change_file import About, read_about, sealed
from sparkdl.saved.identity import identity_of, mark, marked, told
from sparkdl.saved.weights import place, unique_tensors

GONE = "gone"
"""Name, beside ``ids`` and ``rows``, of the ids that were evicted."""
_ROW_DTYPES = (torch.float16, torch.float32, torch.float64)


def changed_tensors(module: nn.Module, since: int) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Return what a module's ``state_dict`` has, but of embedding variables only what has changed.

    The dict beside the tensors has for names that were left out the one that stands for them. ``None`` if it
    cannot be told what has changed: the rows came from a file, or more ids were evicted than are remembered.
    Raises ConfigError if the state_dict holds something that cannot be saved as plain tensors.
    """
    variables = embedding_variables(module)
    parts = {name: variable.store.changed(since) for name, variable in variables.items()}
    if not since or any(not part.since for part in parts.values()):
        return None
    with ExitStack() as held:
        for name, variable in variables.items():
            held.enter_context(variable.holding(parts[name]))
        tensors, aliases = unique_tensors(module)
    for name, part in parts.items():
        tensors[_of(name, GONE)] = torch.from_numpy(np.unique(part.gone))
    return tensors, aliases


def write_changes(module: nn.Module, since: int, until: int, base: str = "") -> bytes | None:
    """Return what has changed as the bytes of a file; ``None`` if that cannot be told: write the module then.

    Raises:
        ConfigError: if the state_dict holds something that cannot be saved as plain tensors.
    """
    found = changed_tensors(module, since)
    if found is None:
        return None
    tensors, aliases = found
    data = save({name: value.contiguous() for name, value in tensors.items()})
    return sealed(data, About(since, until, marked(module).at(until), base), aliases)


def apply_changes(module: nn.Module, data: bytes, at: int) -> int:
    """Make the changes of :func:`write_changes` in a module; the cost is that of the changes.

    Nobody may look rows up meanwhile. To go on with the old version apply them to a copy.

    Args:
        module: a module like the one that was trained; unchanged if this fails.
        data: the bytes of the file.
        at: completed iterations of the version that the module has.

    Raises:
        ConfigError: if the file is none of these, or damaged, or its changes begin after ``at``, or are of
            another run than the module.
        ModelError: naming what does not fit the module.
    """
    about, own = read_about(data), identity_of(module)
    if not about.since <= at <= about.until:
        raise ConfigError(
            f"changes from iteration {about.since} to {about.until} cannot be applied to a module of "
            f"iteration {at}: apply the changes before them first, or load the module as a whole",
            code="config-saved",
        )
    if own is None or about.identity is None or own.iteration != at or not about.identity.came_through(own):
        raise ConfigError(
            f"changes of {told(about.identity)} cannot be applied to a module of {told(own)}: it is not a "
            "version on the way there. Load the module as a whole",
            code="config-saved",
        )
    apply_known(module, data, about)
    return about.until


def apply_known(module: nn.Module, data: bytes, about: About) -> None:
    """Make changes whose place in a chain has been checked.

    Raises ConfigError for no safetensors file, ModelError naming what does not fit; nothing is changed then.
    """
    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise ConfigError(
            f"changes of a module: not a file of write_changes: {error!r:.200}", code="config-saved"
        ) from error
    apply_tensors(module, tensors, since=about.since, until=about.until)
    mark(module, about.identity)


def apply_tensors(module: nn.Module, tensors: Mapping[str, Tensor], *, since: int, until: int) -> None:
    """Make the changes that tensors of :func:`changed_tensors` tell.

    Raises ModelError naming what does not fit; nothing is changed then.
    """
    variables = embedding_variables(module)
    kept = row_names(module)
    with ExitStack() as held:
        for variable in variables.values():  # all rows would be put in order
            held.enter_context(variable.holding(KeyedTable(variable.store.rule).entries()))
        own = {name: value for name, value in module.state_dict(keep_vars=True).items() if name not in kept}
    parts: dict[str, Entries] = {}
    problems = [
        f"{name} has shape {tuple(tensors[name].shape)} there and {tuple(value.shape)} in the module"
        for name, value in own.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    places = {place(name, value) for name, value in own.items() if name in tensors}
    problems += [f"{name} is missing" for name, value in own.items() if place(name, value) not in places]
    extra = tensors.keys() - own.keys() - kept - {_of(name, GONE) for name in variables}
    problems += [f"{name} is not in the module" for name in sorted(extra)]
    for name, variable in variables.items():
        part = _entries(name, variable, tensors, since, until)
        if isinstance(part, str):
            problems.append(part)
        else:
            parts[name] = part
    if problems:
        some = "; ".join(problems[:8]) + ("; ..." if len(problems) > 8 else "")
        raise ModelError(f"changes do not fit {type(module).__name__}: {some}", code="model-weights")
    module.load_state_dict({name: tensors[name] for name in own if name in tensors}, strict=False)
    for name, part in parts.items():
        variables[name].store.put(part)


def _entries(
    name: str, variable: EmbeddingVariable, tensors: Mapping[str, Tensor], since: int, until: int
) -> Entries | str:
    """Return the changes of a table, or what is wrong with them."""
    names = [_of(name, own) for own in ("ids", "rows", GONE)]
    missing = [own for own in names if own not in tensors]
    if missing:
        return f"{missing[0]} is missing"
    ids, rows, gone = (tensors[own] for own in names)
    width, dtype = variable.store.rule.width, variable.store.rule.dtype
    for own, found in zip(names[::2], (ids, gone), strict=True):
        if found.dtype != torch.int64 or found.dim() != 1 or len(torch.unique(found)) != len(found):
            return f"{own} has shape {tuple(found.shape)} of {found.dtype}, expected distinct integers"
    if rows.shape != (len(ids), width) or rows.dtype not in _ROW_DTYPES:
        return f"{names[1]} has shape {tuple(rows.shape)} of {rows.dtype}, expected {(len(ids), width)}"
    counts, at = np.full(len(ids), variable.store.rule.min_count), np.full(len(ids), until)
    values = {ROW: np.array(rows.numpy().astype(dtype))}
    admitted = np.ones(len(ids), np.bool_)
    return Entries(
        ids.numpy(), counts, at, admitted, values, {}, gone.numpy(), np.full(len(gone), until), since, until
    )


def _of(name: str, own: str) -> str:
    return f"{name}.{own}" if name else own

"""The setting that must be the same for a run to go on from a checkpoint."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl import attempts
from sparkdl.data.store.manifest import total
from sparkdl.data.store.partition import Token
from sparkdl.exceptions import ConfigError
from sparkdl.wire.layout import ParamLayout

_SUMS = ("positions", "contents", "values")
_ADDED = ("dtype", "buffers", "columns", "optimizer", "inner_optimizer", *_SUMS)
"""Entries that checkpoints of earlier releases lack."""
_OTHER_ROWS = ", or go on with other rows by fit(..., resume=, rows='new')"
_MOST = 4


def setting_of(
    layout: ParamLayout,
    rows: Sequence[int],
    *,
    batch_size: int,
    local_steps: int | Mapping[int, int] | None = None,
    seed: int,
    shuffle: bool,
    dealt: bool = False,
    optimizer: Mapping[str, Any] | None = None,
    inner_optimizer: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return, JSON-compatible, what must be the same for a run to go on with the same bits."""
    return json.loads(  # type: ignore[no-any-return]
        json.dumps(
            {
                "layout": [[p.name, p.shape, p.group] for p in layout.params],
                "dtype": layout.dtype,
                "buffers": [[b.name, b.shape] for b in (*layout.buffers, *layout.counters)],
                "optimizer": optimizer,
                "inner_optimizer": inner_optimizer,
                "rows": sum(rows),
                "batch_size": batch_size,
                "local_steps": local_steps,
                "seed": seed,
                "shuffle": shuffle,
                "partitions": list(rows),
                "dealt": dealt,
            }
        )
    )


def checksums(tokens: Sequence[Token]) -> dict[str, Any]:
    """Return, JSON-compatible, checksums of rows: their positions, each partition's bytes, and values."""
    contents = [token.content for token in tokens]
    values = sum(token.values for token in tokens) % (1 << 64)
    return {"positions": total(tokens), "contents": contents, "values": values}


def without_checksums(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the setting of a run that goes on with other rows."""
    return {name: value for name, value in setting.items() if name not in _SUMS}


def check_setting(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare the setting of a checkpoint with that of a run.

    The places of rows are compared where the partitions are those that there were. Other bytes are a warning
    if the next driver of a job goes on by itself: its query is the same, and sums may differ in a last digit.
    """
    for name, value in now.items():
        found = then.get(name)
        if found == value or name in ("partitions", "dealt") or (name in _ADDED and name not in then):
            continue
        if name in _SUMS:
            _check_rows(name, then, now)
            continue
        if name == "columns":
            _check_columns(found or {}, value)
            continue
        if name == "layout":
            raise _another_module(_layout_differences(found, value))
        if name == "buffers":
            raise _another_module(_differences(_by_name(found), _by_name(value)))
        if name in ("optimizer", "inner_optimizer"):
            _check_optimizer(name.replace("_", " "), found, value)
            continue
        raise ConfigError(
            f"resume: {name} is {value!r} now and was {found!r} when the checkpoint was written; resume "
            f"with the same{(_grown(found, value) + _OTHER_ROWS) if name == 'rows' else ''}",
            code="config-resume",
        )


def _check_columns(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that columns have the places that they had. Other names may be those of the same columns.

    Places are features by number or by argument, label and weight.
    """
    if then.keys() != now.keys() or sorted(then.values()) != sorted(now.values()):
        return
    names = dict.fromkeys(name for place, name in now.items() if then[place] != name)
    moved = [f"{name!r} is {_place(now, name)} now and was {_place(then, name)}" for name in names]
    raise ConfigError(
        f"resume: the columns are those of the checkpoint in another order: {'; '.join(moved[:_MOST])}. The "
        "weights would see each in the place of another; give the columns as they were",
        code="config-resume",
    )


def _place(columns: Mapping[str, str], name: str) -> str:
    return " and ".join(place for place, column in columns.items() if column == name)


def _check_rows(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that rows are those of the checkpoint.

    Of other partitions values alone are compared: Spark may have split the files of a source otherwise.
    """
    elsewhere = then["partitions"] != now["partitions"] or _is_dealt(then) != _is_dealt(now)
    if elsewhere and name != "values":
        return
    found = "rows at other places in their source"
    if name != "positions":
        found = f"rows of other values{'' if elsewhere else ', or in another order,'}"
    message = (
        f"resume: the Dataset gives {found} than when the checkpoint was written, though as many; resume "
        f"with the same: one version of a table, or a copy in Parquet{_OTHER_ROWS}"
    )
    if name != "positions" and attempts.current() is not None:
        warnings.warn(message, UserWarning, stacklevel=5)
        return
    raise ConfigError(message, code="config-resume")


def check_inside_epoch(then: Mapping[str, Any], now: Mapping[str, Any], *, since: int) -> None:
    """Check that a run can go on in the middle of an epoch with the rows that it has left.

    ``since`` is the iteration from which the epoch has its number of iterations.
    """
    before, after, parts, found = _is_dealt(then), _is_dealt(now), then["partitions"], ""
    if before != after:
        found = f"batches {'depended' if after else 'did not depend'} on the number of partitions"
    elif before:
        positions = then.get("positions", now.get("positions"))
        if positions != now.get("positions"):
            found = "rows were at other places in their source"
    elif since or parts != now["partitions"]:
        found = f"rows lay in partitions of {_some(parts)} rows"
    if found:
        raise ConfigError(
            f"resume: the checkpoint was written in the middle of an epoch, when {found}; which rows the "
            "epoch has left is unknown now. Resume from a checkpoint at the end of an epoch, or begin the "
            "next one by fit(..., resume=, rows='new')",
            code="config-resume",
        )


def _is_dealt(setting: Mapping[str, Any]) -> bool:
    return bool(setting.get("dealt"))  # earlier releases write none


def _some(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - _MOST} more" if len(rows) > _MOST else ""
    return f"{', '.join(map(str, rows[:_MOST]))}{more}"


def _grown(then: Any, now: Any) -> str:
    return ": the table has grown" if isinstance(then, int) and now > then else ""


def check_state(then: Mapping[int, set[str]], setting: Mapping[str, Any], *, exactly: bool) -> None:
    """Check that an optimizer can go on with the state that another has left.

    ``then`` has names of the state by group. With ``exactly``, names that the optimizer does not know are an
    error, too: for checkpoints that do not say of which class it was.
    """
    now = setting.get("optimizer")
    if now is None:
        return
    for group, names in then.items():
        own = set(now["state"][group]) if group < len(now["state"]) else set()
        if names and (own - names or (exactly and own != names)):
            raise ConfigError(
                f"resume: the optimizer {_classes(now)} keeps {_words(own)} for each weight now, and the "
                f"checkpoint has {_words(names)} of parameter group {group}; resume with the optimizer that "
                "it was trained with, and with options such as amsgrad or momentum as they were. "
                "load_weights(path, module) takes the weights alone, for another one",
                code="config-resume",
            )


def _check_optimizer(what: str, then: Any, now: Any) -> None:
    if _shape_of(then) == _shape_of(now):
        return
    raise ConfigError(
        f"resume: the {what} is {_classes(now)} now and was {_classes(then)} when the checkpoint was "
        "written; resume with the same class and number of parameter groups. load_weights(path, module) "
        "takes the weights alone, for another one",
        code="config-resume",
    )


def _shape_of(optimizer: Any) -> Any:
    return optimizer and (optimizer["classes"], optimizer["groups"])


def _classes(optimizer: Any) -> str:
    """Name optimizers: ``Adam``, ``SGD with 2 groups + SparseAdam``."""
    if optimizer is None:
        return "none"
    pairs = zip(optimizer["classes"], optimizer["groups"], strict=True)
    return " + ".join(f"{cls} with {n} groups" if n > 1 else str(cls) for cls, n in pairs)


def _words(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _another_module(differences: Sequence[str]) -> ConfigError:
    some = "; ".join(differences[:_MOST]) + ("; ..." if len(differences) > _MOST else "")
    return ConfigError(
        f"resume: the checkpoint is of another module: {some}. Resume with the module and parameter groups "
        "that it was trained with",
        code="config-resume",
    )


def _layout_differences(then: Any, now: Any) -> list[str]:
    differences = _differences(_by_name(then), _by_name(now))
    groups = {name: group for name, _, group in then}
    differences += [
        f"{name} is in parameter group {group} now and was in group {groups[name]}"
        for name, _, group in now
        if name in groups and groups[name] != group
    ]
    return differences or ["its parameters come in another order"]


def _by_name(entries: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape, *_ in entries}


def _differences(then: Mapping[str, tuple[int, ...]], now: Mapping[str, tuple[int, ...]]) -> list[str]:
    differences = [
        f"{name} has shape {now[name]} now and is not in the checkpoint" for name in now if name not in then
    ]
    differences += [
        f"{name} had shape {then[name]} and is not in the module now" for name in then if name not in now
    ]
    differences += [
        f"{name} has shape {shape} now and had {then[name]}"
        for name, shape in now.items()
        if name in then and then[name] != shape
    ]
    return differences

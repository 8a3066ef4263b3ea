"""The options of ``sparkdl submit``: a job file in TOML, and the command line, which wins."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sparkdl._spark import logs
from sparkdl.cli.arguments import command_error
from sparkdl.cli.submit import resources as tables

DEPLOY_MODES = ("client", "cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job to submit; raises ConfigError if a value cannot work."""

    master: str  # Spark master
    script: str  # Python program to run
    args: tuple[str, ...] = ()  # its arguments
    name: str | None = None  # name of the application; Spark takes the script's by default
    deploy_mode: str | None = None  # where the driver runs, ``client`` (here) or ``cluster``
    conf: Mapping[str, str] = field(default_factory=dict)  # Spark confs
    # what it asks of the cluster, see :mod:`sparkdl.cli.submit.resources`; confs win
    resources: tables.Amounts = field(default_factory=dict)
    env: str | None = None  # packed environment for the executors, a file or an address that Spark reads
    pack_env: bool = False  # pack the environment of this process and ship that
    modules: bool = False  # ship the Python files of the script's folder
    tensorboard: str | None = None  # folder of summaries to show while the job runs
    log_level: str | None = None  # one of :data:`sparkdl._spark.logs.LEVELS`
    # failures in a row, without a new checkpoint between them, after which it is tried again
    retries: int = 0
    retry_delay: float = 10.0  # seconds before the second driver; they double with each failure in a row
    retry_folder: str | None = None  # where drivers note how far they are; needed in cluster mode

    def __post_init__(self) -> None:
        if not Path(self.script).is_file():
            raise command_error(f"script {self.script!r} is not there: expected a Python file")
        if self.env and self.pack_env:
            raise command_error("env and pack-env are both given: ship one environment, or pack this one")
        if self.deploy_mode not in (None, *DEPLOY_MODES):
            raise command_error(f"deploy-mode {self.deploy_mode!r}: expected {' or '.join(DEPLOY_MODES)}")
        if self.log_level is not None and self.log_level.upper() not in logs.LEVELS:
            raise command_error(f"log-level {self.log_level!r}: expected one of {', '.join(logs.LEVELS)}")
        if self.retries < 0:
            raise command_error(f"retries {self.retries}: expected a whole number of at least 0")
        if not 0 <= self.retry_delay < math.inf:
            raise command_error(f"retry-delay {self.retry_delay}: expected seconds, at least 0")


_PATHS = ("script", "env", "tensorboard", "retry_folder")
_TYPES: dict[str, tuple[Any, str]] = {
    "args": (list, "a list of strings"),
    "conf": (dict, "a table"),
    "resources": (dict, "a table"),
    "pack_env": (bool, "true or false"),
    "modules": (bool, "true or false"),
    "retries": (int, "a whole number"),
    "retry_delay": (int | float, "a number of seconds"),
}
"""By name the type of a value, and that in words; others are strings."""


def read_job_file(path: Path) -> dict[str, Any]:
    """Read a job file: the attributes of :class:`Job`, with ``-`` for ``_``.

    ``conf`` and ``resources`` are tables. Paths are relative to the file. Raises ConfigError naming the key
    that is unknown or has a value of another type.
    """
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise command_error(f"job file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
        raise command_error(
            f"job file {path}, line {line}: byte 0x{byte:02x} is not UTF-8, which TOML needs: save the "
            "file in that encoding"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise command_error(
            f"job file {path} is not TOML: {error}. Texts are quoted; a conf that is the beginning of "
            'another one needs quotes around its name, as in "spark.speculation" = true'
        ) from error
    known = {attribute.name.replace("_", "-"): attribute.name for attribute in fields(Job)}
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise command_error(f"job file {path}: {key!r} is not known; expected {', '.join(known)}")
        name = known[key]
        type_, expected = _TYPES.get(name, (str, "a string"))
        fits = isinstance(value, type_) and (type_ is bool or not isinstance(value, bool))
        if not fits or (name == "args" and not all(isinstance(item, str) for item in value)):
            raise command_error(f"job file {path}: {key} is a {type(value).__name__}: expected {expected}")
        if name == "conf":
            value = dict(_flat(path, "", value))
        elif name == "resources":
            value = tables.read(value, f"job file {path}")
        elif name == "args":
            value = tuple(value)
        elif name in _PATHS and "://" not in value:
            value = str(path.parent / value)
        found[name] = value
    tables.clash(found.get("resources", {}), found.get("conf", {}))
    return found


def _flat(path: Path, prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the confs of nested tables, which is what TOML makes of dotted names."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(path, f"{name}.", value)
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, str | int | float):
            yield name, str(value)
        else:
            raise command_error(
                f"job file {path}: conf {name} is a {type(value).__name__}: expected a string, number or "
                "boolean"
            )

"""The table ``[resources]`` of a job file: what a job asks of a cluster, as confs of its kind of master."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sparkdl.cli.arguments import command_error
from sparkdl.cli.clusters import defaults, is_one_process, kind_of, site_defaults
from sparkdl.exceptions import is_integer, is_number

Amounts = Mapping[str, str | int | float]
"""Amounts by key; those of the tables ``task`` and ``driver`` have dotted keys, such as ``task.gpus``."""

_SIZE = re.compile(r"[1-9]\d*[kmgt]b?", re.IGNORECASE)
_GPU = "spark.executor.resource.gpu"


def _is_size(value: Any) -> bool:
    return isinstance(value, str) and _SIZE.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_share(value: Any) -> bool:
    """Return whether Spark takes a value as the amount of a task: whole ones, or at most a half."""
    if not is_number(value) or not math.isfinite(value):
        return False
    return 0 < value <= 0.5 or (value >= 1 and value == int(value))


_COUNT = (partial(is_integer, least=1), "a whole number of at least 1")
_BYTES = (_is_size, "a size such as '4g' or '512m'")
_SCRIPT = (_is_text, "the path of a script on the executors that lists GPUs")
_DOMAIN = (_is_text, "a domain such as 'nvidia.com'")
_SHARE = (_is_share, "a whole number of at least 1, or a share of at most 0.5")
_KEYS: dict[str, tuple[str, tuple[Callable[[Any], bool], str]]] = {
    "executors": ("spark.executor.instances", _COUNT),
    "cores": ("spark.executor.cores", _COUNT),
    "memory": ("spark.executor.memory", _BYTES),
    "overhead": ("spark.executor.memoryOverhead", _BYTES),
    "gpus": (f"{_GPU}.amount", _COUNT),
    "gpu-discovery": (f"{_GPU}.discoveryScript", _SCRIPT),
    "gpu-vendor": (f"{_GPU}.vendor", _DOMAIN),
    "task.cores": ("spark.task.cpus", _COUNT),
    "task.gpus": ("spark.task.resource.gpu.amount", _SHARE),
    "driver.cores": ("spark.driver.cores", _COUNT),
    "driver.memory": ("spark.driver.memory", _BYTES),
    "driver.overhead": ("spark.driver.memoryOverhead", _BYTES),
}
"""By key the conf, what its values must be, and that in words."""

_CONFS = {key: conf for key, (conf, _) in _KEYS.items()}


def read(table: Mapping[str, Any], where: str) -> dict[str, str | int | float]:
    """Return the amounts in a table of TOML; ConfigError names a key that is unknown or has a bad value."""
    found: dict[str, str | int | float] = {}
    for key, value in _flat(table):
        if key not in _KEYS:
            raise command_error(f"{where}: resources.{key} is not known; expected {', '.join(_KEYS)}")
        _, (fits, expected) = _KEYS[key]
        if not fits(value):
            raise command_error(f"{where}: resources.{key} is {value!r:.100}: expected {expected}")
        found[key] = value
    _check(found, where)
    return found


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if key in ("task", "driver") and isinstance(value, dict):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value


def _check(found: Amounts, where: str) -> None:
    """Check that amounts go together."""
    for name in ("gpu-discovery", "gpu-vendor", "task.gpus"):
        if name in found and "gpus" not in found:
            raise command_error(f"{where}: resources.{name} is given without resources.gpus: expected both")
    for unit in ("cores", "gpus"):
        wanted, offered = found.get(f"task.{unit}"), found.get(unit)
        if isinstance(wanted, int | float) and isinstance(offered, int | float) and wanted > offered:
            raise command_error(
                f"{where}: resources.task.{unit} is {wanted}: expected at most resources.{unit}, {offered}, "
                "for a task runs on one executor"
            )


def confs(amounts: Amounts, master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return amounts as Spark confs; ConfigError if this master knows no such amount, or needs another."""
    kind = kind_of(master)
    for key in amounts:
        reason = _refused(key, kind, master)
        if reason:
            raise command_error(f"resources.{key} with --master {master}: expected nothing, for {reason}")
    found = {_CONFS[key]: str(value) for key, value in amounts.items()}
    if "gpus" in amounts:
        found.setdefault(_CONFS["task.gpus"], "1")
        if kind == "kubernetes":
            found.setdefault(_CONFS["gpu-vendor"], "nvidia.com")
        script = _CONFS["gpu-discovery"]
        if kind != "standalone" and script not in {**given, **found}:
            raise command_error(
                f"resources.gpus with --master {master}: resources.gpu-discovery is missing; expected the "
                "path of a script on the executors that lists their GPUs, such as Spark's getGpusResources.sh"
            )
    if kind == "standalone" and "executors" in amounts:
        # Workers are asked for cores alone.
        each = amounts.get("cores") or given.get(_CONFS["cores"])
        if each is None:
            raise command_error(
                f"resources.executors with --master {master}: resources.cores is missing; expected the cores "
                "of each, for a standalone cluster divides cores"
            )
        del found[_CONFS["executors"]]
        found["spark.cores.max"] = str(int(amounts["executors"]) * int(each))
    return found


def job_confs(amounts: Amounts, master: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the confs of a job: the installation's, then its cluster's, its amounts and its own."""
    site = site_defaults()
    conf = {**site, **defaults(master, site)}
    conf |= {**confs(amounts, master, {**conf, **own}), **own}
    conf.pop("spark.master", None)
    return conf


def _refused(key: str, kind: str, master: str) -> str:
    """Return why a master has no such amount; empty if it has."""
    if is_one_process(master) and not key.startswith("driver.") and key != "task.cores":
        return (
            "tasks run in the driver's process: local[N] says how many cores, driver.memory how much memory"
        )
    if kind == "local" and key in ("executors", "cores", "gpus", "gpu-discovery", "gpu-vendor", "task.gpus"):
        return "local-cluster[executors,cores,MiB] says it in the master, and has no GPUs"
    if key.endswith("overhead") and kind not in ("yarn", "kubernetes"):
        return "only YARN and Kubernetes limit what runs beside the JVM"
    if key in ("gpu-discovery", "gpu-vendor") and kind == "standalone":
        return "each worker finds its GPUs itself (spark.worker.resource.gpu.discoveryScript)"
    if key == "gpu-vendor" and kind != "kubernetes":
        return "only Kubernetes asks for it"
    return ""


def clash(amounts: Amounts, conf: Mapping[str, str]) -> None:
    """Check that a job file says each amount once."""
    for key, name in _CONFS.items():
        if key in amounts and name in conf:
            raise command_error(
                f"resources.{key} is {amounts[key]!r} and conf {name} is {conf[name]!r}: expected one of them"
            )

"""The kinds of clusters, and the Spark confs that each starts with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from sparkdl import session
from sparkdl.cli import properties
from sparkdl.cli.arguments import command_error
from sparkdl.exceptions import ConfigError

CONF = Path(__file__).parents[1] / "conf"
KINDS = ("local", "standalone", "yarn", "kubernetes")


def kind_of(master: str) -> str:
    """Return which of :data:`KINDS` a Spark master is."""
    if master.startswith("local"):
        return "local"
    if master.startswith("spark://"):
        return "standalone"
    if master == "yarn":
        return "yarn"
    if master.startswith("k8s://"):
        return "kubernetes"
    raise command_error(
        f"--master {master!r}: expected local[N], local-cluster[executors,cores,MiB], spark://host:port, "
        "yarn or k8s://https://host:port"
    )


def is_one_process(master: str) -> bool:
    """Return whether tasks run in the driver's own JVM, so that there are no executors."""
    return master.startswith("local") and not master.startswith("local-cluster")


def defaults(master: str, site: Mapping[str, str]) -> dict[str, str]:
    """Return the confs that a job on this master starts with.

    ``site`` is what the installation's ``spark-defaults.conf`` says. It wins, except over the confs that
    :func:`sparkdl.session.builder` sets in any case.
    """
    found = properties.read(CONF / f"{kind_of(master)}.conf")
    found.pop("spark.master", None)
    always = session.recommended()
    return {name: value for name, value in found.items() if name in always or name not in site}


def spark_home() -> Path:
    """Return the folder of the Spark installation: ``SPARK_HOME``, else that of the package pyspark."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home)
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise ConfigError("pyspark is not installed: pip install pyspark", code="config-package")
    return Path(package.origin).parent


def site_defaults() -> dict[str, str]:
    """Return what the installation's ``spark-defaults.conf`` says."""
    folder = Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")
    file = folder / "spark-defaults.conf"
    return properties.read(file) if file.is_file() else {}

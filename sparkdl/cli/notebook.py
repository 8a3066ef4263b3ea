"""``sparkdl notebook``: Jupyter on this machine, whose kernels begin sessions with a job's confs."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from getpass import getuser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sparkdl import redaction
from sparkdl._spark import logs
from sparkdl.cli import properties
from sparkdl.cli.arguments import add_conf, command_error
from sparkdl.cli.board import free_port
from sparkdl.cli.process import forwarding
from sparkdl.cli.submit import resources
from sparkdl.cli.submit.job import read_job_file
from sparkdl.exceptions import ConfigError
from sparkdl.wire import private

PORT = 8888
_SERVERS = ("jupyterlab", "notebook")
_EXAMPLES = """\
examples:
  sparkdl notebook --master 'local[2]'
  sparkdl notebook --master spark://head:7077 --conf spark.executor.memory=4g
  sparkdl notebook --conf-file job.toml --folder notebooks

In a notebook sparkdl.session.builder().getOrCreate() begins a session with these confs. The server listens on
localhost only and asks for a token. Needs Jupyter: pip install jupyterlab
"""


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "notebook",
        help="start Jupyter with the confs of a cluster, and print the tunnel to it",
        description="Start Jupyter on this machine, for localhost only, with a token and a cluster's confs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--master", help="Spark master: local[N], spark://..., yarn, k8s://...")
    parser.add_argument(
        "--conf-file", metavar="job.toml", type=Path, help="job file: its master, [resources], [conf]"
    )
    add_conf(parser)
    parser.add_argument("--folder", type=Path, default=Path(), help="folder of the notebooks (here)")
    parser.add_argument("--port", type=int, default=PORT, help=f"port on localhost ({PORT}, or a free one)")
    parser.add_argument("--allow-root", action="store_true", help="run as root, such as in a container")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run Jupyter until it ends, and return its exit status."""
    server = next((name for name in _SERVERS if find_spec(name) is not None), None)
    if server is None:
        raise ConfigError(
            "sparkdl notebook: neither jupyterlab nor notebook is installed for "
            f"{sys.executable}: pip install jupyterlab",
            code="config-package",
        )
    if not args.folder.is_dir():
        raise command_error(f"--folder {str(args.folder)!r}: expected a folder that is there")
    if not 1 <= args.port <= 65535:
        raise command_error(f"--port {args.port}: expected 1 to 65535")
    if os.geteuid() == 0 and not args.allow_root:
        raise command_error(
            "sparkdl notebook: this is root, and whoever has the token runs code as its user: expected "
            "another user, or --allow-root, such as in a container that has no other"
        )
    master, confs = confs_of(args)
    with tempfile.TemporaryDirectory(prefix="sparkdl-notebook-") as name, forwarding() as child:
        begun = prepare(Path(name), server, master, confs, args.folder, free_port(args.port))
        print(begun.told, flush=True)
        status = child.run(begun.command, begun.environment)
        asked = {128 + signal.SIGTERM, 128 + signal.SIGHUP, 128 + signal.SIGINT}
        return 0 if child.stopped and status in asked else status


def confs_of(args: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """Return the master, and the confs of a session there."""
    found = read_job_file(args.conf_file) if args.conf_file is not None else {}
    given = {**found.get("conf", {}), **dict(args.conf)}
    master = args.master or found.get("master") or given.get("spark.master")
    if master is None:
        raise command_error("no master: give --master, or master = ... in the job file")
    conf = resources.job_confs(found.get("resources", {}), master, given)
    if conf.get("spark.submit.deployMode", "client") != "client":
        raise command_error(
            f"spark.submit.deployMode is {conf['spark.submit.deployMode']!r}: expected 'client', for the "
            "driver is the notebook's kernel"
        )
    return master, conf


@dataclass(frozen=True, slots=True)
class NotebookServer:
    """The server to run."""

    command: tuple[str, ...]  # its command line, without secrets
    environment: dict[str, str]  # variables that it and its kernels get
    told: str  # where it is, for its user


def prepare(
    folder: Path, server: str, master: str, confs: Mapping[str, str], notebooks: Path, port: int
) -> NotebookServer:
    """Write the files of a server, which only their owner can read."""
    # All users of a machine see command lines, so the token is in a file, as the confs are.
    token = secrets.token_urlsafe(32)
    settings = folder / "jupyter_server_config.json"
    # A file that is named replaces the user's own, which might listen elsewhere or ask for nothing.
    listening = {
        "ip": "127.0.0.1",
        "port": port,
        "port_retries": 0,
        "open_browser": False,
        "allow_root": os.geteuid() == 0,  # run() has asked
    }
    content = {
        "ServerApp": listening | {"root_dir": str(notebooks.resolve()), "allow_remote_access": False},
        "IdentityProvider": {"token": token},
    }
    with open(settings, "x", encoding="utf-8", opener=private.opener) as file:
        json.dump(content, file)
    properties.write(folder / "spark.properties", confs)
    arguments = ["--master", master, "--properties-file", str(folder / "spark.properties"), "pyspark-shell"]
    environment = {"PYSPARK_SUBMIT_ARGS": shlex.join(arguments), "SPARK_SUBMIT_OPTS": logs.jvm_options()}
    if "spark.pyspark.python" in confs:  # a driver that begins as Python does not read it
        environment["PYSPARK_PYTHON"] = confs["spark.pyspark.python"]
    elif "PYSPARK_PYTHON" not in os.environ:
        environment["PYSPARK_PYTHON"] = sys.executable
    host = socket.getfqdn()
    told = (
        f"sparkdl: notebooks of {redaction.text(str(notebooks.resolve()))} with --master {master}\n"
        f"  from another machine: ssh -N -L {port}:localhost:{port} {getuser()}@{host}\n"
        f"  then open:            http://localhost:{port}/?token={token}\n"
        "  in a notebook:        spark = sparkdl.session.builder().getOrCreate()"
    )
    command = (sys.executable, "-m", server, f"--config={settings}")
    return NotebookServer(command, environment, told)
